"""What is kept of a step's tree."""

from __future__ import annotations

import numpy as np

from dyspec_edge.decode.snapshot import TreeSnapshot
from dyspec_edge.decode.tree import TokenTree
from tests.decode.test_tree import WORDS, make_tree

ALL = np.arange(5, dtype=np.int32)


def test_the_accepted_path_is_marked() -> None:
    shown = TreeSnapshot.of(make_tree(), ALL, [0, 1, 4]).render(WORDS.__getitem__)
    assert shown.splitlines() == [
        "* 'the'",
        "* ├─ ' cat'  0.50",
        "  │  ├─ ' sat'  0.50",
        "* │  └─ ' ran'  0.25",
        "  └─ ' dog'  0.25",
    ]


def test_what_was_not_checked_is_kept_but_not_shown() -> None:
    kept = TreeSnapshot.of(make_tree(), np.array([0, 1, 4], np.int32), [0])
    assert kept.token.tolist() == make_tree().token[:5].tolist()
    assert kept.checked.tolist() == [True, True, False, False, True]
    assert kept.accepted.tolist() == [True, False, False, False, False]
    assert kept.render(WORDS.__getitem__).splitlines() == [
        "* 'the'",
        "  └─ ' cat'  0.50",
        "     └─ ' ran'  0.25",
    ]


def test_a_root_alone() -> None:
    kept = TreeSnapshot.of(TokenTree(2, 1), ALL[:1], [0])
    assert kept.render(WORDS.__getitem__) == "* 'the'"


def test_a_tree_as_deep_as_there_are() -> None:
    tree = TokenTree(1025, 1)
    for node in range(1024):
        tree.add(node, 1, 1.0)
    kept = TreeSnapshot.of(tree, np.arange(1025, dtype=np.int32), range(1025))
    lines = kept.render(WORDS.__getitem__).splitlines()
    assert len(lines) == 1025
    assert all(line.startswith("*") for line in lines)


def test_the_next_step_changes_nothing() -> None:
    tree = make_tree()
    kept = TreeSnapshot.of(tree, ALL, [0, 1])
    before = kept.render(WORDS.__getitem__)
    tree.reset(3)
    tree.add(0, 3, 0.9)
    assert kept.render(WORDS.__getitem__) == before
