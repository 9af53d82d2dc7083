"""The one door to llama.cpp: models, contexts and samplers with owners and typed errors.

This package alone imports llama-cpp-python, and only its low-level API.  It knows token ids,
positions and sequence ids; it must not know trees, drafts or text beyond a token's bytes.
llama.cpp's log is silent unless `set_verbose(True)`; its last complaint is kept, so that an error
can name its cause.
"""

from __future__ import annotations

from dyspec_edge.llama.context import (
    CACHE_TYPES,
    FLASH_ATTN,
    UBATCH,
    UNQUANTIZED,
    Context,
)
from dyspec_edge.llama.devices import Device, gpu_devices, supports_gpu
from dyspec_edge.llama.grammar import create_grammar
from dyspec_edge.llama.log import set_verbose
from dyspec_edge.llama.model import Attribute, InfillTokens, Model
from dyspec_edge.llama.sampler import SamplerChain, SamplingParams
from dyspec_edge.native import MAX_SEQUENCES

__all__ = [
    "CACHE_TYPES",
    "FLASH_ATTN",
    "MAX_SEQUENCES",
    "UBATCH",
    "UNQUANTIZED",
    "Attribute",
    "Context",
    "Device",
    "InfillTokens",
    "Model",
    "SamplerChain",
    "SamplingParams",
    "create_grammar",
    "gpu_devices",
    "set_verbose",
    "supports_gpu",
]
