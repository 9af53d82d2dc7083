"""What a draft reads of a long text: its beginning and its end, as one text of its own."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dyspec_edge.decode.draft.excerpt import Excerpt
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.errors import Cancelled
from tests.conftest import TinyPair
from tests.decoding import model_drafter, opened_decoder, reply, steps

GREEDY = SamplingParams(temperature=0.0)
ROOT = np.zeros(1, np.int32)
TEXT = [1, *(300 + i * i % 61 for i in range(400))]


def excerpt_of(decoder: Conversation) -> Excerpt:
    return model_drafter(decoder).excerpt


def is_consistent(decoder: Conversation) -> bool:
    """The draft's cache holds the beginning of the target's text without the gaps."""
    cache = model_drafter(decoder).cache.tokens
    return cache == excerpt_of(decoder).of(decoder.target.tokens)[: len(cache)]


def test_the_first_and_the_last_tokens_are_read_and_what_was_read_is_kept(
    tiny_pair: TinyPair,
) -> None:
    with opened_decoder(tiny_pair, "chain:1") as decoder:
        drafter, tree = model_drafter(decoder), decoder.tree
        drafter.longest_read = 100
        drafter.begin(TEXT[:300], Ranking(GREEDY, 1))
        assert (drafter.num_behind, drafter.cache.tokens) == (100, [])
        tree.reset(TEXT[300])
        drafter.start_step(TEXT[:300], 0)
        drafter.propose(tree, ROOT)
        read = [*TEXT[:75], *TEXT[275:300]]
        assert (drafter.num_behind, drafter.cache.tokens) == (0, read)
        found = tree.candidate_ids[0].copy(), tree.candidate_probs[0].copy()
        drafter.commit(tree, [0])
        assert drafter.cache.tokens == [*read, TEXT[300]]
        drafter.begin(TEXT[:350], Ranking(GREEDY, 1))
        assert drafter.num_behind == 49
        drafter.read()
        assert drafter.cache.tokens == [*read, *TEXT[300:350]]
        drafter.longest_read = 20
        drafter.begin(TEXT, Ranking(GREEDY, 1))
        assert drafter.num_behind == 20
        drafter.read()
        assert drafter.cache.tokens == [*read, *TEXT[300:365], *TEXT[-5:]], "a second gap"
        drafter.longest_read = None
        drafter.begin(read, Ranking(GREEDY, 1))
        drafter.read()
        drafter.start_step(read, 0)
        tree.reset(TEXT[300])
        drafter.propose(tree, ROOT)
        assert tree.candidate_ids[0].tolist() == found[0].tolist()
        assert tree.candidate_probs[0] == pytest.approx(found[1], abs=1e-5), "positions are its own"


def test_gaps_close_where_texts_part_before_what_follows_them(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "chain:1") as decoder:
        drafter = model_drafter(decoder)
        for num_shared, gaps in ((40, 0), (75, 0), (200, 0), (275, 0), (276, 1), (300, 1)):
            drafter.longest_read = 100
            drafter.begin(TEXT[:300], Ranking(GREEDY, 1))
            drafter.read()
            assert len(excerpt_of(decoder).gaps) == 1
            other = [*TEXT[:num_shared], *(370 + i % 3 for i in range(350 - num_shared))]
            drafter.longest_read = None
            drafter.begin(other, Ranking(GREEDY, 1))
            assert len(excerpt_of(decoder).gaps) == gaps
            drafter.read()
            assert drafter.cache.tokens == excerpt_of(decoder).of(other)
            assert len(drafter.cache.tokens) == 350 - 200 * gaps
            drafter.rewind(0)


def test_cuts_before_in_and_behind_a_gap(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "chain:1") as decoder:
        drafter = model_drafter(decoder)
        for length in (0, 74, 75, 76, 200, 275, 276, 299, 300):
            drafter.longest_read = 100
            drafter.begin(TEXT[:300], Ranking(GREEDY, 1))
            drafter.read()
            drafter.rewind(length)
            drafter.longest_read = None
            drafter.begin(TEXT[:length], Ranking(GREEDY, 1))
            assert drafter.num_behind == (length - 75 if 75 < length <= 275 else 0)
            drafter.rewind(0)


POLICIES = ("chain:4", "dyspec:16", "dyspec-threshold:16", "sequoia:8", "specinfer:2x2")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_text_changes(tiny_pair: TinyPair, policy: str, temperature: float) -> None:
    """Prompts around the limit, second turns that share more or less, interrupted replies."""
    params = SamplingParams(temperature=temperature)
    with opened_decoder(tiny_pair, policy) as decoder, opened_decoder(tiny_pair, "none") as plain:
        drafter = model_drafter(decoder)
        drafter.longest_read = 32
        for n in (1, 2, 24, 25, 31, 32, 33, 34, 57, 120, 200, 90, 64):
            out = reply(decoder, TEXT[:n], params, seed=n, max_tokens=12)
            assert out == reply(plain, TEXT[:n], params, seed=n, max_tokens=12)
            assert is_consistent(decoder)
            turn = [*TEXT[:n], *out, *TEXT[n : n + 50]]
            expected = reply(plain, turn, params, seed=n, max_tokens=12)
            for _ in steps(decoder, turn, params, seed=n, max_tokens=12):
                break  # a consumer that walks away
            assert is_consistent(decoder)
            assert reply(decoder, turn, params, seed=n, max_tokens=12) == expected


@pytest.mark.parametrize("longest", [None, 16, 40])
@pytest.mark.parametrize("length", [30, 64, 65, 150, 390])
def test_a_context_smaller_than_the_text_keeps_both_ends(
    tiny_pair: TinyPair, longest: int | None, length: int
) -> None:
    params = SamplingParams(temperature=0.7)
    with (
        opened_decoder(tiny_pair, "dyspec:16", num_ctx_draft=64) as decoder,
        opened_decoder(tiny_pair, "none") as plain,
    ):
        drafter = model_drafter(decoder)
        drafter.longest_read = longest
        for seed in (1, 2):
            out: list[int] = []
            for step in steps(decoder, TEXT[:length], params, seed=seed, max_tokens=100):
                out.extend(step.tokens)
                assert is_consistent(decoder)
                assert len(drafter.cache.tokens) <= 64 + 16
            assert out == reply(plain, TEXT[:length], params, seed=seed, max_tokens=100)
            assert drafter.cache.tokens[:8] == TEXT[:8]


def test_a_reading_that_was_interrupted_goes_on(tiny_pair: TinyPair) -> None:
    with (
        opened_decoder(tiny_pair, "chain:4") as decoder,
        opened_decoder(tiny_pair, "none") as plain,
    ):
        drafter = model_drafter(decoder)
        drafter.longest_read = 100
        drafter.begin(TEXT[:-1], Ranking(GREEDY, 1))
        decoder.abort()
        decoder.take_turn()
        with pytest.raises(Cancelled):
            drafter.read()
        decoder.clear_abort()
        drafter.longest_read = 60
        expected = reply(plain, TEXT, GREEDY, seed=1, max_tokens=40)
        assert reply(decoder, TEXT, GREEDY, seed=1, max_tokens=40) == expected
        assert is_consistent(decoder)
        with closing(Sampler(decoder.target.context.model, GREEDY, 1, TEXT)) as sampler:
            decoder.begin(TEXT, sampler)
        assert drafter.cache.tokens[: 45 + 15] == [*TEXT[:45], *TEXT[-16:-1]]
