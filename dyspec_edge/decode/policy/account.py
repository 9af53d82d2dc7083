"""The account: how late a reply may be against plain decoding, whatever predictions are worth."""

from __future__ import annotations

STAKE, EPS = 4.0, 0.01
"""Later than plain decoding at most: in tokens' time, and as a share of all time."""


class Account:
    """What the tokens of a reply would have cost plainly, and what they did cost.

    Attributes:
        plain: seconds that plain decoding would have taken.
        seconds: that were spent, with what earlier replies still owe.
    """

    def __init__(self) -> None:
        self.plain = self.seconds = 0.0

    def begin(self) -> None:
        """Start a reply: debts stay, but what earlier ones have saved is not at stake."""
        self.plain, self.seconds = 0.0, max(0.0, self.seconds - self.plain / (1 - EPS))

    def settle(self, plain: float, seconds: float) -> None:
        """Take what a step would have cost plainly and what it cost."""
        self.plain += plain
        self.seconds += seconds

    def left(self, token: float) -> float:
        """Seconds that the next step may cost; `token` is what a plain one does."""
        return token * (1 + STAKE) + self.plain - (1 - EPS) * self.seconds
