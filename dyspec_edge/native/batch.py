"""Rows of a llama_batch, and the flag that interrupts its evaluation."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32

import numpy as np

from dyspec_edge.native.library import BatchStruct, Int32s, address_of, lib, pointer

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ

abort_callback_address: int = address_of(lib.dyspec_abort)
"""Address of a ggml_abort_callback whose data is `AbortFlag.address`."""


class Batch:
    """Arrays for the rows of a pass, and the llama_batch that points to them.

    Args:
        capacity: rows that there is room for.

    Attributes:
        token, pos, num_seq_id: int32[capacity].
        seq_id: uint64[capacity], each the address of the row's ids.
        output: int8[capacity], whether the row wants logits.
        struct: dyspec_batch; its n_tokens says how many rows there are.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.token = np.zeros(capacity, np.int32)
        self.pos = np.zeros(capacity, np.int32)
        self.num_seq_id = np.zeros(capacity, np.int32)
        self.seq_id = np.zeros(capacity, np.uint64)
        self.output = np.zeros(capacity, np.int8)
        self._ids: list[Int32s] = []
        self.struct = BatchStruct(
            0,
            pointer(self.token, np.int32, capacity),
            None,
            pointer(self.pos, np.int32, capacity),
            pointer(self.num_seq_id, np.int32, capacity),
            pointer(self.seq_id, np.uint64, capacity),
            pointer(self.output, np.int8, capacity),
        )

    @property
    def size(self) -> int:
        """Rows that there are."""
        return int(self.struct.n_tokens)

    def clear(self) -> None:
        """Start a new batch."""
        self.struct.n_tokens = 0
        self._ids.clear()

    def add(
        self, tokens: Sequence[int], first_pos: int, ids: Sequence[int] = (0,), *, output: bool
    ) -> None:
        """Append rows for consecutive tokens.

        Args:
            first_pos: position of the first one.
            ids: sequences that all of them belong to.
            output: whether these rows want logits.

        Raises:
            ValueError: the rows do not fit, or there is no id, or one that does not exist.
        """
        if not ids or not 0 <= min(ids) <= max(ids) < MAX_SEQUENCES:
            raise ValueError(f"sequence ids {list(ids)}: at least one from 0..{MAX_SEQUENCES - 1}")
        members, rows = np.array(ids, np.int32), np.array(tokens, np.int32)
        filled = lib.dyspec_add_rows(
            self.struct,
            self.capacity,
            pointer(rows, np.int32, len(rows)),
            len(rows),
            first_pos,
            pointer(members, np.int32, len(members)),
            len(members),
            output,
        )
        if filled < 0:
            raise ValueError(f"{self.size} and {len(rows)} rows do not fit into {self.capacity}")
        self._ids.append(members)  # the rows point to it


class AbortFlag:
    """A flag that `abort_callback_address` reads; may be set from any thread or signal handler."""

    def __init__(self) -> None:
        self._flag = c_int32(0)

    @property
    def address(self) -> int:
        """Address of the int32; valid as long as this object lives."""
        return ctypes.addressof(self._flag)

    @property
    def is_set(self) -> bool:
        """Whether evaluation is to stop."""
        return self._flag.value != 0

    def set(self) -> None:
        """Stop the evaluation that runs now, and every later one until `clear`."""
        self._flag.value = 1

    def clear(self) -> None:
        """Let evaluations run again."""
        self._flag.value = 0
