"""The end of a step in one call: the target's pass, the walk, what both caches keep."""

from __future__ import annotations

import ctypes

import numpy as np

from dyspec_edge.native.cache import SequenceCache
from dyspec_edge.native.library import Int32s, VerificationStruct, lib, pointer
from dyspec_edge.native.sampling import TargetSampler
from dyspec_edge.native.tree import Tree


class Verification:
    """Checks the trees of one reply by `match` (dyspec.h: dyspec_verification).

    Args:
        target: the target's cache.
        draft: the draft's; None: there is none.
        sampler: draws the target's tokens.
        tree: whose nodes are checked.
    """

    def __init__(
        self, target: SequenceCache, draft: SequenceCache | None, sampler: TargetSampler, tree: Tree
    ) -> None:
        capacity = tree.struct.capacity
        self._path, self._tokens = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
        # What the pointers below point to lives as long as this object.
        self._held = (target, draft, tree)
        self._sampler = sampler
        self._struct = VerificationStruct(
            target=ctypes.pointer(target.struct),
            draft=ctypes.pointer(draft.struct) if draft is not None else None,
            sampler=ctypes.pointer(sampler.struct),
            tree=ctypes.pointer(tree.struct),
            path=self._path.ctypes.data,
            tokens=self._tokens.ctypes.data,
        )

    def run(self, nodes: Int32s, index: int) -> int:
        """One pass over `nodes`, the walk down, and the commit of what it reached.

        Args:
            nodes: int32[n], as `SequenceCache.evaluate` takes them.
            index: index in the reply of the token below the root.

        Returns:
            The length of the path, or a code for the target's `SequenceCache.check`.

        Raises:
            DyspecError: a row holds no finite value; nothing is committed.
        """
        n = len(nodes)
        code: int = lib.dyspec_verify(self._struct, pointer(nodes, np.int32, n), n, index)
        self._sampler.check(code)
        return code

    def path(self, length: int) -> list[int]:
        """The nodes that were reached, the root first."""
        nodes: list[int] = self._path[:length].tolist()
        return nodes

    def tokens(self, length: int) -> list[int]:
        """What was emitted below each of them."""
        ids: list[int] = self._tokens[:length].tolist()
        return ids

    @property
    def num_accepted(self) -> int:
        """Emitted tokens that the target found in the tree."""
        return int(self._struct.n_accepted)

    @property
    def draw_seconds(self) -> float:
        """Of the last walk."""
        return float(self._struct.draw_seconds)
