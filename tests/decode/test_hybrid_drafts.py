"""Drafts with a recurrent state: chains, taken back by copies of it; the text is the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import TinyPair
from tests.decode.test_loop import (
    COOL,
    GREEDY,
    PENALISED,
    WARM,
    PlainTexts,
    assert_caches_hold,
    prompt,
    tokens_of,
    until_cancelled,
)
from tests.decoding import (
    PlainReference,
    aborted_after,
    evaluate_root,
    is_partial_refusal,
    model_drafter,
    opened_decoder,
    reply,
    steps,
)
from tests.tiny_architectures import Architecture

LONGEST = 8
PAIRS: list[tuple[Architecture, Architecture]] = [
    ("llama", "lfm2"),
    ("llama", "qwen35"),
    ("llama", "jamba"),
    ("qwen35", "nemotron_h"),
    ("jamba", "mamba"),
]
POLICIES = ["chain:1", "chain:6", "chain:8:0.3", "sequoia:24", "dyspec:16", "dyspec-threshold:16"]


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest, tiny_hybrid: Callable[..., TinyPair]) -> TinyPair:
    return tiny_hybrid(*request.param)


@pytest.fixture(scope="module")
def plain(pair: TinyPair) -> Iterator[PlainTexts]:
    with opened_decoder(pair, "none", num_snapshots=LONGEST) as decoder:
        yield PlainTexts(decoder)


@pytest.mark.parametrize("policy", [*POLICIES, "priced"])
def test_match_says_what_plain_decoding_says(
    pair: TinyPair, plain: PlainTexts, policy: str
) -> None:
    drafted = accepted = partly = 0
    with opened_decoder(pair, policy, num_snapshots=LONGEST, is_draft_hybrid=True) as decoder:
        for params in (GREEDY, COOL, WARM, PENALISED):
            for seed in (1, 2):
                text = prompt(seed=seed)
                found = list(steps(decoder, text, params, seed=seed, max_tokens=60))
                wanted = plain.reply(tuple(text), params, seed, 60)
                assert tokens_of(found) == wanted
                assert_caches_hold(decoder, [*text, *wanted])
                assert all(step.is_chain for step in found)
                drafted += sum(step.num_drafted for step in found)
                accepted += sum(step.num_accepted for step in found)
                partly += sum(map(is_partial_refusal, found))
        drafter = model_drafter(decoder)
        known = list(drafter.cache.tokens)
        row = evaluate_root(drafter.cache, wanted[-1])
        reference = PlainReference(pair.draft)
        assert float(abs(row - reference.logits([*known, wanted[-1]])[-1]).max()) < 1e-3
        reference.close()
    assert drafted > 100
    assert accepted > 30
    assert partly > 5 or decoder.policy.max_nodes == 1


def test_turns_stops_and_rewinds(pair: TinyPair, plain: PlainTexts) -> None:
    """A second turn lets the draft read only what is new, whatever the first one's end became."""
    with opened_decoder(pair, "chain:6", num_snapshots=LONGEST, is_draft_hybrid=True) as decoder:
        history = prompt(200)
        drafter = model_drafter(decoder)
        for turn in range(4):
            out = reply(decoder, history, WARM, seed=turn, max_tokens=80)
            assert out == plain.reply(tuple(history), WARM, turn, 80)
            decoder.rewind(len(history) + 40)  # a stop string
            history = [*history, *out[-20:], *prompt(30, seed=turn + 5)[1:]]
            drafter.begin(history[:-1], drafter.ranking)  # type: ignore[arg-type]
            assert drafter.num_behind < 100


def test_an_abort_at_any_step(pair: TinyPair, plain: PlainTexts) -> None:
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    with opened_decoder(pair, "chain:4", num_snapshots=LONGEST, is_draft_hybrid=True) as decoder:
        drafter = model_drafter(decoder)
        for what, where in ((decoder.policy, "grow"), (drafter, "propose")):
            for at in range(4):
                with aborted_after(decoder, what, where, at):
                    out = until_cancelled(decoder, text)
                    decoder.clear_abort()
                    assert out == wanted[: len(out)]
                    assert reply(decoder, text, WARM, seed=1, max_tokens=60) == wanted[:60]
