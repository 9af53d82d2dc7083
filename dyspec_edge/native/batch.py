"""Rows of a llama_batch, and the flag that interrupts its evaluation."""

from __future__ import annotations

import ctypes
from ctypes import c_int32

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import OUT_OF_SEQUENCES, BatchStruct, Int32s, lib, pointer

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ

abort_callback_address: int = ctypes.cast(lib.dyspec_abort, ctypes.c_void_p).value or 0
"""Address of a ggml_abort_callback whose data is `AbortFlag.address`."""


def fill_batch(
    token: Int32s,
    pos: Int32s,
    n_seq_id: Int32s,
    seq_id: npt.NDArray[np.uint64],
    logits: npt.NDArray[np.int8],
    n0: int,
    tokens: Int32s,
    positions: Int32s,
    offsets: Int32s,
    ids: Int32s,
    output: bool,
    num_seq: int = MAX_SEQUENCES,
) -> int:
    """Write rows n0, n0 + 1, ... of the arrays that a llama_batch points to.

    Args:
        token: int32[capacity].
        pos: int32[capacity].
        n_seq_id: int32[capacity].
        seq_id: uint64[capacity], each an int32*; they will point into `ids`, which must live
            until the batch is decoded.
        logits: int8[capacity].
        n0: the first row.
        tokens: int32[n].
        positions: int32[n].
        offsets: int32[n + 1]; row i carries ids[offsets[i]:offsets[i + 1]].
        ids: int32[offsets[n]].
        output: whether these rows want logits.
        num_seq: ids must lie below; llama.cpp ends the process at others.

    Returns:
        The number of rows that are filled now.

    Raises:
        ValueError: the rows do not fit, a row without ids, or an id that does not exist.
    """
    n, capacity = len(tokens), len(token)
    batch = BatchStruct(
        pointer(token, np.int32, capacity),
        pointer(pos, np.int32, capacity),
        pointer(n_seq_id, np.int32, capacity),
        pointer(seq_id, np.uint64, capacity),
        pointer(logits, np.int8, capacity),
        capacity,
    )
    filled: int = lib.dyspec_fill_batch(
        batch,
        n0,
        n,
        pointer(tokens, np.int32, n),
        pointer(positions, np.int32, n),
        pointer(offsets, np.int32, n + 1),
        pointer(ids, np.int32, int(offsets[n])),
        output,
        num_seq,
    )
    if filled == OUT_OF_SEQUENCES:
        raise ValueError(f"a row has a sequence id outside 0..{num_seq - 1}")
    if filled < 0:
        raise ValueError(f"{n} rows from row {n0} on, capacity {capacity}: too many, or no ids")
    return filled


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
