"""The target's own token, and the walk down a tree that agrees with it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import NOT_FINITE, CandidatesStruct, SamplerStruct, lib, pointer
from dyspec_edge.native.rows import not_finite
from dyspec_edge.native.tree import Tree

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""


class TargetSampler:
    """llama.cpp's sampler chain, then a draw of our own (dyspec.h: dyspec_sampler).

    Args:
        functions: addresses of `SAMPLER_FUNCTIONS`, in that order.
        chain: address of the llama_sampler, which ends without a draw; None if it has no members
            and tokens are chosen greedily.
        num_vocab: logits of a row.
        seed: of the Gumbel noise.
        greedy: arg max of what the chain leaves.
    """

    def __init__(
        self,
        functions: Sequence[int],
        chain: int | None,
        *,
        num_vocab: int,
        seed: int,
        greedy: bool,
    ) -> None:
        self._data = np.zeros(num_vocab, TOKEN_DATA)
        self.struct = SamplerStruct(
            *functions,
            chain=chain,
            data=self._data.ctypes.data,
            seed=seed,
            n_vocab=num_vocab,
            greedy=greedy,
        )
        self._path, self._bonus = np.zeros(0, np.int32), ctypes.c_int32()

    @property
    def seed(self) -> int:
        """Of the Gumbel noise."""
        return int(self.struct.seed)

    @seed.setter
    def seed(self, seed: int) -> None:
        self.struct.seed = seed

    def sample(self, row_address: int, index: int) -> int:
        """The token number `index` of the reply, given its row of logits.

        Raises:
            DyspecError: the row holds no finite value.
        """
        token: int = lib.dyspec_sample(self.struct, row_address, index)
        self.check(token)
        return token

    def match(self, tree: Tree, rows: npt.NDArray[np.uint64], index: int) -> tuple[list[int], int]:
        """Walk down while the target's own token is a child that was evaluated.

        Args:
            rows: uint64[capacity of the tree], addresses of the nodes' logits; 0: not evaluated.
            index: index in the reply of the token below the root.

        Returns:
            The nodes that were reached, the root first, and the token below the last of them.

        Raises:
            DyspecError: a row holds no finite value.
        """
        capacity = tree.struct.capacity
        if len(self._path) < capacity:
            self._path = np.zeros(capacity, np.int32)
        n = lib.dyspec_match(
            self.struct,
            tree.struct,
            pointer(rows, np.uint64, capacity),
            index,
            pointer(self._path, np.int32, capacity),
            self._bonus,
        )
        self.check(n)
        return self._path[:n].tolist(), self._bonus.value

    def apply(self, row_address: int) -> npt.NDArray[np.void]:
        """What the chain leaves of a row, `TOKEN_DATA`[m] in any order; `logit` is what it made.

        Valid until the next call.
        """
        left = CandidatesStruct()
        lib.dyspec_apply(self.struct, row_address, left)
        memory = (ctypes.c_char * (left.size * TOKEN_DATA.itemsize)).from_address(left.data)
        return np.frombuffer(memoryview(memory), TOKEN_DATA)

    def accept(self, token: int) -> None:
        """Tell penalties and DRY that `token` is part of the text."""
        lib.dyspec_accept(self.struct, token)

    @property
    def seconds(self) -> float:
        """Running total in the chain and the draw."""
        return float(self.struct.seconds)

    @property
    def rows_seconds(self) -> float:
        """Running total of reducing bare rows."""
        return float(self.struct.rows_seconds)

    def check(self, code: int) -> None:
        """Raise what a negative code means that is about logits.

        Raises:
            DyspecError: the row holds no finite value.
        """
        if code == NOT_FINITE:
            bare = self.struct.chain is None
            raise not_finite(
                "the row of logits" if bare else "what the samplers left of the logits"
            )
