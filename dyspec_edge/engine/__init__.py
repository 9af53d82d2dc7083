"""Text in, text out: what chat, benchmarks, servers and embedding programs all use.

    messages -> Prompt (prompt.py) -> Reply (reply.py) -> Chunk, Chunk, ...

The engine knows chat templates, the text of tokens, stop strings and statistics.  Which token comes
next is decided in decode/, which knows no text.
"""

from __future__ import annotations

from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.decode.stats import Stats
from dyspec_edge.engine.asynchronous import AsyncEngine
from dyspec_edge.engine.engine import Engine
from dyspec_edge.engine.prompt import Prompt
from dyspec_edge.engine.reply import Chunk, Completion
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.text.template import Message

__all__ = [
    "AsyncEngine",
    "Chunk",
    "Completion",
    "Engine",
    "EngineConfig",
    "Message",
    "Prompt",
    "SamplingParams",
    "Stats",
]
