"""Speculative decoding with dynamic token trees (DySpec) for GGUF models.

`Engine.load` opens a target and a draft, `engine.stream` and `engine.generate` produce text.  The
names below are the whole public interface; the engine is imported only when it is asked for, so
that `import dyspec_edge` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dyspec_edge.errors import (
    Cancelled,
    ContextOverflow,
    DecodeError,
    DeviceError,
    DownloadError,
    DyspecError,
    ModelFileError,
    OptionError,
    VocabularyError,
)

if TYPE_CHECKING:
    from dyspec_edge.decode.sampling import SamplingParams
    from dyspec_edge.engine import Chunk, Completion, Engine, EngineConfig, Stats

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "Chunk",
    "Completion",
    "ContextOverflow",
    "DecodeError",
    "DeviceError",
    "DownloadError",
    "DyspecError",
    "Engine",
    "EngineConfig",
    "ModelFileError",
    "OptionError",
    "SamplingParams",
    "Stats",
    "VocabularyError",
    "__version__",
]

_HOMES = {
    "Chunk": "dyspec_edge.engine",
    "Completion": "dyspec_edge.engine",
    "Engine": "dyspec_edge.engine",
    "EngineConfig": "dyspec_edge.engine",
    "SamplingParams": "dyspec_edge.decode.sampling",
    "Stats": "dyspec_edge.engine",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
