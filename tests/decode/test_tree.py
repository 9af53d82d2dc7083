"""The token tree: what is where, and how it is drawn."""

from __future__ import annotations

import pytest

from dyspec_edge.decode.tree import TokenTree

WORDS = {0: "the", 1: " cat", 2: " dog", 3: " sat", 4: " ran"}


def make_tree() -> TokenTree:
    """The tree of the module's picture."""
    tree = TokenTree(8, 4)
    tree.reset(0)
    assert tree.add(0, 1, 0.5) == 1
    assert tree.add(0, 2, 0.25) == 2
    assert tree.add(1, 3, 0.5) == 3
    assert tree.add(1, 4, 0.25, terminal=True) == 4
    return tree


def test_a_new_tree_is_its_root() -> None:
    tree = TokenTree(8, 4)
    tree.reset(7)
    assert (tree.size, tree.num_drafted, tree.num_leaves) == (1, 0, 1)
    assert tree.token[0] == 7
    assert (tree.parent[0], tree.depth[0], tree.value[0]) == (-1, 0, 1.0)
    assert tree.num_candidates[0] == -1
    assert tree.children(0) == []
    assert tree.path(0) == [0]


def test_nodes_know_their_place() -> None:
    tree = make_tree()
    assert (tree.size, tree.num_drafted, tree.num_leaves) == (5, 4, 3)
    assert tree.depth[:5].tolist() == [0, 1, 1, 2, 2]
    assert tree.num_children[:5].tolist() == [2, 2, 0, 0, 0]
    assert tree.value[:5].tolist() == [1.0, 0.5, 0.25, 0.25, 0.125]
    assert tree.terminal[:5].tolist() == [0, 0, 0, 0, 1]


def test_children_stand_in_the_order_of_drawing() -> None:
    tree = make_tree()
    assert [tree.children(node) for node in range(5)] == [[1, 2], [3, 4], [], [], []]
    tree.add(0, 9, 0.1)
    assert tree.children(0) == [1, 2, 5]


def test_child_finds_a_token() -> None:
    tree = make_tree()
    assert tree.child(0, 2) == 2
    assert tree.child(1, 4) == 4
    assert tree.child(0, 4) == -1, "a grandchild is no child"
    assert tree.child(4, 1) == -1


def test_path_runs_from_the_root() -> None:
    tree = make_tree()
    assert tree.path(4) == [0, 1, 4]
    assert tree.path(2) == [0, 2]


def test_reset_leaves_nothing_behind() -> None:
    tree = make_tree()
    tree.num_candidates[:5] = 4
    tree.reset(6)
    assert tree.size == 1
    assert tree.children(0) == []
    for node in range(1, 5):
        assert tree.add(0, node, 0.1) == node
    assert tree.num_candidates[:5].tolist() == [-1] * 5
    assert tree.num_children[:5].tolist() == [4, 0, 0, 0, 0]
    assert not tree.terminal[:5].any()
    assert tree.parent[1:5].tolist() == [0] * 4
    assert tree.depth[1:5].tolist() == [1] * 4


def test_a_full_tree_says_so() -> None:
    tree = TokenTree(2, 1)
    tree.add(0, 1, 0.5)
    with pytest.raises(IndexError, match="a tree of 2 nodes is full"):
        tree.add(0, 2, 0.5)


def test_native_code_and_python_share_the_size() -> None:
    tree = make_tree()
    tree.struct.n_nodes = 3
    assert tree.size == 3
    assert tree.children(0) == [1, 2]
