"""Whether a draft reads the prompt, and how much of it: an investment, decided with its use."""

from __future__ import annotations

LENGTHS = (64, 128, 256, 512, 1024)
"""The last tokens of the prompt, so many, are what a draft may read; no more was of any use."""

LOSS = 0.03
"""Of the whole request's time is lost at most, ..."""

SHORT_REPLY = 16
"""... be the reply but so many tokens long."""

EXPECTED_REPLY = 128
"""Tokens of a reply before any was seen."""


class Reading:
    """What is expected of a reply, and what reading for it may cost.

    Attributes:
        num_replies, num_tokens: replies that were seen and their tokens.
    """

    def __init__(self) -> None:
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

    def emit(self, num_tokens: int) -> None:
        """Take tokens of the reply."""
        self._emitted += num_tokens

    def budget(self, token: float, saved: float) -> float:
        """Seconds that reading may cost now.

        Args:
            token: seconds of a plain one.
            saved: of them by drafting.
        """
        # A reply that has outlived the mean is expected to go on for as long again.
        mean = self.num_tokens / self.num_replies
        remaining = max(mean - self._emitted, self._emitted)
        lost = LOSS * (self._prompt_seconds + self._emitted * token)
        return min(remaining * saved, lost + max(SHORT_REPLY, self._emitted) * saved)
