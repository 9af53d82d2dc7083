"""Speculative decoding with dynamic token trees (DySpec) for GGUF models.

`Engine.load` opens a target and a draft, `engine.stream` and `engine.generate` produce text;
`Llama` is the same behind llama-cpp-python's interface.  The names below are the whole public
interface; what is behind them is imported only when it is asked for, so that `import dyspec_edge`
stays quick.
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
    EngineBusy,
    ModelFileError,
    OptionError,
    VocabularyError,
)

if TYPE_CHECKING:
    from dyspec_edge.compat import Llama
    from dyspec_edge.engine import (
        AsyncEngine,
        Chunk,
        Completion,
        Engine,
        EngineConfig,
        Prompt,
        SamplingParams,
        Stats,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncEngine",
    "Cancelled",
    "Chunk",
    "Completion",
    "ContextOverflow",
    "DecodeError",
    "DeviceError",
    "DownloadError",
    "DyspecError",
    "Engine",
    "EngineBusy",
    "EngineConfig",
    "Llama",
    "ModelFileError",
    "OptionError",
    "Prompt",
    "SamplingParams",
    "Stats",
    "VocabularyError",
    "__version__",
]

_ROOMS = {
    "AsyncEngine": "engine",
    "Chunk": "engine",
    "Completion": "engine",
    "Engine": "engine",
    "EngineConfig": "engine",
    "Llama": "compat",
    "Prompt": "engine",
    "SamplingParams": "engine",
    "Stats": "engine",
}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dyspec_edge.{_ROOMS[name]}"), name)
