"""Work in stints: never at the same time as its caller, errors and all."""

from __future__ import annotations

import pytest

from dyspec_edge.server.stints import Pause, Stints


def test_caller_and_work_take_turns() -> None:
    order: list[str] = []

    def work(pause: Pause) -> int:
        for letter in "abc":
            order.append(letter)
            pause()
        return 7

    stints = Stints(work)
    assert order == []
    for number in "123":
        assert not stints.advance()
        order.append(number)
    assert stints.advance()
    assert stints.advance()
    assert order == list("a1b2c3")
    assert stints.result == 7


def test_an_error_comes_out_at_the_caller_each_time() -> None:
    def work(pause: Pause) -> None:
        pause()
        raise KeyError("x")

    stints = Stints(work)
    assert not stints.advance()
    for _ in range(2):
        with pytest.raises(KeyError):
            stints.advance()
