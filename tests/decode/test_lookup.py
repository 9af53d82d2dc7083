"""Prompt lookup against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dyspec_edge.decode.draft import lookup
from dyspec_edge.decode.draft.lookup import LONGEST, Lookup

TEXTS = st.lists(st.integers(0, 2), max_size=60)
PERIODIC = st.builds(
    lambda part, times, rest: part * times + rest,
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=3),
)


def longest_match(text: Sequence[int]) -> tuple[int, int]:
    """Lengths above 16 count as 16 when matches are compared."""
    best, found = 0, 0
    for end in range(2, len(text)):
        m = 0
        while m < end and text[end - m - 1] == text[len(text) - m - 1]:
            m += 1
        if m >= 2 and min(m, LONGEST) >= min(best, LONGEST):
            best, found = m, end
    return best, found


def filled(text: Sequence[int]) -> Lookup:
    index = Lookup()
    index.append(text)
    return index


@given(TEXTS | PERIODIC)
def test_the_longest_and_latest_match(text: list[int]) -> None:
    assert filled(text).match() == longest_match(text)


@given(TEXTS | PERIODIC)
def test_every_match_on_the_way(text: list[int]) -> None:
    index = Lookup()
    for n, token in enumerate(text):
        assert index.match() == longest_match(text[:n])
        index.append([token])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), TEXTS | PERIODIC), max_size=6))
def test_cuts_leave_nothing_behind(changes: list[tuple[float, bool, list[int]]]) -> None:
    index, text = Lookup(), list[int]()
    for share, at_once, added in changes:
        kept = int(share * len(text))
        text = text[:kept] + added
        if at_once:
            index.follow(text)
        else:
            index.truncate(kept)
            index.append(added)
        assert index.tokens == text
        assert index.match() == longest_match(text)
    fresh = filled(text)
    assert index._ends == fresh._ends
    assert index._replaced == fresh._replaced


def test_what_followed() -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    index = filled(text)
    assert index.match() == (3, 3)
    assert index.copy(3, 4) == [4, 5, 9, 1]
    assert index.copy(3, 10) == [4, 5, 9, 1, 2, 3, 4, 5, 9, 1], "it goes round"


def test_colliding_keys_are_no_matches() -> None:
    def colliding(_: object) -> int:
        return 7

    try:
        lookup.hash = colliding  # type: ignore[attr-defined]
        assert filled([1, 2, 3, 4, 5, 6]).match() == (0, 0)
        index = filled([1, 2, 3, 1, 2])
        assert index.match() in ((0, 0), (2, 2))
        index.truncate(0)
        assert not any(index._ends)
    finally:
        del lookup.hash  # type: ignore[attr-defined]


class CountingList(list[int]):
    """Counts how often single tokens are looked at."""

    num_looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.num_looks += isinstance(at, int)
        return super().__getitem__(at)


def test_a_long_match_is_not_compared_again_and_again() -> None:
    page = np.random.default_rng(1).integers(0, 50_000, 2000).tolist()
    index = filled(page + page[:16])
    index.tokens = text = CountingList(index.tokens)
    for n, token in enumerate(page[16:1000], 16):
        assert index.match() == (n, n)
        index.append([token])
    assert text.num_looks < 100
