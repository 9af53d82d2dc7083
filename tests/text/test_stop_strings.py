"""Stop strings: every way of cutting a text gives the same result."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dyspec_edge.errors import OptionError
from dyspec_edge.text.stop_strings import StopStrings
from tests.text.cuts import random_cuts


def run_stops(stops: list[str], pieces: Iterator[str]) -> tuple[str, bool]:
    stream = StopStrings(stops)
    shown = ""
    for piece in pieces:
        safe, stopped = stream.feed(piece)
        shown += safe
        if stopped:
            return shown, True
    return shown + stream.flush(), False


def stops_one_by_one(stops: list[str], text: str) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


def test_a_stop_string_over_several_pieces_is_never_shown() -> None:
    stream = StopStrings(["<END>"])
    assert stream.feed("Hello <") == ("Hello ", False)
    assert stream.feed("EN") == ("", False)
    assert stream.feed("D> and more") == ("", True)
    assert stream.feed("more") == ("", True)
    assert stream.flush() == ""


def test_a_false_alarm_is_released() -> None:
    stream = StopStrings(["<END>"])
    assert stream.feed("a<EN") == ("a", False)
    assert stream.feed("<E") == ("<EN", False)
    assert stream.feed("X") == ("<EX", False)
    assert stream.feed("<") == ("", False)
    assert stream.flush() == "<"


def test_the_stop_string_that_ends_first_wins() -> None:
    assert StopStrings(["abcd", "bc"]).feed("xabcd") == ("xa", True)
    assert StopStrings(["c", "abc"]).feed("xabcd") == ("x", True)


def test_no_stop_strings_hold_nothing() -> None:
    assert StopStrings([]).feed("text") == ("text", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(OptionError, match="empty"):
        StopStrings(["a", ""])


def test_stop_strings_agree_with_one_character_at_a_time() -> None:
    rng = random.Random(1)
    for seed in range(400):
        text = "".join(rng.choice("ab\n") for _ in range(14))
        stops = ["".join(rng.choice("ab\n") for _ in range(rng.randint(1, 5))) for _ in range(3)]
        expected = stops_one_by_one(stops, text)
        assert run_stops(stops, random_cuts(text, seed)) == expected
        assert run_stops(stops, iter([text])) == expected
