"""A draft model's passes over a tree, each from placing its rows to ranked candidates."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from dyspec_edge.native.cache import SequenceCache
from dyspec_edge.native.device import DeviceTopK
from dyspec_edge.native.library import (
    FIRST_BAD_ROW,
    DrafterStruct,
    Int32s,
    address_of,
    lib,
    pointer,
)
from dyspec_edge.native.ranking import CandidateOrder
from dyspec_edge.native.rows import not_finite
from dyspec_edge.native.tree import Tree


class DraftPass:
    """A draft model's passes over one tree (dyspec.h: dyspec_drafter).

    Args:
        cache: the draft's.
        tree: whose nodes are drafted.
        vocab_limit: ids at or above it are never drafted.
        excluded: further ids that are not.
        device: what finds the candidates in the pass; None: the host does, from the logits.

    Attributes:
        function, address: a dyspec_proposer and its data, for a `Proposer`.
    """

    def __init__(
        self,
        cache: SequenceCache,
        tree: Tree,
        *,
        vocab_limit: int,
        excluded: Int32s,
        device: DeviceTopK | None,
    ) -> None:
        capacity, num_ranks = tree.struct.capacity, tree.struct.n_ranks
        self._excluded = np.unique(excluded).astype(np.int32)
        self._unread = np.zeros(0, np.int32)
        self._bias_ids, self._bias = np.zeros(0, np.int32), np.zeros(0, np.float32)
        nodes, logits = np.zeros(capacity, np.int32), np.zeros(num_ranks, np.float32)
        self._pass_rows, self._pass_seconds = np.zeros(capacity, np.int32), np.zeros(capacity)
        # What the pointers below point to lives as long as this object.
        self._arrays = (cache, tree, nodes, logits, device)
        self.struct = DrafterStruct(
            cache=ctypes.pointer(cache.struct),
            device=device.address if device is not None else None,
            tree=ctypes.pointer(tree.struct),
            excluded=self._excluded.ctypes.data,
            n_excluded=len(self._excluded),
            nodes=nodes.ctypes.data,
            logits=logits.ctypes.data,
            pass_rows=self._pass_rows.ctypes.data,
            pass_seconds=self._pass_seconds.ctypes.data,
            max_passes=capacity,
            vocab_limit=vocab_limit,
        )
        self.function = address_of(lib.dyspec_draft)
        self.address = ctypes.addressof(self.struct)

    def take_rule(self, order: CandidateOrder, bias: Sequence[tuple[int, float]]) -> None:
        """Rank by `order` from now on, with `bias` (token, amount) added to the logits."""
        self.struct.ranking = order.struct
        self._bias_ids = np.array([token for token, _ in bias], np.int32)
        self._bias = np.array([amount for _, amount in bias], np.float32)
        self.struct.bias_ids, self.struct.bias = self._bias_ids.ctypes.data, self._bias.ctypes.data
        self.struct.n_bias = len(bias)

    def start_step(self, unread: Sequence[int], first_index: int) -> None:
        """Take what is to be read with the root, and the reply index of the token below it."""
        self._unread = np.array(unread, np.int32)
        self.struct.unread = pointer(self._unread, np.int32, len(unread))
        self.struct.n_unread = len(unread)
        self.struct.first_index = first_index
        self.struct.n_passes = 0

    def run(self, nodes: Int32s) -> int:
        """One pass; returns a code for `check` and the cache's."""
        code: int = lib.dyspec_draft(self.address, pointer(nodes, np.int32, len(nodes)), len(nodes))
        return code

    def check(self, code: int) -> None:
        """Raise what a code means that is about logits.

        Raises:
            DyspecError: a row holds no finite logit, or +inf.
        """
        if code <= FIRST_BAD_ROW:
            what = f"row {FIRST_BAD_ROW - code} of the draft's logits"
            raise not_finite(what, on_device=bool(self.struct.device))

    @property
    def rows_seconds(self) -> float:
        """Running total of reducing rows to candidates."""
        return float(self.struct.rows_seconds)

    @property
    def passes(self) -> list[tuple[int, float]]:
        """Rows and seconds of this step's passes so far."""
        n = self.struct.n_passes
        return list(zip(self._pass_rows[:n].tolist(), self._pass_seconds[:n].tolist(), strict=True))
