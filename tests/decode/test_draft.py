"""Candidates: how a draft's logits are ranked, and that the drafter reads nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from dyspec_edge import native
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import TARGET_STREAM, Sampler, SamplingParams
from dyspec_edge.decode.tree import NUM_CANDIDATES
from dyspec_edge.llama import UBATCH, Model
from tests import tiny
from tests.conftest import TinyPair
from tests.decode.test_ranking import soft_max
from tests.decoding import model_drafter, opened_decoder, reply, steps

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Row = npt.NDArray[np.float32]

NUM_VOCAB = len(tiny.VOCABULARY)
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = SamplingParams(temperature=0.0)
ROOT = np.zeros(1, np.int32)


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model(tiny_target) as opened:
        yield opened


def make_row(seed: int, size: int = NUM_VOCAB, spread: float = 2.5) -> Row:
    return np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)


def top(row: Row) -> tuple[Ids, Row]:
    """The candidates of a row as the drafter gets them: [1, K] ids and logits."""
    ids = np.empty((1, NUM_CANDIDATES), np.int32)
    logits = np.empty((1, NUM_CANDIDATES), np.float32)
    address = np.array([row.ctypes.data], np.uint64)
    native.topk(address, len(row), NUM_CANDIDATES, ids, logits, np.empty(1, np.float32))
    return ids, logits


def ranked(ranking: Ranking, row: Row, index: int = 0, node: int = 0) -> tuple[Ids, Floats]:
    """The usable candidates of a row in the order of drawing, and their probabilities."""
    ids, logits = top(row)
    found, probs, num = ranking.rank(
        ids, logits, np.array([index], np.int32), np.array([node], np.int32)
    )
    return found[0, : num[0]], probs[0, : num[0]].astype(np.float64)


CUTS = {
    "defaults": SamplingParams(),
    "top-k": SamplingParams(temperature=1.0, top_k=5, top_p=1.0, min_p=0.0),
    "top-p": SamplingParams(temperature=1.0, top_k=20, top_p=0.7, min_p=0.0),
    "min-p": SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.1),
    "bias": SamplingParams(top_k=6, logit_bias=((17, 2.0), (30, -4.0), (31, -np.inf))),
    "penalised": SamplingParams(repeat_penalty=1.3),
}


@pytest.mark.parametrize("params", CUTS.values(), ids=CUTS.keys())
def test_the_draft_is_cut_as_the_target_is(model: Model, params: SamplingParams) -> None:
    """Draft and target the same: residual's D is exactly what the target's chain leaves."""
    with closing(Sampler(model, params, seed=3)) as sampler:
        for seed in range(30):
            row = make_row(seed)
            row[[17, 30, 31]] = row.max() + np.array([-1, 0.5, 1], np.float32)
            ids, probs = ranked(Ranking(params, 3, residual=True), row)
            wanted_ids, wanted = sampler.distribution(row.ctypes.data)
            order = np.argsort(ids)
            assert ids[order].tolist() == wanted_ids.tolist()
            assert probs[order] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("params", CUTS.values(), ids=CUTS.keys())
def test_the_first_candidate_is_the_targets_draw(model: Model, params: SamplingParams) -> None:
    """Draft and target the same, shared noise: the best guess is always right."""
    with closing(Sampler(model, params, seed=3)) as sampler:
        for index in range(200):
            row = make_row(index)
            ids, _ = ranked(Ranking(params, 3), row, index)
            assert ids[0] == sampler.sample(row.ctypes.data, index)


def test_greedy_candidates_are_the_largest_logits() -> None:
    row = make_row(1)
    for residual in (False, True):
        ids, probs = ranked(Ranking(GREEDY, 3, residual=residual), row)
        order = np.argsort(-row)[:NUM_CANDIDATES]
        assert ids.tolist() == order.tolist()
        assert probs == pytest.approx(soft_max(row[order][None].astype(np.float64))[0], rel=1e-5)


def test_candidates_under_match_stand_by_their_perturbed_logits() -> None:
    row = make_row(1)
    params = SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0)
    ids, probs = ranked(Ranking(params, 9), row, index=4)
    perturbed = row[ids] + 0.7 * native.gumbel(9, 4, TARGET_STREAM, ids)
    assert (np.diff(perturbed) <= 0).all()
    assert probs == pytest.approx(soft_max(perturbed[None])[0], rel=1e-4)
    assert len(ids) == NUM_CANDIDATES


def test_noise_can_be_switched_off() -> None:
    row = make_row(1)
    ids, _ = ranked(Ranking(UNCUT, 9, shared_noise=False), row)
    assert ids.tolist() == np.argsort(-row)[:NUM_CANDIDATES].tolist()


def test_outside_the_cut_the_most_probable_come_last() -> None:
    params = SamplingParams(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0)
    row = make_row(1)
    ids, probs = ranked(Ranking(params, 9), row)
    best = np.argsort(-row)
    assert sorted(ids[:3].tolist()) == sorted(best[:3].tolist())
    assert sorted(ids[3:].tolist()) == sorted(best[3:NUM_CANDIDATES].tolist())
    plain = soft_max(row[best[:NUM_CANDIDATES]][None].astype(np.float64))[0]
    assert np.sort(probs[3:])[::-1] == pytest.approx(plain[3:], rel=1e-4)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("heat", [None, 0.6])
def test_probabilities_sum_to_one_at_most(
    residual: bool, temperature: float, heat: float | None
) -> None:
    params = SamplingParams(temperature=temperature)
    ranking = Ranking(params, 5, residual=residual, draft_temperature=heat)
    for seed in range(20):
        ids, probs = ranked(ranking, make_row(seed), index=seed)
        assert len(ids) > 0
        assert (probs >= 0).all()
        assert 0.999 < probs.sum() < 1 + 1e-5
        assert len(set(ids.tolist())) == len(ids)


def test_a_draft_temperature_changes_the_draft_alone() -> None:
    row = make_row(1)
    ids, probs = ranked(Ranking(UNCUT, 5, residual=True, draft_temperature=0.5), row)
    best = np.argsort(-row)[:NUM_CANDIDATES]
    wanted = dict(
        zip(best.tolist(), soft_max(row[best][None].astype(np.float64) / 0.5)[0], strict=True)
    )
    assert probs == pytest.approx([wanted[token] for token in ids.tolist()], rel=1e-4, abs=1e-9)


def test_children_under_residual_are_drawn_without_replacement() -> None:
    """The first from D, the second from D without the first, with noise of their own."""
    row = make_row(2, size=6, spread=0.8)
    d = soft_max(row[None].astype(np.float64))[0]
    num_draws, counts = 8000, np.zeros((6, 6))
    same_as_target = 0
    for seed in range(num_draws):
        ids, _ = ranked(Ranking(UNCUT, seed, residual=True), row, index=1, node=2)
        counts[ids[0], ids[1]] += 1
        noisy = row + native.gumbel(seed, 1, TARGET_STREAM, np.arange(6, dtype=np.int32))
        same_as_target += int(np.argmax(noisy)) == ids[0]
    wanted = d[:, None] * d[None, :] / (1 - d[:, None])
    off = ~np.eye(6, dtype=bool)
    assert not counts[~off].any()
    assert chisquare(counts[off], num_draws * wanted[off]).pvalue > 1e-3
    by_chance = num_draws * (d**2).sum()
    assert abs(same_as_target - by_chance) < 4 * np.sqrt(by_chance), "shared noise would bias"


def test_each_node_has_noise_of_its_own_under_residual() -> None:
    row = make_row(2)
    orders = {
        tuple(ranked(Ranking(UNCUT, 1, residual=True), row, index, node)[0].tolist())
        for index in range(3)
        for node in range(5)
    }
    assert len(orders) == 15


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=1)])
def test_what_must_not_be_drafted_is_not(params: SamplingParams, residual: bool) -> None:
    row = make_row(4)
    ids, logits = top(row)
    banned = ids[0, [0, 3, 10]]
    logits[np.isin(ids, banned)] = -np.inf
    found, probs, num = Ranking(params, 1, residual=residual).rank(ids, logits, ROOT, ROOT)
    usable = found[0, : num[0]]
    assert not np.isin(usable, banned).any()
    assert np.isfinite(probs).all()
    if not residual:
        assert len(usable) == NUM_CANDIDATES - 3


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_a_row_in_which_nothing_may_be_drafted(params: SamplingParams, residual: bool) -> None:
    ids, logits = top(make_row(4))
    ids, logits = np.repeat(ids, 2, axis=0), np.repeat(logits, 2, axis=0)
    logits[0] = -np.inf
    nodes = np.arange(2, dtype=np.int32)
    _, probs, num = Ranking(params, 1, residual=residual).rank(ids, logits, nodes, nodes)
    assert num[0] == 0
    assert num[1] > 0, "its neighbour is not affected"
    assert np.isfinite(probs).all()


def test_a_vocabulary_smaller_than_the_number_of_candidates() -> None:
    row = make_row(3, size=6)
    for params in (GREEDY, UNCUT, SamplingParams()):
        for residual in (False, True):
            ids, _ = ranked(Ranking(params, 1, residual=residual), row)
            assert set(ids.tolist()) <= set(range(6))


def prompt(length: int = 20, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, length - 1).tolist()]


def unread(decoder: Conversation) -> int:
    """Tokens that the draft has yet to read, the root apart."""
    drafter = model_drafter(decoder)
    return len(decoder.target.tokens) - len(drafter.cache.tokens)


@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16", "dyspec-threshold:32"])
def test_nothing_is_evaluated_twice(tiny_pair: TinyPair, policy: str) -> None:
    with opened_decoder(tiny_pair, policy) as decoder:
        drafter = model_drafter(decoder)
        tree, cache = decoder.tree, drafter.cache
        params = SamplingParams(temperature=0.7)
        rows, waiting = 0, 0
        for step in steps(decoder, prompt(), params, seed=1, max_tokens=120):
            evaluated = int(np.count_nonzero(tree.num_candidates[: tree.size] >= 0))
            if not evaluated:  # one token left to say
                continue
            assert cache.num_rows - rows == evaluated + waiting
            kept = sum(tree.num_candidates[node] >= 0 for node in step.path)
            assert unread(decoder) == len(step.path) - kept, "what was evaluated is kept"
            assert unread(decoder) <= 1
            rows, waiting = cache.num_rows, unread(decoder)
        assert cache.prefill_seconds > 0
        assert cache.tokens == decoder.target.tokens[: len(cache.tokens)]


def test_a_second_turn_reads_only_what_is_new(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        drafter = model_drafter(decoder)
        first = prompt()
        answer = reply(decoder, first, GREEDY, seed=1, max_tokens=60)
        following = [*first, *answer, *prompt(30, seed=3)]
        read: list[tuple[int, int]] = []
        ranking = Ranking(GREEDY, 1)
        reused = decoder.target.prefill(following[:-1])
        drafter.begin(following[:-1], ranking)
        drafter.read(on_progress=lambda *at: read.append(at))
        assert reused >= 79
        assert read[-1][1] <= 30 + 2


def test_what_the_draft_missed_is_read_in_one_go(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply without drafting in between: more unread tokens than one pass can take."""
    with (
        opened_decoder(tiny_pair, "dyspec:8") as decoder,
        opened_decoder(tiny_pair, "none") as plain,
    ):
        drafter = model_drafter(decoder)
        text, params = prompt(700, seed=2), SamplingParams(temperature=1.0)
        drafter.begin(text[:20], Ranking(params, 1))
        drafter.read()
        monkeypatch.setattr(decoder.policy, "begin", lambda *_: False)  # it does not read now
        with closing(Sampler(decoder.target.context.model, params, 1, text)) as sampler:
            decoder.begin(text, sampler)
            assert unread(decoder) > UBATCH
            out = [token for step in decoder.generate(50) for token in step.tokens]
        assert out == reply(plain, text, params, seed=1, max_tokens=50)
        assert unread(decoder) <= 2


@pytest.mark.parametrize("length", [10, 63, 64, 65, 150])
def test_a_draft_context_smaller_than_the_text(tiny_pair: TinyPair, length: int) -> None:
    with (
        opened_decoder(tiny_pair, "dyspec:16", num_ctx_draft=64) as decoder,
        opened_decoder(tiny_pair, "none") as plain,
    ):
        drafter = model_drafter(decoder)
        text, params = prompt(length, seed=4), SamplingParams(temperature=0.7)
        accepted = 0
        for seed in (1, 2):
            found = list(steps(decoder, text, params, seed=seed, max_tokens=100))
            out = [token for step in found for token in step.tokens]
            assert out == reply(plain, text, params, seed=seed, max_tokens=100)
            assert len(drafter.cache.tokens) <= 64 + 16
            accepted += sum(step.num_accepted for step in found)
        assert accepted > 20, "the end of the text is enough to draft from"


def test_an_exactly_fitting_text_is_read_once(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "dyspec:4", num_ctx_draft=64) as decoder:
        drafter = model_drafter(decoder)
        text = prompt(65, seed=4)
        for length in (40, 64):
            drafter.begin(text[:length], Ranking(GREEDY, 1))
            drafter.read()
        read = len(drafter.cache.tokens)
        drafter.start_step(text[:-1], 0)
        decoder.tree.reset(text[-1])
        drafter.propose(decoder.tree, ROOT)
        assert drafter.cache.num_rows == 1
        assert len(drafter.cache.tokens) == read


def test_tokens_that_the_draft_lacks(tiny_shortened: Path, tiny_target: Path) -> None:
    """They are read as a substitute, never drafted, and nothing is drafted right below them."""
    pair = TinyPair(tiny_target, tiny_shortened)
    missing = NUM_VOCAB - 3
    bias = ((missing, 29.0),)  # the target says it now and then
    params = SamplingParams(temperature=1.0, logit_bias=bias)
    with opened_decoder(pair, "dyspec:16") as decoder, opened_decoder(pair, "none") as plain:
        drafter = model_drafter(decoder)
        text = [*prompt(), missing, *prompt()[1:], missing]
        out: list[int] = []
        drafted_below: list[int] = []
        for step in steps(decoder, text, params, seed=2, max_tokens=150):
            tree = decoder.tree
            assert tree.token[1 : tree.size].max(initial=0) < NUM_VOCAB - 8
            if tree.token[0] == missing:
                drafted_below.append(step.num_drafted)
            out.extend(step.tokens)
        assert out == reply(plain, text, params, seed=2, max_tokens=150)
        assert out.count(missing) > 3
        assert set(drafted_below) == {0}
        substituted = [token if token != missing else 0 for token in decoder.target.tokens]
        read = drafter.cache.tokens
        assert read == substituted[: len(read)]


def test_excluded_and_limited_ids_are_never_drafted(tiny_equal: TinyPair) -> None:
    params = SamplingParams(temperature=1.0)
    limit = int(np.median(tiny.VOCABULARY.normal))
    excluded = tiny.VOCABULARY.normal[::2].tolist()
    with (
        opened_decoder(tiny_equal, "dyspec:16", excluded=excluded, vocab_limit=limit) as decoder,
        opened_decoder(tiny_equal, "none") as plain,
    ):
        out: list[int] = []
        drafted = 0
        for step in steps(decoder, prompt(), params, seed=2, max_tokens=100):
            tokens = decoder.tree.token[1 : decoder.tree.size]
            assert (tokens < limit).all()
            assert not np.isin(tokens, excluded).any()
            out.extend(step.tokens)
            drafted += step.num_drafted
        assert drafted > 0
        assert out == reply(plain, prompt(), params, seed=2, max_tokens=100)


def test_another_rule_holds_from_the_next_step_on(tiny_equal: TinyPair) -> None:
    """Between steps as well as between replies; a draft that is the target is always right."""
    params = SamplingParams(temperature=1.0)
    with opened_decoder(tiny_equal, "chain:4") as decoder:
        drafter = model_drafter(decoder)
        accepted = []
        for number, step in enumerate(steps(decoder, prompt(), params, seed=2, max_tokens=100)):
            accepted.append(step.num_accepted)
            if number == 7:
                drafter.ranking = Ranking(params, 2, shared_noise=False)
        assert accepted[:8] == [4] * 8
        assert set(accepted[8:-1]) != {4}
