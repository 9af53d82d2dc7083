"""Thoughts and answers: every way of cutting a text gives the same result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from dyspec_edge.text.thoughts import ThoughtSplitter, opens_thought
from tests.text.cuts import random_cuts


def split(pieces: Iterable[str], *, inside: bool = False) -> tuple[str, str]:
    """(thought, answer) of a whole reply."""
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
    assert split([reply], inside=inside) == (thought, answer)
    assert split(reply, inside=inside) == (thought, answer)
    for seed in range(20):
        assert split(random_cuts(reply, seed), inside=inside) == (thought, answer)


def test_a_thought_is_streamed_before_it_ends() -> None:
    splitter = ThoughtSplitter()
    assert splitter.feed("<thi") == []
    assert splitter.feed("nk>\nfirst ") == [("thought", "first")]
    assert splitter.feed("second") == [("thought", " second")]
    assert splitter.feed("</think>yes") == [("answer", "yes")]


def test_a_prompt_can_open_the_thought() -> None:
    assert opens_thought("<|im_start|>assistant\n<think>\n")
    assert opens_thought("what?[/INST][THINK]")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
