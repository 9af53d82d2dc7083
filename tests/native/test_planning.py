"""Plans at measured prices against the rule as it is written down."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyspec_edge import native
from dyspec_edge.decode.tree import TokenTree

K = 4
CAP = float(np.float32(0.995))
ENDS = (3, 9)
WIDTHS, DEPTHS = (1, 4, 16), (1, 2, 3, 4, 8, 16)


@dataclass
class Rule:
    """The rule on a tree at fixed prices; arrays T, first and later hold seconds."""

    tree: TokenTree
    T: npt.NDArray[np.float64]
    first: dict[int, float] | None
    later: dict[int, float]
    a: float
    R: float
    left: float
    S: int
    max_depth: int

    def P(self, node: int) -> float:  # noqa: N802
        return float(self.tree.value[node])

    def best(self, values: Sequence[float], left: float) -> tuple[float, int]:
        """The largest, n < ROWS, of (sum of the n largest P) - R T(1+n), with T(1+n) <= left."""
        rows = len(self.T) - 1
        largest = sorted(values, reverse=True)[: rows - 1]
        best, total = (-self.R * self.T[1], 0), 0.0
        for n, value in enumerate(largest, 1):
            total += value
            if self.T[1 + n] <= left and total - self.R * self.T[1 + n] > best[0]:
                best = (total - self.R * self.T[1 + n], n)
        return best

    def by_likelihood(self) -> list[int]:
        nodes = [i for i in range(self.tree.size) if i == 0 or self.P(i) > 0]
        return sorted(nodes, key=lambda i: (-self.P(i), i))

    def verifiable(self) -> list[int]:
        """Nodes below the root, most likely first, without those that need a leaf beyond S."""
        taken = [0]
        for node in self.by_likelihood()[1:]:
            parent = int(self.tree.parent[node])
            has_sibling = any(self.tree.parent[other] == parent for other in taken)
            leaves = 1 + sum(
                max(0, sum(self.tree.parent[c] == p for c in taken) - 1) for p in taken
            )
            if parent in taken and not (has_sibling and leaves == self.S):
                taken.append(node)
            if len(taken) == len(self.T) - 1:
                break
        return taken[1:]

    def todo(self) -> list[int]:
        """Nodes that the draft can evaluate next, without those that need a branch beyond S."""
        tree = self.tree
        held = [i for i in range(tree.size) if tree.num_candidates[i] >= 0]
        dead = {i for i in held if tree.num_candidates[i] == 0}
        room = (tree.capacity - tree.size) // K
        found: list[int] = []
        for node in self.by_likelihood():
            if len(found) == min(WIDTHS[-1], room):
                break
            if node in held or tree.terminal[node] or tree.depth[node] >= self.max_depth:
                continue
            if node:
                parent = int(tree.parent[node])
                cached = held + found
                has_sibling = any(tree.parent[other] == parent for other in cached if other)
                branches = 1 + sum(
                    max(0, sum(tree.parent[c] == p for c in cached if c) - 1)
                    for p in range(tree.size)
                )
                if parent not in cached or parent in dead:
                    continue
                if has_sibling and branches >= self.S:
                    continue
            found.append(node)
        return found

    def hoped(self, todo: Sequence[int], depth: int) -> list[float]:
        """P of what can be verified after `depth` passes that begin with `todo`."""
        here, new = self.verifiable(), []
        for node in todo:
            copied: int | None = node
            for j in range(1, depth + 1):
                children = [] if copied is None else self.tree.children(copied)
                copied = children[0] if children else None
                value = self.P(node) * self.a**j
                if copied is not None:
                    value = max(value, self.P(copied))
                    here = [other for other in here if other != copied]
                new.append(value)
        return [self.P(i) for i in here] + new

    def worths(self) -> dict[int, float]:
        """By nodes that are drafted now, 0 for none of them, what the best way on is worth."""
        values = [self.P(i) for i in self.verifiable()]
        found = {0: self.best(values, self.left)[0]}
        todo = self.todo() if self.first is not None else []
        for i in WIDTHS:
            for k in DEPTHS:
                if i > len(todo) or self.first is None:
                    continue
                cost = self.first[i] + (k - 1) * self.later[i]
                value = self.best(self.hoped(todo[:i], k), self.left - cost)[0] - self.R * cost
                found[i] = max(value, found.get(i, value))
        return found

    def is_tie(self) -> bool:
        """Whether rounding may decide between the two best ways on."""
        ordered = sorted(self.worths().values(), reverse=True)
        return len(ordered) > 1 and ordered[0] - ordered[1] < 1e-9

    def plan(self) -> tuple[bool, list[int]]:
        worths = self.worths()
        drafted = 0
        for i in WIDTHS:
            if i in worths and worths[i] > worths[drafted] + 1e-12:
                drafted = i
        if drafted:
            return True, self.todo()[:drafted]
        here = self.verifiable()
        n = self.best([self.P(i) for i in here], self.left)[1]
        return False, sorted([0, *here[:n]])

    def enter(self, nodes: Sequence[int]) -> None:
        tree = self.tree
        for node in nodes:
            if tree.num_candidates[node] == 0:
                continue
            copied = tree.children(node)
            for child in copied:
                tree.confidence[child] = 0.0
            for rank in range(min(K, tree.num_candidates[node])):
                token = int(tree.candidate_ids[node, rank])
                chance = min(float(tree.candidate_probs[node, rank]), CAP)
                if copied and tree.token[copied[0]] == token:
                    tree.confidence[copied[0]] = chance
                else:
                    tree.add(node, token, chance, terminal=token in ENDS)
        for node in range(1, tree.size):
            tree.value[node] = tree.value[tree.parent[node]] * tree.confidence[node]


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rule, int]:
    """A rule on a root with a copied chain below it, and a seed for the draft."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    rows = draw(st.sampled_from([64, 16, 5, 2, 1]))
    tree = TokenTree(draw(st.sampled_from([64, 200, 1024])), draw(st.sampled_from([2, 8])))
    tree.reset(1)
    node = 0
    for _ in range(draw(st.sampled_from([0, 1, 3, 20]))):
        token = int(rng.integers(20))
        node = tree.add(node, token, float(rng.uniform(0.3, 1.0)), terminal=token in ENDS)
        if token in ENDS:
            break
    growth = draw(st.sampled_from([0.0, 0.002, 0.01, 0.2]))
    target = np.concatenate([[0.0], 1.0 + growth * np.cumsum(rng.uniform(0.5, 1.5, rows))])
    price = draw(st.sampled_from([0.0005, 0.01, 0.2]))
    later = {i: price * (1 + 0.1 * i) for i in WIDTHS}
    rule = Rule(
        tree,
        target,
        None if draw(st.integers(0, 5)) == 0 else {i: 1.5 * later[i] for i in WIDTHS},
        later,
        a=float(rng.uniform(0.4, 0.985)),
        R=float(np.exp(rng.uniform(-4.0, 0.5))),
        left=float(rng.uniform(0.5, 20.0)),
        S=draw(st.sampled_from([1, 2, 5, 16])),
        max_depth=draw(st.sampled_from([1000, 3, 1])),
    )
    return rule, seed


def evaluate(tree: TokenTree, nodes: Sequence[int], seed: int) -> None:
    for node in nodes:
        rng = np.random.default_rng([seed, node])
        k = tree.candidate_ids.shape[1]
        tree.num_candidates[node] = n = k if rng.random() < 0.95 else 0
        tree.candidate_ids[node, :n] = rng.permutation(max(20, k))[:n]
        tree.candidate_probs[node, :n] = np.sort(rng.dirichlet(np.full(k, 0.3)))[::-1][:n]


def planner_for(rule: Rule) -> native.Planner:
    return native.Planner(
        rule.tree,
        len(rule.T) - 1,
        num_children=K,
        max_leaves=rule.S,
        max_confidence=0.995,
        eog=ENDS,
    )


def ask(planner: native.Planner, rule: Rule) -> native.Plan:
    planner.set_prices(
        target=rule.T,
        acceptance=rule.a,
        worth=rule.R,
        left=rule.left,
        max_depth=rule.max_depth,
        first=list(rule.first.values()) if rule.first else None,
        later=list(rule.later.values()),
    )
    return planner.plan()


def snapshot(tree: TokenTree) -> list[list[float]]:
    n = tree.size
    arrays = (tree.token, tree.parent, tree.depth, tree.num_children, tree.confidence)
    return [array[:n].tolist() for array in (*arrays, tree.value, tree.terminal)]


@settings(max_examples=150, deadline=None)
@given(rules())
def test_a_step_is_planned_as_the_rule_says(case: tuple[Rule, int]) -> None:
    rule, seed = case
    planner = planner_for(rule)
    for _ in range(12):
        drafts, nodes = rule.plan()
        plan = ask(planner, rule)
        if (plan.drafts, len(plan.nodes)) != (drafts, len(nodes)) and rule.is_tie():
            return
        assert plan.drafts == drafts
        if not drafts:
            assert plan.nodes[0] == 0
            assert sorted(plan.nodes.tolist()) == nodes
            for at, node in enumerate(plan.nodes[1:].tolist(), 1):
                assert rule.tree.parent[node] in plan.nodes[:at]
            break
        assert plan.nodes.tolist() == nodes
        evaluate(rule.tree, nodes, seed)
        copy = TokenTree(rule.tree.capacity, rule.tree.candidate_ids.shape[1])
        for name, array in vars(rule.tree).items():
            if isinstance(array, np.ndarray):
                getattr(copy, name)[...] = array
        copy.struct.n_nodes = rule.tree.size
        planner.enter(plan.nodes)
        Rule(**{**vars(rule), "tree": copy}).enter(nodes)
        assert snapshot(rule.tree) == snapshot(copy)
        assert rule.first is not None
        rule.left -= rule.first[len(nodes)]
        rule.first = rule.later


def test_what_does_not_fit_is_an_error() -> None:
    tree = TokenTree(4, 8)
    planner = native.Planner(tree, 2, num_children=K, max_leaves=4, max_confidence=0.995)
    evaluate(tree, [0], 3)
    tree.num_candidates[0] = 8
    with pytest.raises(ValueError, match="cannot be entered"):
        planner.enter(np.array([0], np.int32))
    with pytest.raises(ValueError, match="cannot be entered"):
        planner.enter(np.array([7], np.int32))
    with pytest.raises(ValueError, match="64 rows"):
        native.Planner(tree, 64, num_children=K, max_leaves=4, max_confidence=0.995).plan()


@pytest.mark.skipif("DYSPEC_LIBRARY" in os.environ, reason="sanitizers take their time")
def test_planning_is_no_burden() -> None:
    tree = TokenTree(1024, 64)
    planner = native.Planner(tree, 64, num_children=K, max_leaves=16, max_confidence=0.995)
    for node in range(63):
        evaluate(tree, [node], 0)
        tree.num_candidates[node] = 64
        planner.enter(np.array([node], np.int32))
    assert tree.size > 240
    planner.set_prices(
        target=np.linspace(0, 2, 65),
        acceptance=0.8,
        worth=0.1,
        left=9.0,
        max_depth=99,
        first=[0.1] * 3,
        later=[0.1] * 3,
    )
    seconds = []
    for _ in range(50):
        started = time.perf_counter()
        planner.plan()
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 50e-6


def test_one_that_is_closed_is_not_used() -> None:
    planner = native.Planner(TokenTree(64, 8), 8, num_children=K, max_leaves=4, max_confidence=0.9)
    planner.plan()
    planner.close()
    planner.close()
    with pytest.raises(ValueError, match="closed"):
        planner.plan()
