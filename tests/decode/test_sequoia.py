"""Sequoia's programme against brute force, its choice by prices, and the trees it grows."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.draft.interface import NoDrafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.policy.sequoia import DEFAULT, WIDTH, Acceptance, SequoiaPolicy
from dyspec_edge.decode.policy.sequoia_tree import Programme, Shape, fastest
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import OptionError
from tests.decode.test_policy import ENDS, FAR, NO_ENDS, TableDrafter, new_tree
from tests.decoding import live_prices

Tree = tuple["Tree", ...]
"""A tree as the tuple of its children's trees."""


@cache
def forests(num_nodes: int) -> list[Tree]:
    """All ordered forests of so many nodes; with a root above it each is a tree."""
    if num_nodes == 0:
        return [()]
    return [
        (first, *rest)
        for size in range(1, num_nodes + 1)
        for first in forests(size - 1)
        for rest in forests(num_nodes - size)
    ]


def tokens(tree: Tree, rates: tuple[float, ...]) -> float:
    return 1.0 + sum(p * tokens(child, rates) for p, child in zip(rates, tree, strict=False))


def depth(tree: Tree) -> int:
    return max((1 + depth(child) for child in tree), default=0)


def width(tree: Tree) -> int:
    return max(len(tree), *(width(child) for child in tree), 0)


def as_tree(shape: Shape, node: int = 0) -> Tree:
    return tuple(as_tree(shape, child) for child in shape.children[node])


def seconds(tree: Tree, target: CostCurve, draft: CostCurve) -> float:
    """Of a step: one target pass, and a draft pass over the inner nodes of each layer."""
    total, layer, size = 0.0, [tree], 0
    while layer:
        size += len(layer)
        inner = sum(bool(node) for node in layer)
        total += draft.at(inner) if inner else 0.0
        layer = [child for node in layer for child in node]
    return total + target.at(size)


RATES = [
    (0.6, 0.2, 0.1, 0.05),
    (0.9, 0.04, 0.03),
    (0.35, 0.33, 0.3),
    (0.1, 0.5, 0.2),  # nothing says that the first child is the best one
    (0.5, 0.0, 0.2),
]


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_the_programme_finds_the_best_of_all_trees(
    rates: tuple[float, ...], limit: int | None
) -> None:
    programme = Programme(rates, 9, limit)
    deepest = len(programme.tokens) - 1
    for num_nodes in range(1, 10):
        allowed = [
            tree
            for tree in forests(num_nodes - 1)
            if width(tree) <= len(rates) and depth(tree) <= (FAR if limit is None else limit)
        ]
        found = programme.tokens[-1][num_nodes]
        if not allowed:
            assert found == -np.inf
            continue
        assert found == pytest.approx(max(tokens(tree, rates) for tree in allowed))
        tree = as_tree(programme.tree(num_nodes, deepest))
        assert tree in allowed
        assert tokens(tree, rates) == pytest.approx(found)


def test_all_trees_are_counted() -> None:
    """By the Catalan numbers."""
    assert [len(forests(n)) for n in range(7)] == [1, 1, 2, 5, 14, 42, 132]


def test_shallower_tables_are_kept() -> None:
    programme = Programme(RATES[0], 9)
    for limit, found in enumerate(programme.tokens):
        np.testing.assert_allclose(found, Programme(RATES[0], 9, limit).tokens[-1])


def test_a_large_tree_is_as_good_as_its_nodes_say() -> None:
    programme = Programme(DEFAULT.rates, 200)
    shape = programme.tree(200, FAR)
    chance = np.ones(200)
    for node, children in enumerate(shape.children):
        for rank, child in enumerate(children):
            assert child > node
            chance[child] = chance[node] * DEFAULT.rates[rank]
    assert chance.sum() == pytest.approx(programme.tokens[-1][200])
    inner = sorted(node for layer in shape.layers() for node in layer)
    assert inner == [node for node, children in enumerate(shape.children) if children]


PRICES = {
    "flat": (CostCurve((1, 8), (1.0, 1.1)), CostCurve((1, 4), (0.001, 0.002))),
    "dear draft": (CostCurve((1, 8), (1.0, 1.1)), CostCurve((1, 4), (0.3, 0.4))),
    "dear rows": (CostCurve((1, 8), (1.0, 3.0)), CostCurve((1, 4), (0.02, 0.05))),
    "nothing pays": (CostCurve((1, 8), (1.0, 8.0)), CostCurve((1, 4), (0.5, 2.0))),
}


@pytest.mark.parametrize("prices", PRICES.values(), ids=PRICES.keys())
@pytest.mark.parametrize("rates", RATES[:3])
def test_size_and_depth_are_the_fastest(
    prices: tuple[CostCurve, CostCurve], rates: tuple[float, ...]
) -> None:
    """Of the trees that the programme finds for each size and depth."""
    programme = Programme(rates, 9)
    found = [
        as_tree(programme.tree(n, limit))
        for limit, table in enumerate(programme.tokens)
        for n in range(1, 10)
        if np.isfinite(table[n])
    ]
    best = max(tokens(tree, rates) / seconds(tree, *prices) for tree in found)
    shape = as_tree(fastest(programme, prices[0].at, prices[1].at))
    assert tokens(shape, rates) / seconds(shape, *prices) == pytest.approx(best)


def test_prices_decide_the_shape() -> None:
    programme = Programme(RATES[0], 33)
    shapes = {
        name: fastest(programme, target.at, draft.at) for name, (target, draft) in PRICES.items()
    }
    assert shapes["nothing pays"].children == ((),)
    assert len(shapes["flat"].children) > len(shapes["dear rows"].children) > 1
    assert len(shapes["flat"].layers()) > len(shapes["dear draft"].layers())


@pytest.mark.parametrize("num_nodes", [1, 5, 16, 64])
@pytest.mark.parametrize("seed", range(3))
def test_the_shape_is_filled_with_the_first_candidates(num_nodes: int, seed: int) -> None:
    drafter, policy = TableDrafter(seed), SequoiaPolicy(num_nodes, NO_ENDS)
    policy.fit([fit_of(RATES[0])])
    tree, shape = new_tree(num_nodes), Programme(RATES[0], 1 + num_nodes).tree(1 + num_nodes, FAR)
    nodes = policy.grow(tree, drafter, FAR)
    assert sorted(nodes.tolist()) == list(range(1 + num_nodes))
    assert tree.num_leaves == policy.max_leaves == shape.num_leaves
    assert len(drafter.asked) == len(shape.layers()), "a pass per layer, and none for the leaves"

    def check(node: int, place: int) -> None:
        found = tree.children(node)
        assert len(found) == len(shape.children[place])
        assert tree.token[found].tolist() == tree.candidate_ids[node, : len(found)].tolist()
        for child, below in zip(found, shape.children[place], strict=True):
            check(child, below)

    check(0, 0)


def fit_of(rates: tuple[float, ...], temperature: float = 0.0) -> Acceptance:
    return Acceptance((*rates, *[0.0] * (WIDTH - len(rates))), temperature, 100)


def test_what_would_stand_below_an_end_is_left_out() -> None:
    smaller = 0
    for seed in range(20):
        policy, tree = SequoiaPolicy(40, ENDS), new_tree(40)
        policy.grow(tree, TableDrafter(seed), FAR)
        smaller += tree.num_drafted < 40
    assert smaller > 5


def test_children_beyond_the_draft_s_probabilities() -> None:
    """They are candidates, too, unless they must not be drafted."""

    class Narrow(TableDrafter):
        def propose(self, tree: TokenTree, nodes: np.ndarray) -> None:
            super().propose(tree, nodes)
            tree.num_candidates[nodes] = 2
            tree.candidate_ids[nodes, 5:] = -1

    policy, tree = SequoiaPolicy(8, NO_ENDS, max_depth=1), new_tree(8)
    policy.grow(tree, Narrow(), FAR)
    assert tree.num_drafted == 5
    assert (tree.token[: tree.size] >= 0).all()


class Reply(NoDrafter):
    """A drafter that has heard of a temperature."""

    def __init__(self, temperature: float) -> None:
        self.ranking = Ranking(SamplingParams(temperature=temperature), 0)


@pytest.fixture
def policy() -> SequoiaPolicy:
    policy = SequoiaPolicy(6, NO_ENDS)
    policy.fit([fit_of((0.95, 0.01), 0.0), fit_of((0.3, 0.29, 0.28), 1.0)])
    return policy


@pytest.mark.parametrize(
    ("temperature", "is_chain"), [(0.0, True), (0.4, True), (0.6, False), (2.0, False)]
)
def test_a_reply_takes_the_fit_of_the_nearest_temperature(
    policy: SequoiaPolicy, temperature: float, is_chain: bool
) -> None:
    assert policy.begin([7], Reply(temperature))
    tree = new_tree(6)
    policy.grow(tree, TableDrafter(), FAR)
    assert (tree.num_leaves == 1) == is_chain
    assert tree.num_leaves <= policy.max_leaves


def test_a_tree_with_too_many_leaves_is_refused() -> None:
    policy = SequoiaPolicy(600, NO_ENDS)
    with pytest.raises(OptionError, match=r"'sequoia:600' grows trees of \d+ leaves; 256 is the"):
        policy.fit([Acceptance((0.9 / WIDTH,) * WIDTH, 0.0, 1)])


def test_no_fits_are_the_default() -> None:
    policy = SequoiaPolicy(16, NO_ENDS)
    assert policy.fits == (DEFAULT,)
    policy.fit([fit_of(RATES[0])])
    assert "measured at temperature 0" in (policy.explanation or "")
    policy.fit([])
    assert policy.fits == (DEFAULT,)
    assert "fit-sequoia" in (policy.explanation or "")


def test_a_tree_that_cannot_be_so_shallow_is_refused() -> None:
    SequoiaPolicy(WIDTH + WIDTH**2, NO_ENDS, max_depth=2)
    with pytest.raises(OptionError, match=r"'sequoia:17:1': with 16 .* 17 nodes is more than 1"):
        SequoiaPolicy(WIDTH + 1, NO_ENDS, max_depth=1)


def test_accepted_children_of_the_root_are_counted() -> None:
    policy, tree = SequoiaPolicy(4, np.array([9], np.int32), max_depth=1), new_tree(4)
    for path, token in (([0], 8), ([0, 2], 12), ([0, 2], 12), ([0], 9)):
        tree.reset(7)
        for child in (11, 12, 13, 9):
            tree.add(0, child, 0.25, terminal=child == 9)
        policy.learn(tree, path, [token], StepCost(1.0, target_seconds=1.0, num_rows=5))
    tree.reset(7)  # a step without a tree says nothing
    policy.learn(tree, [0], [12], StepCost(1.0, target_seconds=1.0, num_rows=1))
    assert policy.num_steps == 4
    assert policy.num_accepted[:4].tolist() == [0, 2, 0, 1]


def test_auto_takes_size_and_depth_from_prices() -> None:
    policy = SequoiaPolicy(None, NO_ENDS)
    leaves = policy.max_leaves
    policy.set_prices(live_prices(*PRICES["dear rows"]))
    tree = TokenTree(1 + policy.max_nodes, 8)
    tree.reset(7)
    policy.grow(tree, TableDrafter(), FAR)
    assert 0 < tree.num_drafted < 20
    assert f"policy sequoia:auto: {tree.num_drafted} nodes in " in (policy.explanation or "")
    assert policy.max_leaves == leaves, "the contexts exist already"
    explanation = policy.explanation
    policy.fit(())
    assert policy.explanation == explanation, "prices stay known"
    policy.set_prices(live_prices(*PRICES["nothing pays"]))
    tree.reset(7)
    drafter = TableDrafter()
    assert policy.grow(tree, drafter, FAR).tolist() == [0]
    assert drafter.asked == []
