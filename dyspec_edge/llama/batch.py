"""Rows for one pass, in arrays that llama.cpp reads without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from dyspec_edge import native


class Batch:
    """Rows for one `llama_decode`: arrays owned here, pointed to by a llama_batch.

    The id sets of all rows stand one after another in `ids`; row i owns
    `ids[offsets[i]:offsets[i + 1]]`.
    """

    def __init__(self, capacity: int, num_ids: int) -> None:
        self.capacity = capacity
        self._num_ids = num_ids
        self.token = np.zeros(capacity, np.int32)
        self.pos = np.zeros(capacity, np.int32)
        self.num_seq_id = np.zeros(capacity, np.int32)
        self.seq_ptr = np.zeros(capacity, np.uint64)
        self.output = np.zeros(capacity, np.int8)
        self.ids = np.zeros(capacity * num_ids, np.int32)
        batch = llama_cpp.llama_batch()
        for field, array in (
            ("token", self.token),
            ("pos", self.pos),
            ("n_seq_id", self.num_seq_id),
            ("seq_id", self.seq_ptr),
            ("logits", self.output),
        ):
            kind = dict(llama_cpp.llama_batch._fields_)[field]
            setattr(batch, field, ctypes.cast(array.ctypes.data, kind))
        self.struct = batch
        self.size = 0
        self._used_ids = 0

    def clear(self) -> None:
        """Start a new batch."""
        self.size = 0
        self._used_ids = 0

    def add(
        self,
        tokens: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int32],
        ids: npt.NDArray[np.int32],
        *,
        output: bool,
    ) -> None:
        """Append rows; `offsets` int32[n + 1] and `ids` int32[offsets[n]] hold their id sets."""
        n, used = len(tokens), len(ids)
        first, first_id = self.size, self._used_ids
        self.ids[first_id : first_id + used] = ids
        native.fill_batch(
            self.token,
            self.pos,
            self.num_seq_id,
            self.seq_ptr,
            self.output,
            first,
            tokens,
            positions,
            offsets,
            self.ids[first_id:],
            output,
            self._num_ids,
        )
        self.size = first + n
        self._used_ids = first_id + used

    def add_shared(
        self, tokens: Sequence[int], first_pos: int, num_ids: int, *, output: bool
    ) -> None:
        """Append consecutive rows that carry all ids 0..num_ids-1."""
        n = len(tokens)
        self.add(
            np.asarray(tokens, np.int32),
            np.arange(first_pos, first_pos + n, dtype=np.int32),
            np.arange(0, (n + 1) * num_ids, num_ids, dtype=np.int32),
            np.tile(np.arange(num_ids, dtype=np.int32), n),
            output=output,
        )
