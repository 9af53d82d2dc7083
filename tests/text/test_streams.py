"""The three text streams: every way of cutting a text gives the same result."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from dyspec_edge.errors import OptionError
from dyspec_edge.text.streams import (
    StopStrings,
    ThoughtSplitter,
    Utf8Stream,
    opens_thought,
    split_thoughts,
)

HARD_TEXT = "family 👨‍👩‍👧‍👦, Korean 한국어, Thai ภาษาไทย, flag 🇰🇷, é"


def random_cuts(text: str, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while text:
        size = rng.randint(0, 4)
        yield text[:size]
        text = text[size:]


# Characters


def test_each_byte_alone_gives_the_whole_text() -> None:
    stream = Utf8Stream()
    parts = [stream.feed(bytes([byte])) for byte in HARD_TEXT.encode()]
    assert "".join(parts) == HARD_TEXT
    assert stream.flush() == ""
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_pieces_of_any_size_agree(size: int) -> None:
    data = HARD_TEXT.encode()
    stream = Utf8Stream()
    text = "".join(stream.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert text + stream.flush() == HARD_TEXT


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a\x80b", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\x98", b"\xed\xa0\x80"],
)
def test_invalid_bytes_become_what_decode_makes_of_them(data: bytes) -> None:
    stream = Utf8Stream()
    text = "".join(stream.feed(bytes([byte])) for byte in data)
    assert text + stream.flush() == data.decode("utf-8", "replace")


def test_an_incomplete_character_is_held_until_it_is_lost() -> None:
    stream = Utf8Stream()
    assert stream.feed("é".encode()[:1]) == ""
    assert stream.num_pending == 1
    assert stream.feed(b"x") == "\ufffdx"
    assert stream.num_pending == 0


def test_flush_starts_afresh() -> None:
    stream = Utf8Stream()
    stream.feed(b"\xf0\x9f")
    assert stream.flush() == "\ufffd"
    assert stream.feed("é".encode()) == "é"


# Stop strings


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


# Thoughts


def run_thoughts(pieces: Iterator[str], inside: bool = False) -> tuple[str, str]:
    splitter = ThoughtSplitter(inside=inside)
    text = {"thought": "", "answer": ""}
    for kind, part in itertools.chain(*map(splitter.feed, pieces), splitter.flush()):
        assert part
        text[kind] += part
    return text["thought"], text["answer"]


@pytest.mark.parametrize(
    ("reply", "inside", "thought", "answer"),
    [
        ("<think>\nhm, 2\n</think>\n\nIt is 2.\n", False, "hm, 2", "It is 2.\n"),
        ("\n <think>a</think>b", False, "a", "b"),
        ("<think>\n\n</think>\n\nok", False, "", "ok"),
        ("no thought\n", False, "", "no thought\n"),
        ("  indented", False, "", "  indented"),
        ("write <think>x</think>", False, "", "write <think>x</think>"),
        ("<think>a</think> b <think>c</think>", False, "a", "b <think>c</think>"),
        ("<think>a < b </thin", False, "a < b </thin", ""),
        ("<think> never closed \n", False, "never closed", ""),
        ("<thi", False, "", "<thi"),
        ("<thing>", False, "", "<thing>"),
        ("\nso\n\nthis </think>\nyes", True, "so\n\nthis", "yes"),
        ("", False, "", ""),
        (" \n", False, "", " \n"),
    ],
)
def test_thoughts_are_split(reply: str, inside: bool, thought: str, answer: str) -> None:
    assert split_thoughts(reply, inside=inside) == (thought, answer)
    assert run_thoughts(iter(reply), inside) == (thought, answer)
    for seed in range(20):
        assert run_thoughts(random_cuts(reply, seed), inside) == (thought, answer)


def test_a_thought_is_streamed_before_it_ends() -> None:
    splitter = ThoughtSplitter()
    assert splitter.feed("<thi") == []
    assert splitter.feed("nk>\nfirst ") == [("thought", "first")]
    assert splitter.in_thought
    assert splitter.feed("second") == [("thought", " second")]
    assert splitter.feed("</think>yes") == [("answer", "yes")]
    assert not splitter.in_thought


def test_a_prompt_can_open_the_thought() -> None:
    assert opens_thought("<|im_start|>assistant\n<think>\n")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
