"""What only a real file can show: `make test ARGS="-m model"` (fetches what is missing)."""

from __future__ import annotations

import pytest

from dyspec_edge.engine import Completion, Engine, EngineConfig, SamplingParams
from dyspec_edge.files import catalog, fetch

pytestmark = pytest.mark.model


def reply(pair: str, policy: str, prompt: str) -> Completion:
    """256 greedy tokens of the pair's target, which drafts for itself."""
    path = fetch.ensure(catalog.load()[pair].target)
    draft = None if policy == "none" else path
    config = EngineConfig(path, draft, policy=policy, num_ctx=4096, num_threads=1)
    with Engine.load(config) as engine:
        return engine.generate(
            prompt, raw=True, sampling=SamplingParams(temperature=0), max_tokens=256
        )


def test_a_sliding_window_that_has_moved_on_equals_plain_decoding() -> None:
    """Gemma 3 sees 512 tokens in most layers; the prompt has more than twice as many."""
    years = (
        f"In the year {1700 + i} a keeper counted {i * 7 % 101} ships near the "
        f"{('northern', 'southern', 'western', 'eastern')[i % 4]} cape."
        for i in range(60)
    )
    prompt = "The history of lighthouses is long. " + " ".join(years) + " Then"
    plain = reply("gemma3-270m", "none", prompt)
    tree = reply("gemma3-270m", "dyspec:16", prompt)
    assert plain.stats.prompt_tokens > 2 * 512
    assert tree.tokens == plain.tokens
    assert tree.stats.block_efficiency > 4
