"""Both verifiers on table models: `match` walks the target's own draws, `residual` is exact.

The models are tables of logits by last token, six tokens wide, so the joint distribution of the
next two tokens is known exactly, and thousands of steps take a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from ctypes import c_int32
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.policy import Policy, parse
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import (
    MatchVerifier,
    ResidualVerifier,
    Rows,
    Verifier,
    Walk,
    then_uniform,
    with_replacement,
)
from dyspec_edge.llama import Model
from dyspec_edge.native import lib, pointer
from tests.conftest import TinyPair

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]

V = 6
END = 2
ROOT = 3
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
_rng = np.random.default_rng(42)
TARGET = _rng.normal(0, 1.2, (V, V)).astype(np.float32)
DRAFT = (TARGET + _rng.normal(0, 1.5, (V, V))).astype(np.float32)
DRAFTS = {"other": DRAFT, "target": TARGET, "opposite": -TARGET}


@pytest.fixture(scope="module")
def model(tiny_six: TinyPair) -> Iterator[Model]:
    with Model(tiny_six.target) as opened:
        yield opened


def rows_of(tree: TokenTree) -> Rows:
    """The target's logits of each node."""
    rows: Rows = np.uint64(TARGET.ctypes.data) + np.uint64(4 * V) * tree.token.astype(np.uint64)
    return rows


def root_alone(tree: TokenTree) -> Rows:
    """The target was asked for nothing but the root's logits."""
    rows = rows_of(tree)
    rows[1:] = 0
    return rows


class TableDrafter(Drafter):
    """Drafts from a table, as the model drafter does from logits."""

    def __init__(self, table: npt.NDArray[np.float32], ranking: Ranking, index: int) -> None:
        self._table, self._ranking, self._index = table, ranking, index

    def propose(self, tree: TokenTree, nodes: Ids) -> None:
        rows = self._table[tree.token[nodes]]
        ids = np.argsort(-rows, axis=1, kind="stable").astype(np.int32)
        logits = np.take_along_axis(rows, ids, axis=1)
        found = self._ranking.rank(ids, logits, self._index + tree.depth[nodes], nodes)
        tree.candidate_ids[nodes], tree.candidate_probs[nodes], tree.num_candidates[nodes] = found

    def sample_children(self, tree: TokenTree, node: int, count: int) -> Ids:
        probs = tree.candidate_probs[node, : tree.num_candidates[node]]
        return self._ranking.sample_children(
            probs, self._index + int(tree.depth[node]), node, count
        )


@dataclass(frozen=True)
class Case:
    """A policy and a draft of `DRAFTS`."""

    policy: str
    params: SamplingParams = UNCUT
    draft_temperature: float | None = None
    max_leaves: int | None = None
    num_candidates: int = V
    draft: str = "other"
    draft_params: SamplingParams | None = None
    max_depth: int = 3

    def make_policy(self) -> Policy:
        policy = parse(self.policy, np.array([END], np.int32))
        if self.max_leaves is not None:
            policy.max_leaves = self.max_leaves
        return policy


def two_tokens(
    case: Case, tree: TokenTree, policy: Policy, sampler: Sampler, seed: int
) -> list[int]:
    """The first two tokens of the reply with that seed; one if it is the end."""
    sampler.seed = seed
    ranking = Ranking(
        case.draft_params or case.params,
        seed,
        residual=True,
        draft_temperature=case.draft_temperature,
    )
    emitted = [ROOT]
    while len(emitted) < 3 and emitted[-1] != END:
        tree.reset(emitted[-1])
        index = len(emitted) - 1
        policy.grow(tree, TableDrafter(DRAFTS[case.draft], ranking, index), case.max_depth)
        emitted += policy.residual_verifier().walk(tree, rows_of(tree), sampler, index).tokens
    return emitted[1:3]


def counts(case: Case, model: Model, num_replies: int, first_seed: int = 0) -> Floats:
    """How often each pair came, float64[V, V]; a reply that ends at once counts at [END, END]."""
    policy = case.make_policy()
    tree, out = TokenTree(1 + policy.max_nodes, case.num_candidates), np.zeros((V, V))
    with closing(Sampler(model, case.params, 0)) as sampler:
        for seed in range(first_seed, first_seed + num_replies):
            tokens = two_tokens(case, tree, policy, sampler, seed)
            out[tokens[0], tokens[-1]] += 1
    return out


def exact_pairs(params: SamplingParams, model: Model) -> Floats:
    """The joint distribution of two plainly drawn tokens."""
    rows = np.zeros((V, V))
    with closing(Sampler(model, params, 0)) as sampler:
        for token in range(V):
            ids, probs = sampler.distribution(TARGET[token].ctypes.data)
            rows[token, ids] = probs
    pairs: Floats = rows[ROOT][:, None] * rows
    pairs[END] = 0
    pairs[END, END] = rows[ROOT, END]
    return pairs


def p_value(observed: Floats, probs: Floats) -> float:
    assert not observed[probs == 0].any(), "a pair that cannot be"
    possible = probs > 0
    return float(chisquare(observed[possible], observed.sum() * probs[possible]).pvalue)


COOL = replace(UNCUT, temperature=0.6)
TOP_2 = replace(UNCUT, top_k=2)
CASES = {
    "dyspec": Case("dyspec:6"),
    "dyspec-large": Case("dyspec:40", COOL),
    "dyspec-top-k": Case("dyspec:6", replace(COOL, top_k=4)),
    "dyspec-mismatch": Case("dyspec:6", COOL, draft_temperature=1.4),
    "dyspec-leaves": Case("dyspec:8", max_leaves=2, draft_temperature=0.5),
    "dyspec-opposite": Case("dyspec:8", draft="opposite"),
    # The draft knows its two best tokens only, the target all six; and the other way round.
    "dyspec-narrow-draft": Case("dyspec:8", draft_params=TOP_2),
    "dyspec-narrow-target": Case("dyspec:8", TOP_2, draft_params=UNCUT),
    "threshold": Case("dyspec-threshold:12:0.1", COOL),
    "threshold-capped": Case("dyspec-threshold:5:0.01"),
    "threshold-adaptive": Case("dyspec-threshold:8"),
    "specinfer": Case("specinfer:2x2"),
    "specinfer-wide": Case("specinfer:6", COOL),
    "specinfer-deep": Case("specinfer:3x1x2", COOL, draft_temperature=0.5),
    "specinfer-opposite": Case("specinfer:4x2", draft="opposite"),
    "specinfer-narrow-draft": Case("specinfer:3x3", draft_params=TOP_2),
    "specinfer-narrow-target": Case("specinfer:3x3", TOP_2, draft_params=UNCUT),
    "sequoia": Case("sequoia:6"),
    "sequoia-wide": Case("sequoia:6:1", COOL),
    "sequoia-large": Case("sequoia:40", COOL),
    "sequoia-opposite": Case("sequoia:8", draft="opposite"),
    # Candidates with a probability run out, and the rest are drawn uniformly.
    "sequoia-narrow-draft": Case("sequoia:5:1", draft_params=TOP_2),
    "sequoia-narrow-deep": Case("sequoia:12:2", COOL, draft_params=replace(UNCUT, top_k=1)),
    "sequoia-narrow-target": Case("sequoia:8", TOP_2, draft_params=UNCUT),
    "chain-floor": Case("chain:3:0.5"),
    "chain": Case("chain:2"),
    "chain-top-k": Case("chain:3", TOP_2, draft_temperature=0.6),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_residual_gives_the_exact_distribution_of_two_tokens(case: Case, model: Model) -> None:
    assert p_value(counts(case, model, 1200), exact_pairs(case.params, model)) > 1e-3


def algorithm_3(target: Floats, draft: Floats, children: list[int]) -> Floats:
    """The paper's verification at one node with these children.

    Returns:
        float64[2 V], the chance that a child is accepted, then that a bonus token is drawn.
    """
    chance, alive = np.zeros(2 * V), 1.0
    rest, q = target.copy(), draft.copy()
    for y in children:
        accept = min(1.0, rest[y] / q[y])
        chance[y] += alive * accept
        alive *= 1 - accept
        if alive <= 0:
            return chance
        rest = np.maximum(rest - q, 0)
        rest /= rest.sum()
        q[y] = 0
        q /= max(q.sum(), 1e-300)
    chance[V:] += alive * rest
    return chance


def assert_walks_follow(
    expected: Callable[[Floats], Floats], verifier: ResidualVerifier, tree: TokenTree, model: Model
) -> None:
    """Chi-square of walks from the root: which child is accepted, or which bonus token is drawn.

    Args:
        expected: from the target's probabilities float64[V], as `algorithm_3` returns it.
    """
    observed = np.zeros(2 * V)
    with closing(Sampler(model, UNCUT, 0)) as sampler:
        _, probs = sampler.distribution(TARGET[ROOT].ctypes.data)
        for seed in range(2500):
            sampler.seed = seed
            path, tokens, _ = verifier.walk(tree, rows_of(tree), sampler, 0)
            observed[tokens[0] if len(path) > 1 else V + tokens[0]] += 1
    wanted = expected(probs)
    assert not observed[wanted < 1e-12].any()
    possible = wanted > 1e-12
    assert chisquare(observed[possible], 2500 * wanted[possible]).pvalue > 1e-3


@pytest.mark.parametrize("children", [[3], [5, 3], [3, 0, 5], [5, 1, 3, 2, 4, 0]])
def test_residual_equals_algorithm_3_at_every_node(children: list[int], model: Model) -> None:
    """On a fixed tree: which child is accepted, or which bonus token is drawn, and how often."""
    draft = np.exp(DRAFT[ROOT].astype(np.float64))
    order = np.array([*children, *(t for t in range(V) if t not in children)])
    tree = TokenTree(1 + V, V)
    tree.reset(ROOT)
    tree.candidate_ids[0], tree.num_candidates[0] = order, V
    tree.candidate_probs[0] = (draft / draft.sum())[order]
    for rank, token in enumerate(children):
        tree.add(0, token, float(tree.candidate_probs[0, rank]))
    assert_walks_follow(
        lambda probs: algorithm_3(probs, draft / draft.sum(), children),
        ResidualVerifier(),
        tree,
        model,
    )


@pytest.mark.parametrize("num_likely", [1, 3])
@pytest.mark.parametrize("children", [[3, 5], [3, 0, 5, 4], [5, 1, 3, 2, 4, 0]])
def test_sequoia_goes_on_with_a_uniform_draft(
    children: list[int], num_likely: int, model: Model
) -> None:
    """Its algorithm 2 on a fixed tree, the draft having a probability for the first ones alone."""
    draft = np.zeros(V)
    draft[children[:num_likely]] = np.exp(DRAFT[ROOT, children[:num_likely]].astype(np.float64))
    draft /= draft.sum()
    order = np.array([*children, *(t for t in range(V) if t not in children)])
    tree = TokenTree(1 + V, V)
    tree.reset(ROOT)
    tree.candidate_ids[0], tree.num_candidates[0] = order, np.count_nonzero(draft)
    tree.candidate_probs[0] = draft[order]
    for token in children:
        tree.add(0, token, float(draft[token]))
    assert_walks_follow(
        lambda probs: sequoia_2(probs, draft, children), ResidualVerifier(then_uniform), tree, model
    )


def sequoia_2(target: Floats, draft: Floats, children: list[int]) -> Floats:
    """Sequoia's verification at one node with these children; returns as `algorithm_3`."""
    chance, alive, refused = np.zeros(2 * V), 1.0, np.zeros(V, bool)
    for y in children:
        accept = min(1.0, target[y] / draft[y])
        chance[y] += alive * accept
        alive *= 1 - accept
        if alive <= 0:
            return chance
        target = np.maximum(target - draft, 0) / np.maximum(target - draft, 0).sum()
        draft, refused[y] = np.where(np.arange(V) == y, 0.0, draft), True
        if draft.sum() == 0:
            draft = np.where(refused, 0.0, 1.0)
        draft = draft / max(draft.sum(), 1e-300)
    chance[V:] += alive * target
    return chance


def specinfer_2(target: Floats, draft: Floats, draws: list[int]) -> Floats:
    """SpecInfer's VerifyStochastic at one node with these draws; returns as `algorithm_3`."""
    chance, alive = np.zeros(2 * V), 1.0
    for y in draws:
        accept = min(1.0, target[y] / draft[y])
        chance[y] += alive * accept
        alive *= 1 - accept
        if alive <= 0:
            return chance
        target = np.maximum(target - draft, 0) / np.maximum(target - draft, 0).sum()
    chance[V:] += alive * target
    return chance


@pytest.mark.parametrize("draws", [[3], [5, 5], [3, 3, 0, 3, 5], [5, 1, 5, 2, 2, 4, 0]])
def test_with_replacement_equals_specinfers_algorithm(draws: list[int], model: Model) -> None:
    """On fixed draws: a token that came again is a round, but no second child."""
    draft = np.exp(DRAFT[ROOT].astype(np.float64))
    draft /= draft.sum()
    tree = TokenTree(1 + V, V)
    tree.reset(ROOT)
    tree.candidate_ids[0], tree.num_candidates[0] = np.arange(V), V
    tree.candidate_probs[0] = draft
    tree.sampled[0] = np.array(draws, np.int32)
    for token in dict.fromkeys(draws):
        tree.add(0, token, float(draft[token]))
    assert_walks_follow(
        lambda probs: specinfer_2(probs, draft, draws),
        ResidualVerifier(with_replacement),
        tree,
        model,
    )


def test_residual_accepts_all_of_a_draft_that_is_the_target(model: Model) -> None:
    case = Case("chain:3", draft="target")
    policy = case.make_policy()
    tree = TokenTree(4, V)
    with closing(Sampler(model, UNCUT, 0)) as sampler:
        for seed in range(300):
            sampler.seed = seed
            tree.reset(ROOT)
            ranking = Ranking(UNCUT, seed, residual=True)
            policy.grow(tree, TableDrafter(TARGET, ranking, 0), 3)
            path, tokens, num_accepted = ResidualVerifier().walk(tree, rows_of(tree), sampler, 0)
            ended = tree.child(path[-1], tokens[-1]) >= 0
            assert num_accepted == len(path) - 1 + ended == tree.num_drafted


def bushy_tree(seed: int) -> TokenTree:
    """A tree that no policy would grow: `match` must not care."""
    rng = np.random.default_rng(seed)
    tree = TokenTree(40, V)
    tree.reset(ROOT)
    while tree.size < 40:
        parent = int(rng.integers(tree.size))
        token = int(rng.integers(V))
        if tree.child(parent, token) < 0 and not tree.terminal[parent]:
            tree.add(parent, token, 0.1, terminal=token == END)
    return tree


def native_walk(tree: TokenTree, rows: Rows, sampler: Sampler, index: int) -> Walk:
    """The walk of the one native call."""
    path, tokens = np.zeros(tree.capacity, np.int32), np.zeros(tree.capacity, np.int32)
    num_accepted = c_int32()
    n = lib.dyspec_match(
        sampler.handle.address,
        tree.struct,
        pointer(rows, np.uint64, tree.capacity),
        index,
        pointer(path, np.int32, tree.capacity),
        pointer(tokens, np.int32, tree.capacity),
        num_accepted,
    )
    assert n > 0
    return Walk(path[:n].tolist(), tokens[:n].tolist(), num_accepted.value)


@pytest.mark.parametrize("walk", [MatchVerifier().walk, native_walk])
@pytest.mark.parametrize("params", [UNCUT, COOL, replace(UNCUT, repeat_penalty=1.8)])
def test_match_emits_the_targets_own_draws(
    model: Model, params: SamplingParams, walk: Callable[..., Walk]
) -> None:
    accepted = 0
    for seed in range(200):
        tree = bushy_tree(seed)
        with closing(Sampler(model, params, seed, [ROOT])) as sampler:
            path, emitted, num_accepted = walk(tree, rows_of(tree), sampler, 5)
        assert emitted[:-1] == tree.token[path[1:]].tolist()
        with closing(Sampler(model, params, seed, [ROOT])) as sampler:
            last = ROOT
            for offset, token in enumerate(emitted):
                assert token == sampler.sample(TARGET[last].ctypes.data, 5 + offset)
                sampler.accept([token])
                last = token
        assert path == tree.path(path[-1])
        child = tree.child(path[-1], emitted[-1])
        assert child < 0 or tree.terminal[child], "it goes on as long as a child fits"
        assert num_accepted == len(path) - 1 + (child >= 0)
        assert END not in emitted[:-1]
        accepted += len(path) - 1
    assert accepted > 100


@pytest.mark.parametrize("walk", [MatchVerifier().walk, native_walk])
def test_match_stops_where_the_target_was_not_asked(
    model: Model, walk: Callable[..., Walk]
) -> None:
    tree = TokenTree(3, V)
    tree.reset(ROOT)
    address = TARGET[ROOT].ctypes.data
    with closing(Sampler(model, replace(UNCUT, temperature=0.0), 0)) as sampler:
        token = sampler.sample(address, 0)
        tree.add(0, token, 0.5)
        assert walk(tree, root_alone(tree), sampler, 0) == ([0], [token], 0)


def test_residual_stops_where_the_target_was_not_asked(model: Model) -> None:
    """The accepted child is emitted, but nothing can be said of what comes below it."""
    tree = TokenTree(2, V)
    tree.reset(ROOT)
    token = int(np.argmax(TARGET[ROOT]))
    tree.candidate_ids[0], tree.candidate_probs[0], tree.num_candidates[0] = token, 0, 1
    tree.candidate_probs[0, 0] = 1
    tree.add(0, token, 1.0)
    with closing(Sampler(model, replace(UNCUT, temperature=0.0), 0)) as sampler:
        found = ResidualVerifier().walk(tree, root_alone(tree), sampler, 0)
    assert found == ([0], [token], 0)


@pytest.mark.parametrize("verifier", [MatchVerifier(), ResidualVerifier()])
def test_a_root_alone_gives_the_plain_draw(model: Model, verifier: Verifier) -> None:
    """With the same noise even: `none` gives the same text under both verifiers."""
    tree = TokenTree(1, V)
    tree.reset(ROOT)
    address = TARGET[ROOT].ctypes.data
    with closing(Sampler(model, COOL, 0)) as sampler:
        for seed in range(100):
            sampler.seed = seed
            assert verifier.walk(tree, root_alone(tree), sampler, 7) == (
                [0],
                [sampler.sample(address, 7)],
                0,
            )
