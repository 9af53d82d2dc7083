"""A draft with ids of its own: the text stays plain decoding's, trees the whole draft's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.draft.translation import TranslatedDrafter, Translation
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.decode.tree import TokenTree
from tests import tiny
from tests.conftest import TinyPair
from tests.decode.test_loop import exact_pairs
from tests.decoding import opened_decoder, reply, steps
from tests.drafts.trimming import KEPT, LOST, foreign, opened_translated, trimmed

GREEDY = SamplingParams(temperature=0.0)
COOL = SamplingParams(temperature=0.7)
WARM = SamplingParams(temperature=1.0)
PENALISED = SamplingParams(
    temperature=0.8, repeat_penalty=1.2, dry_multiplier=0.8, logit_bias=((int(KEPT[-40]), 2.0),)
)
POLICIES = [
    "chain:6",
    "chain:8:0.3",
    "specinfer:4x2x1",
    "sequoia:16",
    "dyspec:16",
    "dyspec:64",
    "dyspec-threshold:24",
    "priced",
]


def prompt(length: int = 20, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, length - 1).tolist()]


@pytest.fixture(scope="module")
def pair(tiny_pair: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """The tiny pair, whose draft lacks half of the words."""
    out = tmp_path_factory.mktemp("models") / "trimmed.gguf"
    return TinyPair(tiny_pair.target, trimmed(tiny_pair.draft, out))


@pytest.fixture(scope="module")
def foreign_pair(tiny_pair: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """The tiny target and a draft of another vocabulary."""
    return TinyPair(tiny_pair.target, foreign(tmp_path_factory.mktemp("models") / "foreign.gguf"))


@pytest.fixture(scope="module")
def without_lost(tiny_dir: Path) -> tuple[TinyPair, TinyPair]:
    """A pair that never says what the trimmed draft lacks; the whole draft, the trimmed one."""
    bias = tiny.VOCABULARY.bias()
    bias[LOST] = tiny.BANNED
    target = tiny.write_model(tiny_dir / "few.gguf", bias=bias)
    draft = tiny.write_model(tiny_dir / "few-draft.gguf", bias=bias, noise=0.05)
    cut = trimmed(draft, tiny_dir / "few-trimmed.gguf")
    return TinyPair(target, draft), TinyPair(target, cut)


def translated(decoder: Conversation) -> TranslatedDrafter:
    assert isinstance(decoder.drafter, TranslatedDrafter)
    return decoder.drafter


def own_text(drafter: TranslatedDrafter, text: Sequence[int]) -> list[int]:
    """How the draft reads a text of the target's."""
    return [own for token in text for own in drafter._translation.own(token)]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_is_plain_decodings(tiny_pair: TinyPair, pair: TinyPair, policy: str) -> None:
    accepted = num_lost = 0
    with opened_decoder(tiny_pair, "none") as plain, opened_translated(pair, policy) as decoder:
        for params in (GREEDY, COOL, WARM, PENALISED):
            text = prompt()
            for seed in (1, 2):
                found = list(steps(decoder, text, params, seed=seed, max_tokens=40))
                said = [token for step in found for token in step.tokens]
                assert said == reply(plain, text, params, seed=seed, max_tokens=40)
                accepted += sum(step.num_accepted for step in found)
                num_lost += int(np.isin(said, LOST).sum())
                drafter = translated(decoder)
                read = drafter.model.cache.tokens
                assert read == own_text(drafter, decoder.target.tokens)[: len(read)]
                text = [*text, *said, *prompt(8, seed=seed)]
                decoder.rewind(len(text) - 12)
    assert num_lost > 20, "the target says what the draft lacks"
    assert accepted > 30


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draft_of_another_vocabulary_leaves_the_text_as_it_is(
    tiny_pair: TinyPair, foreign_pair: TinyPair, policy: str
) -> None:
    drafted = accepted = num_lost = 0
    with (
        opened_decoder(tiny_pair, "none") as plain,
        opened_translated(foreign_pair, policy) as decoder,
    ):
        for params in (GREEDY, COOL, WARM, PENALISED):
            for seed in (1, 2, 3):
                text = prompt(seed=seed)
                found = list(steps(decoder, text, params, seed=seed, max_tokens=40))
                said = [token for step in found for token in step.tokens]
                assert said == reply(plain, text, params, seed=seed, max_tokens=40)
                drafted += sum(step.num_drafted for step in found)
                accepted += sum(step.num_accepted for step in found)
                num_lost += int(np.isin(said, LOST).sum())
                drafter = translated(decoder)
                read = drafter.model.cache.tokens
                assert read == own_text(drafter, decoder.target.tokens)[: len(read)]
    assert num_lost > 20, "the target says what the draft lacks"
    assert drafted > accepted > 30


@pytest.mark.parametrize("longest", [8, 24])
def test_both_ends_of_a_text_are_enough(tiny_pair: TinyPair, pair: TinyPair, longest: int) -> None:
    with opened_decoder(tiny_pair, "none") as plain, opened_translated(pair, "chain:6") as decoder:
        drafter = translated(decoder)
        drafter.longest_read = longest
        for seed in (1, 2, 3):
            text = prompt(20 * seed, seed=seed)
            expected = reply(plain, text, COOL, seed=seed, max_tokens=40)
            assert reply(decoder, text, COOL, seed=seed, max_tokens=40) == expected
            read = len(drafter.model.cache.tokens)
            assert drafter.time_pass(1) > 0
            assert len(drafter.model.cache.tokens) == read


@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16", "dyspec-threshold:24"])
@pytest.mark.parametrize("params", [GREEDY, COOL, WARM, PENALISED])
def test_on_kept_tokens_every_tree_is_the_whole_drafts(
    without_lost: tuple[TinyPair, TinyPair], policy: str, params: SamplingParams
) -> None:
    """Noise, bias and cuts by the wrong ids would give other trees."""
    whole, cut = without_lost
    accepted = 0
    text = [1, *np.random.default_rng(3).choice(KEPT[270:], 15).tolist()]
    with opened_decoder(whole, policy) as one, opened_translated(cut, policy) as other:
        for seed in range(3):
            for a, b in zip(
                steps(one, text, params, seed=seed, max_tokens=50),
                steps(other, text, params, seed=seed, max_tokens=50),
                strict=True,
            ):
                assert (a.tokens, a.path, a.nodes) == (b.tokens, b.path, b.nodes)
                tree, copy = one.tree, other.tree
                n = tree.size
                assert tree.token[:n].tolist() == copy.token[:n].tolist()
                assert np.allclose(tree.confidence[:n], copy.confidence[:n], atol=1e-4)
                accepted += b.num_accepted
    assert accepted > 60


def test_noise_by_the_drafts_own_ids_would_miss(without_lost: tuple[TinyPair, TinyPair]) -> None:
    """The test above can fail: ranks by another noise are accepted less often."""
    _whole, cut = without_lost
    text = [1, *np.random.default_rng(3).choice(KEPT[270:], 15).tolist()]
    accepted = []
    with opened_translated(cut, "chain:4") as decoder:
        ranked = decoder._ranking
        for shift in (0, 1):  # of the noise's seed

            def ranking(sampler: Sampler, shift: int = shift) -> Ranking:
                rule = ranked(sampler)
                return Ranking(rule.params, rule.seed + shift)

            decoder._ranking = ranking  # type: ignore[method-assign]
            accepted.append(
                sum(
                    step.num_accepted
                    for seed in range(4)
                    for step in steps(decoder, text, WARM, seed=seed, max_tokens=60)
                )
            )
    assert accepted[1] < 0.7 * accepted[0]


@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16", "priced"])
def test_a_grammar_is_kept_by_the_targets_ids(
    tiny_pair: TinyPair, pair: TinyPair, policy: str
) -> None:
    params = SamplingParams(temperature=0.8, grammar=r'root ::= (" " [a-z]{1,6}){12} "."')
    accepted = 0
    with opened_decoder(tiny_pair, "none") as plain, opened_translated(pair, policy) as decoder:
        for seed in range(5):
            found = list(steps(decoder, prompt(), params, seed=seed, max_tokens=40))
            said = [token for step in found for token in step.tokens]
            assert said == reply(plain, prompt(), params, seed=seed, max_tokens=40)
            accepted += sum(step.num_accepted for step in found)
    assert accepted > 3


@pytest.mark.parametrize(
    ("policy", "device_sampling"),
    [("dyspec:3", False), ("dyspec:3", True), ("sequoia:12:2", False), ("specinfer:3x2", False)],
)
def test_residual_follows_the_targets_distribution(
    tiny_six: TinyPair, tmp_path: Path, policy: str, device_sampling: bool
) -> None:
    """The draft lacks `b` and cannot spell it."""
    kept = np.array([0, 1, 2, 3, 5], np.int32)
    pair = TinyPair(tiny_six.target, trimmed(tiny_six.draft, tmp_path / "five.gguf", kept))
    params = SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
    text, num_replies = [1, 3, 4, 5], 600
    wanted = exact_pairs(tiny_six, text, params)
    observed, accepted = np.zeros_like(wanted), 0
    with (
        opened_translated(
            pair, policy, verify="residual", num_ctx=64, device_sampling=device_sampling
        ) as decoder,
        closing(Sampler(decoder.target.context.model, params, 0)) as sampler,
    ):
        for seed in range(num_replies):
            sampler.seed = seed
            decoder.begin(text, sampler)
            out: list[int] = []
            for step in decoder.generate(4):
                out += step.tokens
                accepted += step.num_accepted
                if len(out) >= 2:
                    break
            observed[out[0], out[min(1, len(out) - 1)]] += 1
    possible = wanted > 0
    assert observed[~possible].sum() == 0
    assert observed[4].sum() > 20, "what the draft lacks is said"
    assert accepted > 300
    assert chisquare(observed[possible], num_replies * wanted[possible]).pvalue > 1e-3


def test_a_root_that_the_draft_lacks_is_read_as_what_spells_it(pair: TinyPair) -> None:
    lost = int(LOST[-1])
    with opened_translated(pair, "chain:4") as decoder:
        drafter, tree = translated(decoder), TokenTree(8, 64)
        text = prompt()
        drafter.begin(text, Ranking(GREEDY, 1))
        drafter.start_step(text, 0)
        tree.reset(lost)
        drafter.propose(tree, np.zeros(1, np.int32))
        pieces = own_text(drafter, [lost])
        assert len(pieces) > 1
        assert drafter.model.cache.tokens == [*own_text(drafter, text), *pieces[:-1]]
        drafter.commit(tree, [0])
        assert drafter.model.cache.tokens == own_text(drafter, [*text, lost])
        # The pieces are tokens of the target's, too: as such they give the same candidates.
        ids = tree.candidate_ids[0].tolist()
        *first, last = drafter._translation.target_ids[pieces].tolist()
        drafter.begin([*text, *first], Ranking(GREEDY, 1))
        drafter.rewind(len(text))
        drafter.start_step([*text, *first], 0)
        tree.reset(last)
        drafter.propose(tree, np.zeros(1, np.int32))
        assert tree.candidate_ids[0].tolist() == ids


def test_nothing_is_drafted_below_a_copied_token_that_the_draft_lacks(pair: TinyPair) -> None:
    with opened_translated(pair, "chain:4") as decoder:
        drafter, tree = translated(decoder), TokenTree(8, 64)
        drafter.begin(prompt(), Ranking(GREEDY, 1))
        drafter.start_step(prompt(), 0)
        tree.reset(int(KEPT[-20]))
        child = tree.add(0, int(LOST[3]), 0.5)
        below = tree.add(child, int(KEPT[-20]), 0.5)
        drafter.propose(tree, np.array([0, child, below], np.int32))
        assert tree.num_candidates[[0, child, below]].tolist() == [64, 0, 0]
        assert np.isin(tree.candidate_ids[0], KEPT).all()
        drafter.commit(tree, [0, child, below])
        drafter.start_step([*prompt(), *tree.token[:3].tolist()], 3)
        assert drafter.num_behind == len(drafter._translation.own(int(LOST[3]))) + 1


def test_a_translation_goes_both_ways() -> None:
    between = Translation(np.array([4, -1, 0], np.int32), 6, lambda token: [token % 3, 2])
    assert between.own_ids.tolist() == [2, -1, -1, -1, 0, -1]
    assert [list(between.own(token)) for token in (4, 0, 5)] == [[0], [2], [2, 2]]
