"""Figures that must fit together, on replies of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dyspec_edge.decode.draft.interface import DraftTotals
from dyspec_edge.decode.loop import Step
from dyspec_edge.decode.stats import Counters, summarise
from dyspec_edge.engine import Engine, SamplingParams, Stats
from dyspec_edge.native import StreamTotals
from tests.conftest import TinyPair
from tests.engines import PROMPT, opened

FIELDS = [
    "seed",
    "policy",
    "verify",
    "temperature",
    "time_to_first_token",
    "speedup",
    "draft_tokens",
    "accepted_tokens",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "steps",
    "block_efficiency",
    "acceptance_rate",
    "accept_length_histogram",
    "tokens_per_second",
    "prompt_tokens_per_second",
    "target_seconds",
    "draft_seconds",
    "rows_seconds",
    "sampling_seconds",
    "overhead_seconds",
    "draft_passes",
    "draft_rows",
    "target_rows",
]


@pytest.fixture(scope="module", params=["none", "chain:4", "dyspec:8", "dyspec-threshold:16"])
def engine(request: pytest.FixtureRequest, tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(*tiny_pair, policy=request.param) as engine:
        yield engine


def assert_consistent(stats: Stats, engine: Engine) -> None:
    histogram = stats.accept_length_histogram
    assert sum(histogram) == stats.steps
    assert sum(i * n for i, n in enumerate(histogram)) == stats.accepted_tokens
    assert not histogram or histogram[-1] > 0
    assert stats.block_efficiency * stats.steps == pytest.approx(stats.generated_tokens)
    assert stats.accepted_tokens <= min(stats.generated_tokens, stats.draft_tokens)
    if stats.draft_tokens:
        assert stats.acceptance_rate == stats.accepted_tokens / stats.draft_tokens
    assert stats.target_rows == stats.steps + stats.draft_tokens

    parts = (
        stats.target_seconds,
        stats.draft_seconds,
        stats.rows_seconds,
        stats.sampling_seconds,
        stats.overhead_seconds,
    )
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(stats.decode_seconds, rel=1e-6)
    assert 0 < stats.prefill_seconds < stats.time_to_first_token
    assert stats.time_to_first_token <= stats.prefill_seconds + stats.decode_seconds + 1.0
    assert stats.tokens_per_second == pytest.approx(stats.generated_tokens / stats.decode_seconds)
    new = stats.prompt_tokens - stats.cached_tokens
    assert stats.prompt_tokens_per_second == pytest.approx(new / stats.prefill_seconds)
    assert stats.plain_seconds_per_token is not None
    expected = stats.tokens_per_second * stats.plain_seconds_per_token
    assert stats.speedup == pytest.approx(expected)
    assert stats.context_used == stats.prompt_tokens + stats.generated_tokens
    assert stats.num_ctx == engine.num_ctx


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_figures_fit_together(engine: Engine, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3)
    stats = engine.generate(PROMPT, sampling=sampling, max_tokens=50).stats
    assert_consistent(stats, engine)
    assert stats.temperature == temperature
    assert (stats.seed, stats.verify) == (3, "match")
    policy = engine.config.policy
    assert stats.policy == policy
    drafts = policy != "none"
    for figure in (stats.draft_tokens, stats.draft_passes, stats.draft_rows, stats.draft_seconds):
        assert (figure > 0) == drafts
    assert (stats.rows_seconds > 0) == (drafts or temperature == 0)
    assert (stats.sampling_seconds > 0) == (temperature > 0)
    if not drafts:
        assert stats.block_efficiency == 1.0
        assert stats.accept_length_histogram == (stats.steps,)


def test_the_figures_of_cut_replies_fit_together(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.0, seed=3)
    text = engine.generate(PROMPT, sampling=sampling, max_tokens=50).text
    for stop in (text[7:9], text[12:20], text[30]):
        reply = engine.generate(PROMPT, sampling=sampling, max_tokens=50, stop=[stop])
        assert_consistent(reply.stats, engine)
        assert reply.stats.generated_tokens == len(reply.tokens)
    for max_tokens in (1, 2, 3):
        reply = engine.generate(PROMPT, sampling=sampling, max_tokens=max_tokens)
        assert_consistent(reply.stats, engine)


def test_each_reply_has_its_own_figures(engine: Engine) -> None:
    for _ in range(3):
        stats = engine.generate(PROMPT, sampling=SamplingParams(seed=3), max_tokens=20).stats
        assert_consistent(stats, engine)
        assert stats.generated_tokens <= 20


def test_each_token_of_a_chain_costs_one_draft_pass(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair, policy="chain:4") as engine:
        stats = engine.generate(PROMPT, sampling=SamplingParams(seed=3), max_tokens=50).stats
    assert stats.draft_passes == stats.draft_tokens
    # After a wholly accepted chain its last token is read beside the next root.
    caught_up = stats.draft_rows - stats.draft_passes
    assert 0 <= caught_up - stats.accept_length_histogram[4] <= 1


def test_json_has_every_field(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair) as engine:
        stats = engine.generate(PROMPT, max_tokens=20).stats
    document = json.loads(json.dumps(stats.as_dict(), allow_nan=False))
    assert set(document) >= set(FIELDS)
    assert document["accept_length_histogram"] == list(stats.accept_length_histogram)
    assert all(isinstance(value, (int, float, str, list, dict)) for value in document.values())


# By hand


@pytest.fixture
def by_hand() -> Callable[..., Stats]:
    """`summarise` for a decoder whose totals are made up."""

    def make(steps: list[Step], **changes: Any) -> Stats:
        totals = DraftTotals(pass_seconds=2.5, rows_seconds=0.25, num_passes=13, num_rows=29)
        conversation: Any = SimpleNamespace(
            target=SimpleNamespace(decode_seconds=5.0, num_rows=40, stream_totals=StreamTotals()),
            drafter=SimpleNamespace(totals=totals, read_seconds=0.75),
            policy=SimpleNamespace(name="dyspec:3", figures=lambda: {"a": 0.5}),
            verifier=SimpleNamespace(name="match"),
        )
        sampler: Any = SimpleNamespace(seed=7, temperature=0.5, rows_seconds=0.5, seconds=0.25)
        values: dict[str, Any] = {
            "conversation": conversation,
            "sampler": sampler,
            "before": Counters(4.0, 1.5, 0.25, 0.125, 33, 9, 17, None, StreamTotals()),
            "steps": steps,
            "num_generated": 4,
            "prompt_tokens": 12,
            "cached_tokens": 2,
            "time_to_first_token": 3.5,
            "prefill_seconds": 2.5,
            "num_ctx": 64,
            "measured_plain": 2.0,
        }
        return summarise(**{**values, **changes})

    return make


def test_figures_by_hand(by_hand: Callable[..., Stats]) -> None:
    steps = [Step((5, 6, 7), 3, 2, (0, 1, 2), 3.0, is_chain=False), Step((8,), 3, 0, (0,), 1.0)]
    assert by_hand(steps) == Stats(
        seed=7,
        policy="dyspec:3",
        verify="match",
        temperature=0.5,
        time_to_first_token=3.5,
        speedup=2.0,
        prompt_tokens=12,
        cached_tokens=2,
        generated_tokens=4,
        draft_tokens=6,
        accepted_tokens=2,
        steps=2,
        block_efficiency=2.0,
        acceptance_rate=2 / 6,
        accept_length_histogram=(1, 0, 1),
        tokens_per_second=1.0,
        prompt_tokens_per_second=4.0,
        prefill_seconds=3.0,  # half a second of it in a step
        decode_seconds=4.0,
        target_seconds=1.0,
        draft_seconds=1.0,
        rows_seconds=0.625,
        sampling_seconds=0.25,
        overhead_seconds=1.125,
        draft_passes=4,
        draft_rows=12,
        target_rows=7,
        context_used=16,
        num_ctx=64,
        plain_seconds_per_token=2.0,
        plain_steps=0,
        chain_steps=1,
        tree_steps=1,
        tree_size_histogram=(0, 0, 0, 2),
        learned={"a": 0.5},
    )


def test_a_reply_without_a_step_divides_by_nothing(by_hand: Callable[..., Stats]) -> None:
    stats = by_hand([], num_generated=0, prefill_seconds=0.0, measured_plain=None)
    assert (stats.steps, stats.block_efficiency, stats.acceptance_rate) == (0, 0.0, 0.0)
    assert (stats.tokens_per_second, stats.prompt_tokens_per_second) == (0.0, 0.0)
    assert (stats.speedup, stats.accept_length_histogram) == (None, ())
    json.dumps(stats.as_dict(), allow_nan=False)


def test_an_account_of_plain_decoding_goes_before_what_was_measured(
    by_hand: Callable[..., Stats], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_decoder: object) -> Counters:
        return Counters(5.0, 2.0, 0.0, 0.25, 40, 10, 20, 16.0, StreamTotals(9000, 10, 2.5, 1.5))

    monkeypatch.setattr(Counters, "read", read)
    steps = [Step((5, 6, 7), 3, 2, (0, 1, 2), 3.0, is_chain=False), Step((8,), 0, 0, (0,), 1.0)]
    stream = StreamTotals(1000, 0, 0.5, 0.25)
    stats = by_hand(steps, before=Counters(4.0, 1.5, 0.0, 0.125, 33, 9, 17, 10.0, stream))
    assert stats.streamed_bytes == 8000
    assert (stats.stream_read_seconds, stats.stream_wait_seconds) == (2.0, 1.25)
    assert stats.plain_seconds_per_token == 1.5  # 6 seconds for 4 tokens
    assert stats.speedup == stats.tokens_per_second * 1.5
