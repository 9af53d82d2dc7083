"""Finding, opening and describing libdyspec: the one place that repeats dyspec.h for ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as address_t
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import DyspecError

Int32s = npt.NDArray[np.int32]

ABI_VERSION = 18

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ

NOT_FINITE = -2
OUT_OF_SEQUENCES = -3
DECODE_FAILED = -4
CALLER_FAILED = -5
NOTHING_FITS = -6
FIRST_BAD_ROW = -1000


class WeightStruct(ctypes.Structure):
    """dyspec_weight, field by field."""

    _fields_ = (
        *((name, c_uint64) for name in ("address", "size", "offset", "row_size")),
        ("file", c_int32),
    )


class TreeStruct(ctypes.Structure):
    """dyspec_tree, field by field."""

    _fields_ = (
        *((name, address_t) for name in ("token", "parent", "depth", "n_children")),
        *((name, address_t) for name in ("confidence", "value", "terminal")),
        *((name, address_t) for name in ("cand_ids", "cand_probs", "n_cand")),
        *((name, c_int32) for name in ("n_nodes", "capacity", "n_ranks")),
    )


LLAMA_FUNCTIONS = (
    *("decode", "synchronize", "get_logits", "memory_seq_rm", "memory_seq_cp"),
    *("state_seq_get_size_ext", "state_seq_get_data_ext", "state_seq_set_data_ext"),
    "get_embeddings_nextn",
)
"""Functions of llama.cpp, without their prefix, whose addresses dyspec_llama holds in its order."""

GRAMMAR_FUNCTIONS = (
    *(f"sampler_{name}" for name in ("clone", "apply", "accept", "free")),
    *("vocab_is_control", "vocab_is_eog"),
)
"""Those whose addresses dyspec_grammar_functions holds, in its order."""

BACKEND_FUNCTIONS = (
    *(f"ggml_{name}" for name in ("nelements", "view_1d", "cont", "reshape_2d", "top_k")),
    *(f"ggml_{name}" for name in ("get_rows", "soft_max", "set_output")),
    *(f"ggml_{name}" for name in ("init", "free", "tensor_overhead", "new_tensor_1d")),
    *("ggml_get_first_tensor", "ggml_get_next_tensor"),
    *("ggml_backend_buft_get_device", "ggml_backend_dev_supports_op"),
    "llama_sampler_init",
    *("llama_get_sampled_candidates_ith", "llama_get_sampled_candidates_count_ith"),
    *("llama_get_sampled_logits_ith", "llama_get_sampled_logits_count_ith"),
    *("llama_get_sampled_probs_ith", "llama_get_sampled_probs_count_ith"),
)
"""Functions of ggml and llama.cpp whose addresses dyspec_backend_functions holds, in its order."""

GRAPH_FUNCTIONS = ("op_desc", "get_data", "nelements")
"""Functions of ggml, without their prefix, whose addresses dyspec_graph_functions holds."""


_NOISE = [c_uint64, c_uint32, c_uint32]

# name: (result, arguments), in the order of dyspec.h
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "dyspec_abi_version": (c_int32, []),
    "dyspec_simd": (ctypes.c_char_p, []),
    "dyspec_topk": (c_int32, [address_t, c_int32, c_int32, c_int32, *[address_t] * 3, c_int32]),
    "dyspec_backend_sampler_create": (address_t, [address_t, c_int32, c_int32]),
    "dyspec_backend_sampler_free": (None, [address_t]),
    "dyspec_backend_sampler_add": (address_t, [address_t]),
    "dyspec_backend_sampler_n_supported": (c_int32, [address_t]),
    "dyspec_backend_sampler_read": (c_int32, [*[address_t] * 3, c_int32, *[address_t] * 3]),
    "dyspec_uniform": (c_int32, [*_NOISE, address_t, c_int32, address_t]),
    "dyspec_gumbel": (c_int32, [*_NOISE, address_t, c_int32, address_t]),
    "dyspec_ranking_create": (
        address_t,
        [c_uint64, *[c_double] * 4, *[c_int32] * 3, address_t, address_t, c_int32],
    ),
    "dyspec_ranking_free": (None, [address_t]),
    "dyspec_grammar_create": (address_t, [address_t] * 3),
    "dyspec_grammar_free": (None, [address_t]),
    "dyspec_grammar_accept": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_grammar_follow": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_grammar_forced": (
        c_int32,
        [address_t, address_t, c_int32, c_int32, address_t, c_int32],
    ),
    "dyspec_grammar_start_step": (None, [address_t]),
    "dyspec_grammar_filter": (
        c_int32,
        [address_t, POINTER(TreeStruct), c_int32, address_t, address_t, c_int32],
    ),
    "dyspec_sampler_create": (address_t, [*[address_t] * 3, c_int32, c_uint64, c_int32]),
    "dyspec_sampler_free": (None, [address_t]),
    "dyspec_sampler_set_seed": (None, [address_t, c_uint64]),
    "dyspec_sampler_set_grammar": (None, [address_t, address_t]),
    "dyspec_sampler_sample": (c_int32, [address_t, address_t, c_uint32]),
    "dyspec_sampler_accept": (None, [address_t, address_t, c_int32]),
    "dyspec_sampler_apply": (c_int32, [address_t] * 4),
    "dyspec_sampler_seconds": (c_double, [address_t]),
    "dyspec_sampler_rows_seconds": (c_double, [address_t]),
    "dyspec_depth_first": (c_int32, [address_t, c_int32, address_t, address_t]),
    "dyspec_abort": (ctypes.c_bool, [address_t]),
    "dyspec_weight_stream_create": (
        address_t,
        [address_t, c_int32, address_t, c_int32, POINTER(WeightStruct), c_int32],
    ),
    "dyspec_weight_stream_free": (None, [address_t]),
    "dyspec_weight_stream_uses": (c_int32, [*[address_t] * 3, c_int32]),
    "dyspec_weight_stream_start": (
        c_int32,
        [*[address_t] * 3, c_int32, c_uint64, c_uint64, c_int32],
    ),
    "dyspec_weight_stream_fill": (c_int64, [address_t, c_uint64]),
    "dyspec_weight_stream_failure": (c_int32, [address_t, *[POINTER(c_int32)] * 2]),
    "dyspec_weight_stream_totals": (None, [address_t, address_t]),
    "dyspec_gate_create": (address_t, [address_t, address_t]),
    "dyspec_gate_free": (None, [address_t]),
    "dyspec_gate_watch": (None, [address_t, address_t]),
    "dyspec_gate_eval": (ctypes.c_bool, [address_t, ctypes.c_bool, address_t]),
    "dyspec_gate_abort": (ctypes.c_bool, [address_t]),
    "dyspec_cache_create": (address_t, [*[address_t] * 3, *[c_int32] * 8]),
    "dyspec_cache_free": (None, [address_t]),
    "dyspec_cache_pad_to": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_cache_set_states": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_cache_share_states": (None, [address_t, address_t]),
    "dyspec_cache_read": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_cache_evaluate": (
        c_int32,
        [address_t, POINTER(TreeStruct), *[address_t, c_int32] * 2],
    ),
    "dyspec_cache_failure": (c_int32, [address_t, POINTER(c_int32)]),
    "dyspec_cache_commit": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_cache_rewind": (c_int32, [address_t, c_int32]),
    "dyspec_cache_save": (c_int32, [address_t, c_int32]),
    "dyspec_cache_state_size": (c_int64, [address_t]),
    "dyspec_cache_state_get": (c_int64, [address_t, address_t, c_int64]),
    "dyspec_cache_state_set": (c_int32, [address_t, address_t, c_int64, c_int32]),
    "dyspec_cache_time_pass": (c_int32, [address_t, c_int32, POINTER(c_double)]),
    "dyspec_cache_length": (c_int32, [address_t]),
    "dyspec_cache_n_passes": (c_int64, [address_t]),
    "dyspec_cache_n_rows": (c_int64, [address_t]),
    "dyspec_cache_decode_seconds": (c_double, [address_t]),
    "dyspec_cache_sequence_seconds": (c_double, [address_t]),
    "dyspec_cache_rows": (None, [address_t, address_t]),
    "dyspec_verify": (
        c_int32,
        [
            *[address_t] * 3,
            *[POINTER(TreeStruct), address_t, c_int32, c_uint32, address_t, address_t],
            *[POINTER(c_int32), POINTER(c_double)],
        ],
    ),
    "dyspec_drafter_create": (address_t, [address_t, c_int32, address_t, c_int32]),
    "dyspec_drafter_free": (None, [address_t]),
    "dyspec_drafter_set_backend_sampler": (None, [address_t, address_t]),
    "dyspec_drafter_translate": (None, [address_t, *[address_t, c_int32] * 2]),
    "dyspec_drafter_set_root": (None, [address_t, c_int32]),
    "dyspec_drafter_start_step": (
        None,
        [address_t, POINTER(TreeStruct), *[address_t] * 3, c_int32, c_int32],
    ),
    "dyspec_drafter_propose": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_drafter_passes": (c_int32, [*[address_t] * 3, c_int32]),
    "dyspec_drafter_rows_seconds": (c_double, [address_t]),
    "dyspec_expansion_create": (
        address_t,
        [POINTER(TreeStruct), *[c_int32] * 3, address_t, c_int32],
    ),
    "dyspec_expansion_free": (None, [address_t]),
    "dyspec_expansion_reset": (c_int32, [address_t, c_int32, c_double]),
    "dyspec_expansion_grow": (c_int32, [address_t] * 4),
    "dyspec_planner_create": (
        address_t,
        [POINTER(TreeStruct), *[c_int32] * 3, c_float, address_t, c_int32],
    ),
    "dyspec_planner_free": (None, [address_t]),
    "dyspec_planner_set_prices": (
        None,
        [address_t, address_t, *[c_double] * 3, c_int32, address_t, address_t],
    ),
    "dyspec_planner_plan": (c_int32, [address_t, address_t, POINTER(c_int32)]),
    "dyspec_planner_grow": (c_int32, [address_t] * 4),
    **{
        f"dyspec_{name}_layout": (c_int32, [address_t, c_int32])
        for name in ("tree", "batch", "candidates", "candidate")
    },
    "dyspec_philox": (None, [address_t] * 3),
    "dyspec_argmax": (c_int32, [address_t, c_int32]),
    "dyspec_fill_candidates": (c_int32, [address_t, c_int32, address_t]),
    "dyspec_gumbel_argmax": (c_int64, [address_t, c_int64, *_NOISE]),
    "dyspec_rank": (c_int32, [address_t, c_int32, c_int32, *[address_t] * 6]),
    "dyspec_expansion_run": (c_int32, [address_t, address_t]),
    "dyspec_expansion_n_leaves": (c_int32, [address_t]),
    "dyspec_planner_enter": (c_int32, [address_t, address_t, c_int32]),
    "dyspec_match": (
        c_int32,
        [
            *[address_t, POINTER(TreeStruct), address_t, c_uint32, address_t, address_t],
            POINTER(c_int32),
        ],
    ),
    "dyspec_assign_sequences": (
        c_int32,
        [
            *[address_t, c_int32, address_t, address_t, c_int32, address_t, address_t],
            *[POINTER(c_int32), c_int32, *[address_t] * 4],
        ],
    ),
}


_REMEDY = "install dyspec-edge anew; in a checkout: `make install`"


def file_name(platform: str = sys.platform) -> str:
    """The library's name on a platform, as sys.platform spells it."""
    return {"win32": "dyspec.dll", "darwin": "libdyspec.dylib"}.get(platform, "libdyspec.so")


def _load(path: Path) -> ctypes.CDLL:
    if not path.exists():
        raise DyspecError(f"{path} is missing; {_REMEDY}")
    try:
        lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise DyspecError(f"{path} cannot be used ({error}); {_REMEDY}") from error
    version = lib.dyspec_abi_version()
    if version != ABI_VERSION:
        raise DyspecError(
            f"{path} has interface version {version}, this package wants {ABI_VERSION}; {_REMEDY}"
        )
    return lib


_BYTE = ctypes.c_char
_DTYPES: dict[Any, Any] = {
    scalar: np.dtype(scalar)
    for scalar in (np.int8, np.uint8, np.int32, np.uint64, np.float32, np.float64)
}


def address_of(of: Any) -> int:
    """The address of a function, or the one that a ctypes pointer holds; 0 for a null pointer."""
    return ctypes.cast(of, address_t).value or 0


def pointer(array: npt.NDArray[Any], dtype: Any, size: int) -> int:
    """The address of an array's data; 0 where nothing of it is wanted.

    Raises:
        TypeError: another dtype, not in one piece, or fewer than `size` entries.
    """
    if size == 0:
        return 0
    if array.dtype is _DTYPES.get(dtype) and array.size >= size:
        try:
            # A fraction of the time of all the checks below; refuses what is not in one piece.
            memory: Any = array
            return ctypes.addressof(_BYTE.from_buffer(memory))
        except (TypeError, ValueError):
            pass  # read-only or empty, which is allowed
    if array.dtype != dtype or not array.flags.c_contiguous or array.size < size:
        raise TypeError(
            f"{np.dtype(dtype).name}[{size}] in one piece is wanted, "
            f"not {array.dtype.name}{list(array.shape)}"
        )
    return int(array.ctypes.data)


# Among the modules of the package, in a checkout and in a wheel alike.  Tests name another build of
# it: one with sanitizers.
library_path = Path(__file__).resolve().parent.parent / os.environ.get(
    "DYSPEC_LIBRARY", file_name()
)
lib = _load(library_path)
