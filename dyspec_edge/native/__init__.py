"""The door to libdyspec, the C++ helper for what is hot in a step (native/include/dyspec.h).

Thin typed wrappers: arrays and addresses pass through without copies, negative codes become
errors.  An *address* is that of memory which the caller keeps alive, as llama.cpp's logits.
Arrays must be C-contiguous and of the dtype that is named; others raise TypeError.  This package
must not know models, policies or what a token means.
"""

from __future__ import annotations

from dyspec_edge.native.abort import AbortFlag, abort_callback_address
from dyspec_edge.native.expansion import Expansion
from dyspec_edge.native.handle import Handle, Used
from dyspec_edge.native.library import (
    BACKEND_FUNCTIONS,
    GRAMMAR_FUNCTIONS,
    GRAPH_FUNCTIONS,
    LLAMA_FUNCTIONS,
    MAX_SEQUENCES,
    Int32s,
    address_of,
    lib,
    library_path,
    pointer,
)
from dyspec_edge.native.noise import gumbel, gumbel_argmax, philox, uniform
from dyspec_edge.native.planning import WIDTHS, Plan, Planner
from dyspec_edge.native.proposer import Proposer
from dyspec_edge.native.rows import argmax, fill_candidates, simd, topk
from dyspec_edge.native.tree import Tree, depth_first, tree_struct
from dyspec_edge.native.weight_stream import (
    Gate,
    Place,
    StreamTotals,
    Use,
    Weight,
    WeightStream,
)

__all__ = [
    "BACKEND_FUNCTIONS",
    "GRAMMAR_FUNCTIONS",
    "GRAPH_FUNCTIONS",
    "LLAMA_FUNCTIONS",
    "MAX_SEQUENCES",
    "WIDTHS",
    "AbortFlag",
    "Expansion",
    "Gate",
    "Handle",
    "Int32s",
    "Place",
    "Plan",
    "Planner",
    "Proposer",
    "StreamTotals",
    "Tree",
    "Use",
    "Used",
    "Weight",
    "WeightStream",
    "abort_callback_address",
    "address_of",
    "argmax",
    "depth_first",
    "fill_candidates",
    "gumbel",
    "gumbel_argmax",
    "lib",
    "library_path",
    "philox",
    "pointer",
    "simd",
    "topk",
    "tree_struct",
    "uniform",
]
