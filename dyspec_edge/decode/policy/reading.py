"""Whether a draft reads the prompt, and how much of it: an investment, decided with its use."""

from __future__ import annotations

import math
from collections.abc import Callable

from dyspec_edge.decode.draft.interface import Drafter

SHARES = {64: 0.60, 128: 0.74, 256: 0.85, 512: 0.90, 1024: 0.95}
"""What a draft may read of a longer prompt, first and last tokens together, and the share of its
acceptance that it then has (benchmarks/results/requests.md)."""

MOST_MISSED = max(SHARES)
"""Of what it missed in the middle of a reply it reads no more."""

STAKE, LOSS = 16.0, 0.01
"""Lost is at most the time of so many plain tokens and that share of the whole request's, ..."""

SHORT_REPLY = 16
"""... be the reply but so many tokens long."""

EXPECTED_REPLY = 128
"""Tokens of a reply before any was seen."""


class Reading:
    """What is expected of a reply, and what reading for it may cost.

    Attributes:
        num_replies, num_tokens: replies that were seen and their tokens.
        room: tokens that the reply may still have at most.
    """

    def __init__(self) -> None:
        self.room = math.inf
        self.num_replies, self.num_tokens = 1, EXPECTED_REPLY
        self._emitted = 0
        self._prompt_seconds = 0.0

    def begin(self, prompt_seconds: float) -> None:
        """Hear of a new reply.

        Args:
            prompt_seconds: the target takes for what it has to read of the prompt.
        """
        if self._emitted:
            self.num_replies += 1
            self.num_tokens += self._emitted
        self._emitted, self._prompt_seconds = 0, prompt_seconds
        self.room = math.inf

    def emit(self, num_tokens: int) -> None:
        """Take tokens of the reply."""
        self._emitted += num_tokens

    def choose(
        self,
        drafter: Drafter,
        token: float,
        saved: Callable[[float], float],
        cost: Callable[[int], float],
    ) -> float:
        """Let the drafter read so many tokens as promises most, if any.

        Args:
            drafter: gets its `longest_read`; it reads next.
            token: seconds of a plain one.
            saved: of them by drafting, with a share of its acceptance.
            cost: seconds of reading so many tokens.

        Returns:
            The share of its acceptance that it then has; 0 if reading does not pay.
        """
        drafter.longest_read = None
        unread = drafter.num_behind
        shares = {n: share for n, share in SHARES.items() if n < unread} | {unread: 1.0}
        gains = {0: 0.0}
        for length, share in shares.items():
            gain, seconds = saved(share), cost(length)
            if seconds < self.budget(token, gain):
                gains[length] = self._remaining * gain - seconds
        best = max(gains, key=gains.__getitem__)
        if best == 0:
            return 0.0
        drafter.longest_read = best if best < unread else None
        return shares[best]

    def budget(self, token: float, saved: float) -> float:
        """Seconds that reading may cost now.

        Args:
            token: seconds of a plain one.
            saved: of them by drafting.
        """
        lost = STAKE * token + LOSS * (self._prompt_seconds + self._emitted * token)
        return min(self._remaining * saved, lost + max(SHORT_REPLY, self._emitted) * saved)

    @property
    def _remaining(self) -> float:
        """Wherever a reply stands, it goes on for the mean, or as long again, if it may."""
        return min(max(self.num_tokens / self.num_replies, self._emitted), self.room)
