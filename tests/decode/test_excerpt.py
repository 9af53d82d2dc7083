"""A text without its gaps."""

from __future__ import annotations

import random

from dyspec_edge.decode.draft.excerpt import Excerpt, Gap


def test_gaps_are_what_was_skipped() -> None:
    text = list(range(100))
    excerpt = Excerpt()
    assert excerpt.of(text) == text
    assert excerpt.length(100) == 100
    excerpt.skip(10, 50)
    assert excerpt.of(text) == [*range(10), *range(60, 100)]
    assert [excerpt.length(n) for n in (0, 10, 11, 60, 61, 100)] == [0, 10, 10, 10, 11, 50]
    excerpt.skip(10, 5)
    assert excerpt.gaps == [Gap(10, 55)]
    excerpt.keep(10)
    assert excerpt.of(text) == text, "nothing behind the gap is known"


def test_any_gaps_against_a_list_of_positions() -> None:
    rng = random.Random(1)
    for _ in range(300):
        excerpt, size = Excerpt(), rng.randrange(1, 60)
        text = [rng.randrange(1000) for _ in range(size)]
        places = list(range(size))  # of the excerpt's tokens in the text
        for _ in range(rng.randrange(5)):
            place = rng.randrange(len(places) + 1)
            num = rng.randrange(1, 8)
            if place + num < len(places):
                excerpt.skip(place, num)
                del places[place : place + num]
        for first in range(len(places) + 1):
            assert excerpt.of(text, first) == [text[place] for place in places[first:]]
        for length in range(size + 1):
            assert excerpt.length(length) == sum(place < length for place in places)
        kept = rng.randrange(len(places) + 1)
        known = places[:kept]
        excerpt.keep(kept)
        rest = range(known[-1] + 1 if known else 0, size)
        assert excerpt.of(text) == [text[place] for place in [*known, *rest]]
        assert excerpt.gaps == sorted(excerpt.gaps)
