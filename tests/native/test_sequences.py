"""Sequence ids and orders of trees, against a model of the cache's visibility rule."""

from __future__ import annotations

import ctypes
import itertools
from ctypes import c_int32
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyspec_edge import native
from dyspec_edge.errors import DyspecError
from dyspec_edge.native.library import OUT_OF_SEQUENCES, lib, pointer

Ints = npt.NDArray[np.int32]


class Assignment(NamedTuple):
    """Sequence ids of the rows of one batch.

    Attributes:
        offsets: int32[n + 1]; row i carries ids[offsets[i]:offsets[i + 1]], its own one first.
        ids: int32[offsets[n]].
        copies: int32[m, 3] of (source id, new id, depth): before the batch is decoded, the cells
            at depths 0..depth of the source are to be given to the new id.
        num_used: ids 0..num_used-1 are taken now.
    """

    offsets: Ints
    ids: Ints
    copies: Ints
    num_used: int


def assign(
    nodes: Ints,
    parent: Ints,
    depth: Ints,
    seq: Ints,
    continued: npt.NDArray[np.uint8],
    num_used: int,
    num_seq: int,
) -> Assignment:
    """Give the nodes of one batch their sequence ids.

    A node's first child continues on its id, a later child takes the next unused id.  The root
    (node 0) counts as placed with id 0; if it is in `nodes`, it comes first and carries all ids
    that are taken.

    Args:
        nodes: int32[n], parents before children, each node's parent placed already or earlier.
        parent: int32[capacity].
        depth: int32[capacity].
        seq: int32[capacity], in and out, the id of each placed node, -1 elsewhere.
        continued: uint8[capacity], in and out, 1 where a child goes on with the node's id.
        num_used: ids that are taken already.
        num_seq: ids that there are.

    Raises:
        DyspecError: more leaves than ids; the arrays are unchanged.
        ValueError: an order that is not allowed; the arrays are unchanged.
    """
    n, capacity = len(nodes), len(seq)
    row_of = np.empty(capacity, np.int32)
    offsets = np.empty(n + 1, np.int32)
    ids = np.empty(n * max(num_seq, 1), np.int32)
    copies = np.empty((n, 3), np.int32)
    used = c_int32(num_used)
    num_copies = lib.dyspec_assign_sequences(
        pointer(nodes, np.int32, n),
        n,
        pointer(parent, np.int32, capacity),
        pointer(depth, np.int32, capacity),
        capacity,
        pointer(seq, np.int32, capacity),
        pointer(continued, np.uint8, capacity),
        ctypes.byref(used),
        num_seq,
        row_of.ctypes.data,
        offsets.ctypes.data,
        ids.ctypes.data,
        copies.ctypes.data,
    )
    if num_copies == OUT_OF_SEQUENCES:
        raise DyspecError(
            f"the tree of {n} rows needs more leaves than the {num_seq} sequence ids of the "
            "context; use a smaller tree"
        )
    if num_copies < 0:
        raise ValueError(f"nodes {nodes.tolist()} cannot be placed in this order")
    return Assignment(offsets, ids[: offsets[n]], copies[:num_copies], used.value)


def random_tree(seed: int, n: int, branching: float) -> tuple[Ints, Ints]:
    """Parents and depths; children of one node do not stand together."""
    rng = np.random.default_rng(seed)
    parent, depth = np.full(n, -1, np.int32), np.zeros(n, np.int32)
    for i in range(1, n):
        parent[i] = rng.integers(0, i) if rng.random() < branching else i - 1
        depth[i] = depth[parent[i]] + 1
    return parent, depth


def ancestors(parent: Ints, node: int) -> set[int]:
    """The node and all above it."""
    path = set()
    while node >= 0:
        path.add(node)
        node = int(parent[node])
    return path


class Cache:
    """Cells with sets of ids: query i sees cell j iff j has i's first id and stands no later."""

    def __init__(self, parent: Ints, depth: Ints, num_seq: int) -> None:
        self.parent, self.depth, self.num_seq = parent, depth, num_seq
        self.seq = np.full(len(parent), -1, np.int32)
        self.continued = np.zeros(len(parent), np.uint8)
        self.used = 1
        self.cells: dict[int, set[int]] = {}

    def assign(self, nodes: Ints) -> Assignment:
        return assign(
            nodes, self.parent, self.depth, self.seq, self.continued, self.used, self.num_seq
        )

    def decode(self, nodes: Ints) -> None:
        """Place, copy and decode one batch, and check what its rows see."""
        offsets, ids, copies, self.used = self.assign(nodes)
        for source, new, last in copies.tolist():
            for node, members in self.cells.items():
                if source in members and self.depth[node] <= last:
                    members.add(new)
        sets = [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        for node, members in zip(nodes.tolist(), sets, strict=True):
            assert len(set(members)) == len(members)
            assert set(members) <= set(range(self.num_seq))
            above = int(self.parent[node])
            if above in nodes:
                assert set(members) <= self.cells[above], "an id set may only shrink"
            self.cells[node] = set(members)
        for node, members in zip(nodes.tolist(), sets, strict=True):
            assert members[0] == self.seq[node]
            for seq in members:
                assert self.seen(node, seq) == ancestors(self.parent, node)

    def seen(self, node: int, seq: int) -> set[int]:
        depth = self.depth
        return {
            j for j, members in self.cells.items() if seq in members and depth[j] <= depth[node]
        }


def batches(seed: int, parent: Ints, num_batches: int) -> list[Ints]:
    """All nodes in a random order with parents before children, in so many pieces."""
    rng = np.random.default_rng(seed)
    order, ready = [], [0]
    while ready:
        node = ready.pop(int(rng.integers(len(ready))))
        order.append(node)
        ready.extend(np.flatnonzero(parent == node).tolist())
    cuts = np.sort(rng.integers(1, len(order) + 1, num_batches - 1))
    return [part.astype(np.int32) for part in np.split(np.array(order), cuts)]


def layers(depth: Ints) -> list[Ints]:
    return [np.flatnonzero(depth == d).astype(np.int32) for d in range(int(depth.max()) + 1)]


def num_leaves(parent: Ints) -> int:
    return len(set(range(len(parent))) - set(parent.tolist()))


TREES = st.builds(random_tree, st.integers(0, 10_000), st.integers(1, 70), st.floats(0, 1))


@settings(max_examples=100, deadline=None)
@given(TREES, st.integers(0, 3))
def test_one_batch_sees_every_node_with_its_ancestors(tree: tuple[Ints, Ints], spare: int) -> None:
    parent, depth = tree
    cache = Cache(parent, depth, num_leaves(parent) + spare)
    cache.decode(np.arange(len(parent), dtype=np.int32))
    assert cache.used == num_leaves(parent)
    assert cache.cells[0] == set(range(cache.used)), "the root carries all ids that are taken"
    n = len(parent)
    for node in range(n):
        assert cache.seen(node, int(cache.seq[node])) == ancestors(parent, node)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_layers(tree: tuple[Ints, Ints]) -> None:
    parent, depth = tree
    cache = Cache(parent, depth, num_leaves(parent))
    for nodes in layers(depth):
        cache.decode(nodes)
    assert cache.used == num_leaves(parent)


@settings(max_examples=200, deadline=None)
@given(TREES, st.integers(0, 1000), st.integers(1, 8))
def test_any_batches(tree: tuple[Ints, Ints], seed: int, num_batches: int) -> None:
    parent, depth = tree
    cache = Cache(parent, depth, num_leaves(parent))
    for nodes in batches(seed, parent, num_batches):
        cache.decode(nodes)
    assert cache.used == num_leaves(parent)


def test_a_fresh_id_takes_over_the_cached_path() -> None:
    #  0 -- 1 -- 2 -- 3      then 4 below 2, and 5 below 4
    parent = np.array([-1, 0, 1, 2, 2, 4], np.int32)
    depth = np.array([0, 1, 2, 3, 3, 4], np.int32)
    cache = Cache(parent, depth, 4)
    first = cache.assign(np.array([0, 1, 2, 3], np.int32))
    assert first.ids.tolist() == [0, 0, 0, 0]
    assert first.copies.tolist() == []
    cache.used = first.num_used
    second = cache.assign(np.array([4, 5], np.int32))
    assert second.copies.tolist() == [[0, 1, 2]]
    assert second.ids.tolist() == [1, 1]
    assert second.num_used == 2


def test_the_root_counts_as_placed_by_convention() -> None:
    parent, depth = np.array([-1, 0, 0], np.int32), np.array([0, 1, 1], np.int32)
    seq = np.array([0, -1, -1], np.int32)
    placed = assign(np.array([1, 2], np.int32), parent, depth, seq, np.zeros(3, np.uint8), 1, 2)
    assert seq.tolist() == [0, 0, 1]
    assert placed.offsets.tolist() == [0, 1, 2]
    assert placed.ids.tolist() == [0, 1]
    assert placed.copies.tolist() == [[0, 1, 0]], "a fresh id gets the root"


def test_no_nodes() -> None:
    parent, depth = random_tree(0, 3, 0.5)
    placed = Cache(parent, depth, 2).assign(np.zeros(0, np.int32))
    assert placed.offsets.tolist() == [0]
    assert not len(placed.ids)
    assert not len(placed.copies)
    assert placed.num_used == 1


@settings(max_examples=100, deadline=None)
@given(TREES, st.integers(0, 1000), st.integers(1, 5))
def test_too_many_leaves_change_nothing(
    tree: tuple[Ints, Ints], seed: int, num_batches: int
) -> None:
    parent, depth = tree
    leaves = num_leaves(parent)
    cache = Cache(parent, depth, max(1, leaves - 1))
    for nodes in batches(seed, parent, num_batches):
        placed = np.flatnonzero(cache.seq >= 0)
        together = np.union1d(placed, nodes)
        if len(set(together.tolist()) - set(parent[together].tolist())) > cache.num_seq:
            before = cache.seq.copy(), cache.continued.copy()
            with pytest.raises(DyspecError, match=f"the {cache.num_seq} sequence ids"):
                cache.assign(nodes)
            np.testing.assert_array_equal(cache.seq, before[0])
            np.testing.assert_array_equal(cache.continued, before[1])
            return
        cache.used = cache.assign(nodes).num_used
    assert leaves == 1


@pytest.mark.parametrize("nodes", [[2], [1, 0], [1, 1], [9], [-1], [0, 1, 2, 0]])
def test_an_order_that_is_not_allowed(nodes: list[int]) -> None:
    parent, depth = np.array([-1, 0, 1], np.int32), np.array([0, 1, 2], np.int32)
    cache = Cache(parent, depth, 4)
    with pytest.raises(ValueError, match="cannot be placed"):
        cache.assign(np.array(nodes, np.int32))
    assert cache.seq.tolist() == [-1, -1, -1]
    assert not cache.continued.any()


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_depth_first(tree: tuple[Ints, Ints]) -> None:
    parent, _ = tree

    def visit(node: int) -> list[int]:
        children = np.flatnonzero(parent == node).tolist()
        return [node, *(below for child in children for below in visit(child))]

    assert native.depth_first(parent, len(parent)).tolist() == visit(0)


def test_an_order_that_is_none() -> None:
    with pytest.raises(ValueError, match="before its child"):
        native.depth_first(np.array([-1, 2, 0], np.int32), 3)
