"""Where llama.cpp has the weights of a mapped model, and how its graphs use them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import llama_cpp

from dyspec_edge import native
from dyspec_edge.errors import DeviceError
from dyspec_edge.llama.context import Context
from dyspec_edge.llama.model import Model
from dyspec_edge.llama.symbols import ggml

_F32, _I32 = 0, 26  # ggml_type


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor of a file: offset and sizes in bytes; `row_size` is its first dimension's."""

    path: Path
    offset: int
    size: int
    row_size: int


def open_stream(
    model: Model, stored: Sequence[StoredWeight]
) -> tuple[native.WeightStream, tuple[StoredWeight, ...]]:
    """Let contexts of a model that llama.cpp has mapped wait for its weights from now on.

    Returns:
        The stream, not yet started, and the weights in its order.

    Raises:
        DeviceError: this system or this model cannot do it.
    """
    bases = _mappings([*dict.fromkeys(weight.path for weight in stored)])
    paths = list(bases)
    ordered = tuple(sorted(stored, key=lambda w: bases[w.path] + w.offset))
    weights = [
        native.Weight(bases[w.path] + w.offset, w.size, w.offset, w.row_size, paths.index(w.path))
        for w in ordered
    ]
    functions = [native.address_of(ggml(name)) for name in native.GRAPH_FUNCTIONS]
    stream = native.WeightStream(functions, _src_offset(), paths, weights)
    model.weight_stream = stream
    return stream, ordered


def uses_in_a_pass(model: Model) -> list[tuple[int, native.Use]]:
    """Which weights of the model's stream a pass uses, in order, by their positions.

    A pass is begun for it and stopped after its first node.
    """
    assert model.weight_stream is not None
    context = Context(model, num_ctx=256, num_sequences=1, num_outputs=1, num_threads=1)
    with closing(context):
        context.abort_flag.set()
        token = (llama_cpp.llama_token * 1)(0)
        llama_cpp.llama_decode(context.handle, llama_cpp.llama_batch_get_one(token, 1))
        return model.weight_stream.uses()


def _mappings(paths: Sequence[Path]) -> dict[Path, int]:
    """Where each file would begin, had all of it been mapped; the newest mapping counts."""
    found: dict[Path, int] = {}
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        raise DeviceError("weights can be streamed on Linux only") from None
    for path in paths:
        name = str(path.resolve())
        for fields in (line.split(maxsplit=5) for line in lines):
            if len(fields) == 6 and fields[5] == name:
                found[path] = int(fields[0].split("-")[0], 16) - int(fields[2], 16)
        if path not in found:
            raise DeviceError(f"{path}: its weights cannot be streamed, as it is not mapped")
    return found


def _src_offset() -> int:
    """Of `src` in ggml_tensor: where a node that was made of two tensors has their addresses."""
    functions = {
        name: _typed(name, result, arguments)
        for name, result, arguments in (
            ("init", ctypes.c_void_p, [_InitParams]),
            ("free", None, [ctypes.c_void_p]),
            ("tensor_overhead", ctypes.c_size_t, []),
            ("new_tensor_1d", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]),
            ("get_rows", ctypes.c_void_p, [ctypes.c_void_p] * 3),
        )
    }
    size = functions["tensor_overhead"]()
    context = functions["init"](_InitParams(8 * size, None, True))
    try:
        data = functions["new_tensor_1d"](context, _F32, 4)
        rows = functions["new_tensor_1d"](context, _I32, 2)
        node = functions["get_rows"](context, data, rows)
        words = list((ctypes.c_uint64 * (size // 8)).from_address(node))
    finally:
        functions["free"](context)
    for i, pair in enumerate(pairwise(words)):
        if pair == (data, rows):
            return 8 * i
    raise DeviceError("this build of llama.cpp is not known: its weights cannot be streamed")


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def _typed(name: str, result: Any, arguments: list[Any]) -> Any:
    # A function object of its own: what llama-cpp-python has declared stays as it is.
    return ctypes.CFUNCTYPE(result, *arguments)(native.address_of(ggml(name)))
