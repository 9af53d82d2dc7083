"""Weights that are read in every pass, ahead of the nodes that use them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from dyspec_edge.errors import DeviceError, ModelFileError
from dyspec_edge.native.abort import AbortFlag
from dyspec_edge.native.handle import Handle
from dyspec_edge.native.library import Int32s, WeightStruct, address_of, lib, pointer

NUM_THREADS = 2
"""Reads at a time: the next one waits in the disk's queue when one ends."""


class Use(IntEnum):
    """How a node of the graph uses a weight (dyspec_use)."""

    MULTIPLIED = 0
    ROWS_TAKEN = 1
    MULTIPLIED_BY_CHOICE = 2
    OTHERWISE = 3


class Place(IntEnum):
    """Where a weight is (dyspec_place)."""

    RESIDENT = 0
    STREAMED = 1
    ROWS = 2
    MAPPED = 3


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight in the mapping of its file; sizes and offsets in bytes, `file` a position."""

    address: int
    size: int
    offset: int
    row_size: int
    file: int


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """Since the start.

    Attributes:
        num_bytes: read, of rows `num_row_bytes` among them.
        read_seconds: something was being read.
        wait_seconds: a pass waited for it.
        num_passes: whole ones.
        num_jumps: passes that began after one that was left before its end.
    """

    num_bytes: int = 0
    num_row_bytes: int = 0
    read_seconds: float = 0.0
    wait_seconds: float = 0.0
    num_passes: int = 0
    num_jumps: int = 0


class WeightStream:
    """A dyspec_weight_stream over a mapped model, which only notes uses until `start`.

    Args:
        functions: addresses of `GRAPH_FUNCTIONS`, in their order.
        src_offset: of `src` in ggml_tensor, in bytes.
        paths: of the files.
        weights: ascending addresses.

    Raises:
        DeviceError: this system cannot do it, or a file cannot be opened.
    """

    def __init__(
        self,
        functions: Sequence[int],
        src_offset: int,
        paths: Sequence[Path],
        weights: Sequence[Weight],
    ) -> None:
        self._paths = tuple(paths)
        self._num_weights = len(weights)
        names = (ctypes.c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
        table = (WeightStruct * len(weights))(
            *(WeightStruct(w.address, w.size, w.offset, w.row_size, w.file) for w in weights)
        )
        address = lib.dyspec_weight_stream_create(
            (ctypes.c_void_p * len(functions))(*functions),
            src_offset,
            names,
            len(paths),
            table,
            len(weights),
        )
        if not address:
            raise DeviceError(f"{paths[0].name}: its weights cannot be streamed on this system")
        self.handle = Handle(address, lib.dyspec_weight_stream_free)

    def uses(self) -> list[tuple[int, Use]]:
        """Positions of weights, and how nodes used them, in the order of the nodes."""
        count = lib.dyspec_weight_stream_uses(self.handle.address, 0, 0, 0)
        weights, uses = np.empty(count, np.int32), np.empty(count, np.int32)
        lib.dyspec_weight_stream_uses(
            self.handle.address, weights.ctypes.data, uses.ctypes.data, count
        )
        return [(int(w), Use(u)) for w, u in zip(weights, uses, strict=True)]

    def start(self, places: Int32s, order: Int32s, *, window: int, rows_room: int) -> None:
        """Put every weight into its place; `fill` until nothing is left comes before any pass.

        Args:
            places: int32[weights] of `Place`.
            order: positions of the streamed ones as they are used.
            window: bytes that they share, not less than the largest of them.
            rows_room: bytes that rows may take.

        Raises:
            DeviceError: no memory for it, or a plan that is none; nothing of the model can be used.
        """
        code = lib.dyspec_weight_stream_start(
            self.handle.address,
            pointer(places, np.int32, self._num_weights),
            pointer(order, np.int32, len(order)),
            len(order),
            window,
            rows_room,
            NUM_THREADS,
        )
        if code < 0:
            raise DeviceError(
                f"{self._paths[0].name}: no memory for streaming its weights ({code}); "
                "--stream off leaves them to the system"
            )

    def fill(self, num_bytes: int) -> int:
        """Read about so much of what stays in memory; returns the bytes that are left.

        Raises:
            ModelFileError: the file cannot be read.
        """
        left: int = lib.dyspec_weight_stream_fill(self.handle.address, num_bytes)
        if left < 0:
            raise self.failure() or ModelFileError(f"{self._paths[0]}: cannot be read")
        return left

    def failure(self) -> ModelFileError | None:
        """Why no pass can run any more."""
        file, number = ctypes.c_int32(), ctypes.c_int32()
        kind = lib.dyspec_weight_stream_failure(
            self.handle.address, ctypes.byref(file), ctypes.byref(number)
        )
        if kind == 0:
            return None
        path = self._paths[file.value]
        if kind == 1:
            reason = f"cannot be read any more: {os.strerror(number.value)}"
        else:
            reason = "was cut off" if kind == 2 else "was written to"
            reason += " while its weights were read from it"
        return ModelFileError(f"{path}: {reason}; load the model again when the file is whole")

    def totals(self) -> StreamTotals:
        """What has been read so far."""
        found = np.zeros(6, np.float64)
        lib.dyspec_weight_stream_totals(self.handle.address, found.ctypes.data)
        num_bytes, num_row_bytes, read, wait, passes, jumps = found.tolist()
        return StreamTotals(int(num_bytes), int(num_row_bytes), read, wait, int(passes), int(jumps))

    def close(self) -> None:
        """Stop reading; the model can only be closed then.  Idempotent."""
        self.handle.close()


class Gate:
    """Where the passes of one context wait for their weights.

    Attributes:
        eval_address, abort_address: of the ggml_backend_sched_eval_callback and the
            ggml_abort_callback, whose data is `handle.address`.
    """

    eval_address: int = address_of(lib.dyspec_gate_eval)
    abort_address: int = address_of(lib.dyspec_gate_abort)

    def __init__(self, stream: WeightStream, flag: AbortFlag) -> None:
        self._flag = flag
        self.stream = stream
        self.handle = Handle(
            lib.dyspec_gate_create(stream.handle.address, flag.address),
            lib.dyspec_gate_free,
            uses=[stream.handle],
        )

    def watch(self, flag: AbortFlag) -> None:
        """From now on `flag` ends waiting."""
        lib.dyspec_gate_watch(self.handle.address, flag.address)
        self._flag = flag
