"""Hidden states: what a target gives to the multi-token-prediction head in its own file.

llama.cpp exports the functions outside its public header; where a build lacks them, no head drafts.
"""

from __future__ import annotations

import importlib
from typing import Any

from dyspec_edge import native

try:
    _ext: Any = importlib.import_module("llama_cpp.llama_cpp_ext")
except (ImportError, AttributeError):  # raised there for a symbol that is missing
    _ext = None

GETTER = "get_embeddings_nextn"


def are_available() -> bool:
    """Whether this llama.cpp gives hidden states."""
    return _ext is not None


def enable(context: Any) -> None:
    """Let every pass of a llama_context leave the hidden states of all its rows."""
    _ext.llama_set_embeddings_nextn(context, True, False)


def choose_layer(context: Any, layer: int) -> None:
    """Let the passes of a head's llama_context run one layer of those that the head has."""
    _ext.llama_set_nextn_layer_offset(context, layer)


def address(context: Any) -> int:
    """Of float32[rows of the last pass, num_embd], until the next pass."""
    return native.address_of(_ext.llama_get_embeddings_nextn(context))


def getter_address() -> int:
    """Of llama.cpp's function; 0 where there is none."""
    return native.address_of(_ext.llama_get_embeddings_nextn) if _ext is not None else 0
