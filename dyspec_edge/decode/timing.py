"""What a step costs: one clock for its two halves."""

from __future__ import annotations

import time
from typing import NamedTuple

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft.interface import Drafter


class StepCost(NamedTuple):
    """Seconds of a step, and rows.

    Attributes:
        seconds: of the whole step, but for a draft that read the prompt: that is an investment,
            not decoding.
        draft_seconds: of growing the tree, out of `seconds`.
        target_seconds: of the target's pass and the commit, out of `seconds`.
        draw_seconds: of drawing the tokens, out of `seconds`; plain decoding does that as well.
        num_rows: of the target's pass, padding included.
    """

    seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    draw_seconds: float = 0.0
    num_rows: int = 1


class StepTimer:
    """Times the steps of one conversation: `start`, `grown`, `verified`, `finished`."""

    def __init__(self, target: Cache, drafter: Drafter) -> None:
        self._target, self._drafter = target, drafter
        self._started = self._grown = self._verified = self._read_before = 0.0
        self._rows_before = 0

    def start(self) -> None:
        """A step begins."""
        self._read_before = self._drafter.read_seconds
        self._rows_before = self._target.num_rows
        self._started = time.perf_counter()

    def grown(self) -> None:
        """The tree is there; the target comes next."""
        self._grown = time.perf_counter()

    def verified(self) -> None:
        """Both caches hold the accepted path; what the draft is told of it comes next."""
        self._verified = time.perf_counter()

    def finished(self, draw_seconds: float) -> StepCost:
        """What it cost."""
        now = time.perf_counter()
        read = self._drafter.read_seconds - self._read_before
        return StepCost(
            seconds=now - self._started - read,
            draft_seconds=self._grown - self._started - read,
            target_seconds=self._verified - self._grown - draw_seconds,
            draw_seconds=draw_seconds,
            num_rows=self._target.num_rows - self._rows_before,
        )
