"""Greedy growth of trees against a plain heapq version of Algorithms 1 and 2."""

from __future__ import annotations

import heapq
import inspect
from ctypes import sizeof
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dyspec_edge import native
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.native.library import TreeStruct, lib

EOG = (3, 5)


@dataclass(frozen=True)
class Case:
    """Limits, and a draft: candidates that follow from the node's index."""

    seed: int
    num_ranks: int
    max_nodes: int
    max_leaves: int
    max_depth: int
    threshold: float
    by_layer: bool
    style: str  # of the probabilities
    eog: tuple[int, ...] = EOG

    def candidates(self, node: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        rng = np.random.default_rng([self.seed, node])
        n = int(rng.integers(0, self.num_ranks + 1)) if rng.random() < 0.2 else self.num_ranks
        ids = rng.permutation(max(40, n))[:n].astype(np.int32)
        if self.style == "peaked":
            probs = np.sort(rng.dirichlet(np.full(n + 1, 0.2)))[::-1][:n]
        elif self.style == "drawn":  # in the order of a draw without replacement
            probs = rng.dirichlet(np.full(n + 1, 0.5))[:n]
        else:  # powers of two: many equal values
            probs = np.exp2(-1.0 - rng.permutation(n).astype(np.float64))
        return ids, probs.astype(np.float32)

    def tree(self) -> TokenTree:
        return TokenTree(self.max_nodes + 1, self.num_ranks)

    def expansion(self, tree: TokenTree) -> native.Expansion:
        return native.Expansion(
            tree,
            max_nodes=self.max_nodes,
            max_leaves=self.max_leaves,
            max_depth=self.max_depth,
            threshold=self.threshold,
            by_layer=self.by_layer,
            eog=self.eog,
        )

    def evaluate(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        for node in nodes:
            ids, probs = self.candidates(int(node))
            assert tree.num_candidates[node] == -1, "no node is asked for twice"
            tree.candidate_ids[node, : len(ids)] = ids
            tree.candidate_probs[node, : len(ids)] = probs
            tree.num_candidates[node] = len(ids)


Entry = tuple[int, float, int, int]  # layer, -value, node, rank: the smallest is drawn first


class Oracle:
    """The same growth with lists and heapq."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.token, self.parent, self.depth = [-1], [-1], [0]
        self.value, self.confidence, self.remaining = [1.0], [1.0], [1.0]
        self.num_children, self.terminal = [0], [False]
        self.evaluated: set[int] = set()
        self.heap: list[Entry] = []
        self.push(0, 0)

    def push(self, node: int, rank: int) -> None:
        value = self.value[node] * self.remaining[node]
        deep = self.depth[node] + 1 > self.case.max_depth
        fits = not self.terminal[node] and not deep and self.has_candidate(node, rank)
        if value > self.case.threshold and fits:
            layer = self.depth[node] if self.case.by_layer else 0
            heapq.heappush(self.heap, (layer, -value, node, rank))

    def has_candidate(self, node: int, rank: int) -> bool:
        return node not in self.evaluated or rank < len(self.case.candidates(node)[0])

    def num_leaves(self) -> int:
        return sum(n == 0 for n in self.num_children)

    def leaf_too_many(self, node: int) -> bool:
        return self.num_children[node] > 0 and self.num_leaves() >= self.case.max_leaves

    def wanted(self) -> list[int]:
        """Nodes to evaluate now; draws what can be drawn before."""
        while len(self.token) <= self.case.max_nodes and self.heap:
            _, _, node, rank = self.heap[0]
            if self.leaf_too_many(node) or not self.has_candidate(node, rank):
                heapq.heappop(self.heap)
            elif node not in self.evaluated:
                return self.batch()
            else:
                heapq.heappop(self.heap)
                self.draw(node, rank)
        return []

    def batch(self) -> list[int]:
        entries = [
            entry
            for entry in sorted(self.heap)
            if not self.leaf_too_many(entry[2]) and self.has_candidate(*entry[2:])
        ]
        entries = entries[: self.case.max_nodes + 1 - len(self.token)]
        layer = self.heap[0][0]
        return [e[2] for e in entries if e[0] == layer and e[2] not in self.evaluated]

    def draw(self, node: int, rank: int) -> None:
        ids, probs = self.case.candidates(node)
        prob = float(probs[rank])
        child = len(self.token)
        self.token.append(int(ids[rank]))
        self.parent.append(node)
        self.depth.append(self.depth[node] + 1)
        self.value.append(self.value[node] * prob)
        self.confidence.append(prob)
        self.remaining.append(1.0)
        self.num_children.append(0)
        self.terminal.append(ids[rank] in self.case.eog)
        self.num_children[node] += 1
        self.remaining[node] -= prob
        self.push(node, rank + 1)
        self.push(child, 0)


def assert_same_tree(tree: TokenTree, oracle: Oracle) -> None:
    n = tree.size
    assert n == len(oracle.token)
    assert tree.token[1:n].tolist() == oracle.token[1:]
    assert tree.parent[:n].tolist() == oracle.parent
    assert tree.depth[:n].tolist() == oracle.depth
    assert tree.value[:n].tolist() == oracle.value
    assert tree.confidence[:n].tolist() == oracle.confidence
    assert tree.num_children[:n].tolist() == oracle.num_children
    assert tree.terminal[:n].tolist() == oracle.terminal


def grow(case: Case, tree: TokenTree, expansion: native.Expansion) -> Oracle:
    """Grow both, comparing every request for evaluation."""
    oracle = Oracle(case)
    while True:
        nodes = expansion.run()
        assert nodes.tolist() == oracle.wanted()
        assert expansion.num_leaves == oracle.num_leaves()
        if not len(nodes):
            return oracle
        case.evaluate(tree, nodes)
        oracle.evaluated.update(nodes.tolist())


CASES = st.builds(
    Case,
    seed=st.integers(0, 10_000),
    num_ranks=st.integers(1, 9),
    max_nodes=st.sampled_from([0, 1, 2, 4, 16, 64, 200]),
    max_leaves=st.sampled_from([1, 2, 5, 16, 256]),
    max_depth=st.sampled_from([0, 1, 3, 12, 1000]),
    threshold=st.sampled_from([0.0, 0.001, 1 / 64, 0.1, 1.0]),
    by_layer=st.booleans(),
    style=st.sampled_from(["peaked", "drawn", "ties"]),
)


# A slot behind the last candidate of a node is none, and must not count among the best.
LAST_RANK = Case(0, 2, 4, 5, 3, 0.0, by_layer=False, style="ties")


@settings(max_examples=300, deadline=None)
@given(CASES)
@example(LAST_RANK)
def test_growth_equals_the_oracle(case: Case) -> None:
    tree = case.tree()
    oracle = grow(case, tree, case.expansion(tree))
    assert_same_tree(tree, oracle)
    n = tree.size
    assert n - 1 <= case.max_nodes
    assert tree.num_leaves <= case.max_leaves
    assert tree.depth[:n].max() <= case.max_depth
    assert not tree.num_children[:n][tree.terminal[:n] == 1].any()
    assert (tree.terminal[1:n] == np.isin(tree.token[1:n], EOG)).all()


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_evaluating_more_than_is_asked_for_changes_nothing(case: Case) -> None:
    lazy, eager = case.tree(), case.tree()
    grow(case, lazy, case.expansion(lazy))
    expansion = case.expansion(eager)
    while len(expansion.run()):
        waiting = np.flatnonzero(eager.num_candidates[: eager.size] == -1).astype(np.int32)
        case.evaluate(eager, waiting)
    assert_same_tree(eager, grow(case, lazy, case.expansion(lazy)))


def test_an_expansion_is_used_again_with_other_limits() -> None:
    case = Case(1, 8, 64, 16, 100, 0.0, by_layer=False, style="peaked")
    tree = case.tree()
    expansion = case.expansion(tree)
    grow(case, tree, expansion)
    smaller = Case(1, 8, 64, 16, 4, 0.01, by_layer=False, style="peaked")
    expansion.reset(max_depth=4, threshold=0.01)
    assert_same_tree(tree, grow(smaller, tree, expansion))
    expansion.reset(max_depth=100)
    assert_same_tree(tree, grow(case, tree, expansion))


def test_a_certain_draft_gives_a_chain() -> None:
    tree = TokenTree(9, 2)
    expansion = native.Expansion(tree, max_nodes=8, max_leaves=8, max_depth=100)
    passes = 0
    while len(nodes := expansion.run()):
        assert nodes.tolist() == [passes]
        tree.candidate_ids[nodes], tree.candidate_probs[nodes] = (7, 8), (1.0, 0.0)
        tree.num_candidates[nodes] = 2
        passes += 1
    assert passes == 8, "the last node is a leaf and needs no draft pass"
    assert tree.parent[:9].tolist() == list(range(-1, 8))


def test_a_threshold_tree_takes_one_pass_per_layer() -> None:
    case = Case(3, 8, 200, 256, 1000, 1 / 64, by_layer=True, style="peaked", eog=())
    tree = case.tree()
    expansion = case.expansion(tree)
    depths = []
    while len(nodes := expansion.run()):
        assert len(set(tree.depth[nodes].tolist())) == 1
        depths.append(int(tree.depth[nodes[0]]))
        case.evaluate(tree, nodes)
    assert depths == sorted(set(depths))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_nodes": 9, "max_leaves": 1, "max_depth": 1},
        {"max_nodes": -1, "max_leaves": 1, "max_depth": 1},
        {"max_nodes": 4, "max_leaves": 0, "max_depth": 1},
        {"max_nodes": 4, "max_leaves": 1, "max_depth": -1},
    ],
)
def test_limits_that_the_arrays_cannot_hold(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="for a tree of 9 nodes"):
        native.Expansion(
            TokenTree(9, 2),
            max_nodes=limits["max_nodes"],
            max_leaves=limits["max_leaves"],
            max_depth=limits["max_depth"],
        )


def test_arrays_of_another_type_are_refused() -> None:
    tree = TokenTree(9, 2)
    arrays: dict[str, Any] = {
        name: getattr(tree, name) for name in inspect.signature(native.tree_struct).parameters
    }
    arrays["value"] = tree.value.astype(np.float32)
    with pytest.raises(TypeError, match="float64"):
        native.tree_struct(**arrays)


def test_one_that_is_closed_is_not_used() -> None:
    expansion = native.Expansion(TokenTree(9, 2), max_nodes=8, max_leaves=8, max_depth=100)
    assert expansion.num_leaves == 1
    expansion.close()
    expansion.close()
    with pytest.raises(ValueError, match="closed"):
        expansion.run()


def test_the_shared_arrays_lie_as_the_library_has_them() -> None:
    found = np.zeros(32, np.int32)
    n = lib.dyspec_tree_layout(found.ctypes.data, len(found))
    fields = [getattr(TreeStruct, name) for name, *_ in TreeStruct._fields_]
    assert found[:n].tolist() == [sizeof(TreeStruct), *(field.offset for field in fields)]
