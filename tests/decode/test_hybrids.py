"""Hybrid targets, whose state cannot branch: chains, and the text that plain decoding gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.decode.verify import MatchVerifier
from tests.conftest import TinyPair
from tests.decode.test_loop import (
    COOL,
    GREEDY,
    PENALISED,
    WARM,
    PlainTexts,
    assert_caches_hold,
    exact_pairs,
    prompt,
    tokens_of,
    until_cancelled,
)
from tests.decoding import (
    PlainReference,
    aborted_after,
    evaluate_root,
    is_partial_refusal,
    opened_decoder,
    reply,
    steps,
)
from tests.tiny_architectures import HYBRIDS, Architecture

NUM_SNAPSHOTS = 8
ENDS_SOON = SamplingParams(temperature=1.0, logit_bias=((2, 7.0),))
POLICIES = [
    *(f"chain:{length}" for length in (1, 4, 8, 16)),
    "chain:8:0.3",
    "specinfer:4x2x2x1",
    "sequoia:24",
    "sequoia:24:3",
    "dyspec:4",
    "dyspec:64",
    "dyspec-threshold:16",
    "priced",
]


@pytest.fixture(scope="module", params=[*HYBRIDS, "mamba", "jamba"])
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def pair(architecture: Architecture, tiny_hybrid: Callable[..., TinyPair]) -> TinyPair:
    return tiny_hybrid(architecture)


@pytest.fixture(scope="module")
def plain(pair: TinyPair) -> Iterator[PlainTexts]:
    with opened_decoder(pair, "none") as decoder:
        yield PlainTexts(decoder)


@pytest.fixture(scope="module")
def reference(pair: TinyPair) -> Iterator[PlainReference]:
    with closing(PlainReference(pair.target, num_ctx=1024)) as found:
        yield found


@pytest.mark.parametrize("policy", POLICIES)
def test_match_says_what_plain_decoding_says(
    pair: TinyPair,
    plain: PlainTexts,
    reference: PlainReference,
    architecture: Architecture,
    policy: str,
) -> None:
    drafted = accepted = partly = 0
    with opened_decoder(pair, policy, num_snapshots=NUM_SNAPSHOTS) as decoder:
        wanted_snapshots = NUM_SNAPSHOTS if architecture in HYBRIDS else 0
        assert decoder.target.context.num_snapshots == wanted_snapshots
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
        last = wanted[-1]
        row = evaluate_root(decoder.target, last)
        assert np.abs(row - reference.logits([*text, *wanted])[-1]).max() < 1e-3
    assert drafted > 100
    assert accepted > 30
    assert partly > 5 or decoder.policy.max_nodes == 1


def test_logits_after_every_commit(pair: TinyPair, reference: PlainReference) -> None:
    """What each step starts from is what a fresh pass over the same text would give."""
    refused = set[int]()
    with opened_decoder(pair, "chain:6", num_snapshots=NUM_SNAPSHOTS) as decoder:
        context = decoder.target.context
        for params, seed in product((GREEDY, COOL), range(4)):
            for step in steps(decoder, prompt(seed=seed), params, seed=seed, max_tokens=60):
                size = len(step.path)
                wanted = reference.logits(decoder.target.tokens)[-size:]
                for place, row in enumerate(wanted):  # a chain's rows are in its order
                    address = context.logits_address() + 4 * context.model.num_vocab * place
                    assert np.abs(context.row_view(address) - row).max() < 1e-3
                refused.add(1 + step.num_drafted - size)
    assert refused >= set(range(7)), "from everything accepted to everything refused"


def test_residual_is_a_chain_too(pair: TinyPair) -> None:
    with opened_decoder(
        pair, "dyspec:8", verify="residual", num_snapshots=NUM_SNAPSHOTS
    ) as decoder:
        accepted = 0
        for seed in range(3):
            first = list(steps(decoder, prompt(), COOL, seed=seed, max_tokens=60))
            assert tokens_of(first) == reply(decoder, prompt(), COOL, seed=seed, max_tokens=60)
            accepted += sum(step.num_accepted for step in first)
    assert accepted > 5


def test_residual_follows_the_targets_distribution(
    tiny_six_hybrid: TinyPair,
) -> None:
    params = SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
    text, num_replies = [1, 3, 4, 5], 600
    wanted = exact_pairs(tiny_six_hybrid, text, params)
    observed = np.zeros_like(wanted)
    with (
        opened_decoder(
            tiny_six_hybrid, "dyspec:4", verify="residual", num_ctx=64, num_snapshots=4
        ) as decoder,
        closing(Sampler(decoder.target.context.model, params, 0)) as sampler,
    ):
        for seed in range(num_replies):
            sampler.seed = seed
            decoder.begin(text, sampler)
            out: list[int] = []
            for step in decoder.generate(4):
                out += step.tokens
                if len(out) >= 2:
                    break
            observed[out[0], out[min(1, len(out) - 1)]] += 1
    possible = wanted > 0
    assert observed[~possible].sum() == 0
    assert chisquare(observed[possible], num_replies * wanted[possible]).pvalue > 1e-3


@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16"])
def test_ends_and_stops(pair: TinyPair, plain: PlainTexts, policy: str) -> None:
    num_ended = 0
    with opened_decoder(pair, policy, num_snapshots=NUM_SNAPSHOTS) as decoder:
        for seed in range(12):
            text = prompt(seed=seed)
            out = reply(decoder, text, ENDS_SOON, seed=seed, max_tokens=60)
            assert out == plain.reply(tuple(text), ENDS_SOON, seed, 60)
            num_ended += out[-1] in decoder.end_tokens
            # A stop string that ended the text earlier; then another turn after what is left.
            decoder.rewind(len(text) + len(out) // 2)
            following = [*text, *out[: len(out) // 2], *prompt(seed=90 + seed)[1:]]
            wanted = plain.reply(tuple(following), WARM, seed, 20)
            assert reply(decoder, following, WARM, seed=seed, max_tokens=20) == wanted
    assert num_ended > 1


def test_a_consumer_walks_away(pair: TinyPair, plain: PlainTexts) -> None:
    text = prompt(seed=1)
    with opened_decoder(pair, "chain:6", num_snapshots=NUM_SNAPSHOTS) as decoder:
        found = steps(decoder, text, WARM, seed=1, max_tokens=100)
        out = [*next(found).tokens, *next(found).tokens]
        found.close()  # type: ignore[attr-defined]
        assert_caches_hold(decoder, [*text, *out])
        following = [*text, *out, *prompt(seed=5)[1:]]
        wanted = plain.reply(tuple(following), WARM, 3, 60)
        assert reply(decoder, following, WARM, seed=3, max_tokens=60) == wanted


def test_an_abort_at_any_step(pair: TinyPair, plain: PlainTexts) -> None:
    """The flag is set when the tree has grown, so that it stops the target's pass over it."""
    text = prompt(seed=1)
    wanted = plain.reply(tuple(text), WARM, 1, 100)
    with opened_decoder(pair, "chain:6", num_snapshots=NUM_SNAPSHOTS) as decoder:
        for at in range(6):
            with aborted_after(decoder, decoder.policy, "grow", at):
                out = until_cancelled(decoder, text)
                decoder.clear_abort()
                assert out == wanted[: len(out)]
                assert decoder.target.tokens == [*text, *out][: len(decoder.target.tokens)]
                assert reply(decoder, text, WARM, seed=1, max_tokens=60) == wanted[:60]


def test_the_parts_of_a_step_do_what_the_native_call_does(pair: TinyPair) -> None:
    def told(in_parts: bool) -> list[tuple[object, ...]]:
        with opened_decoder(pair, "chain:6", num_snapshots=NUM_SNAPSHOTS) as decoder:
            decoder.verifier = MatchVerifier(in_parts=in_parts)
            found = steps(decoder, prompt(), WARM, seed=1, max_tokens=60)
            return [(s.tokens, s.path, s.num_accepted, s.nodes) for s in found]

    assert told(True) == told(False)


def test_a_context_that_gets_full(pair: TinyPair, plain: PlainTexts) -> None:
    """The last tokens that fit are those of plain decoding."""
    text = prompt(40, seed=2)
    with opened_decoder(pair, "chain:6", num_ctx=249, num_snapshots=NUM_SNAPSHOTS) as decoder:
        room = decoder.target.context.num_ctx - len(text)
        wanted = plain.reply(tuple(text), WARM, 2, room)
        assert reply(decoder, text, WARM, seed=2, max_tokens=room) == wanted


def test_turns_that_share_a_beginning(pair: TinyPair, plain: PlainTexts) -> None:
    """The second turn has dropped what the first one thought, and reads only what is new."""
    with opened_decoder(pair, "chain:6", num_snapshots=NUM_SNAPSHOTS) as decoder:
        history = prompt(200)
        for turn in range(4):
            sampler = Sampler(decoder.target.context.model, WARM, turn, history)
            reused = decoder.begin(history, sampler)
            out = tokens_of(list(decoder.generate(80)))
            sampler.close()
            assert out == plain.reply(tuple(history), WARM, turn, 80)
            assert turn == 0 or reused > len(history) - 100
            history = [*history, *out[-20:], *prompt(30, seed=turn + 5)[1:]]
