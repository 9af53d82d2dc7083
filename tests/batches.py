"""Passes of llama.cpp that no cache has arranged: what tests compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import llama_cpp
import numpy as np

from dyspec_edge.llama import Context


class Batch:
    """A llama_batch of up to `capacity` rows.

    Attributes:
        output: int8[capacity], whether the row wants logits.
    """

    def __init__(self, capacity: int) -> None:
        self.size = 0
        self.output = np.zeros(capacity, np.int8)
        self._token, self._pos = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
        self._ids: list[list[int]] = []

    def clear(self) -> None:
        """Start a new batch."""
        self.size = 0
        self._ids.clear()

    def add(
        self, tokens: Sequence[int], first_pos: int, ids: Iterable[int] = (0,), *, output: bool
    ) -> None:
        """Append rows for consecutive tokens, which all belong to the sequences `ids`."""
        rows = slice(self.size, self.size + len(tokens))
        self._token[rows] = tokens
        self._pos[rows] = np.arange(first_pos, first_pos + len(tokens))
        self.output[rows] = output
        self._ids += [list(ids)] * len(tokens)
        self.size += len(tokens)

    def decode(self, context: Context) -> None:
        """Evaluate the rows in `context` and wait for the result."""
        batch = llama_cpp.llama_batch_init(self.size, 0, max(map(len, self._ids)))
        batch.n_tokens = self.size
        for row, ids in enumerate(self._ids):
            batch.token[row], batch.pos[row] = int(self._token[row]), int(self._pos[row])
            batch.logits[row], batch.n_seq_id[row] = int(self.output[row]), len(ids)
            for place, seq in enumerate(ids):
                batch.seq_id[row][place] = seq
        code = llama_cpp.llama_decode(context._context, batch)
        llama_cpp.llama_batch_free(batch)
        assert code == 0
        llama_cpp.llama_synchronize(context._context)


def clear(context: Context) -> None:
    """Forget every cell."""
    llama_cpp.llama_memory_clear(context._memory, False)
