"""Engines over tiny models, in the setting in which arithmetic is exact.

F32 caches, no flash attention, one thread, and a policy that is given: nothing is left to what a
machine happens to measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dyspec_edge.engine import Engine, EngineConfig, SamplingParams
from tests.decoding import model_drafter

PROMPT = "the tree is on"
NO_END = SamplingParams(seed=9, ignore_eos=True)
"""Replies that go on until something else ends them."""


def tiny_config(model: Path, draft: Path | None = None, **changes: Any) -> EngineConfig:
    """The exact setting; with a draft `dyspec:8`, without one plain decoding."""
    values: dict[str, Any] = {
        "num_ctx": 1024,
        "num_threads": 1,
        "flash_attn": "off",
        "cache_type_k": "f32",
        "cache_type_v": "f32",
        "policy": "none" if draft is None else "dyspec:8",
    }
    return EngineConfig(model, draft, **{**values, **changes})


@contextmanager
def opened(model: Path, draft: Path | None = None, **changes: Any) -> Iterator[Engine]:
    """An engine in that setting."""
    with Engine.load(tiny_config(model, draft, **changes)) as engine:
        yield engine


def text_of(engine: Engine, prompt: str = PROMPT, *, seed: int = 1, max_tokens: int = 40) -> str:
    """A reply's text."""
    sampling = SamplingParams(seed=seed)
    return engine.generate(prompt, sampling=sampling, max_tokens=max_tokens).text


def num_cached(engine: Engine) -> tuple[int, int]:
    """Tokens in the target's and in the draft's cache."""
    drafter = model_drafter(engine.conversation)
    return len(engine.conversation.target.tokens), len(drafter.cache.tokens)
