"""How often the draft's first guess is right: in this text, and what it may be in the next.

Texts differ more than anything else does: with one pair it is 0.6 in prose and 0.93 in code, and
nobody knows before the draft was asked.  So a text is begun with hope: asking in vain costs a few
steps, never to ask costs all that a draft would have saved.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

MOST = 0.985
"""What it counts at most."""

USUAL = (0.6, 0.8, 0.93)
"""What it is in texts of any draft, until others were seen and beside them."""

TEXTS, ENOUGH = 5, 8
"""So many texts are remembered, each with at least so many guesses."""

HOPED, WEIGHT = 4, 0.05
"""What is hoped of a text counts so many guesses; any guess has at least that weight."""

RETURN = 0.02
"""Share of the way back to what was hoped in a step without a draft, to try it again."""


class Acceptance:
    """What is known of earlier texts, and of this one.

    Attributes:
        now: chance that the draft's next first guess is right.
        share: of its acceptance that the draft has with what it has read of the prompt.
    """

    def __init__(self) -> None:
        self._texts = deque[float]([], TEXTS)
        self._num_right = self._num_seen = 0
        self.share = 1.0
        self.now = self._hoped

    def begin(self) -> None:
        """Hear of a new text."""
        self.remember(self.texts)
        self._num_right = self._num_seen = 0

    def read(self, share: float) -> None:
        """Hear that the draft reads what gives it that share."""
        self.now, self.share = min(MOST, self.now / self.share) * share, share

    def see(self, hits: Sequence[bool]) -> None:
        """Take a step's first guesses; none if the draft was not asked."""
        for hit in hits:
            self._num_seen += 1
            self._num_right += hit
            weight = max(WEIGHT, 1.0 / (HOPED + self._num_seen))
            self.now = min(MOST, self.now + weight * (hit - self.now))
        if not hits:
            self.now += RETURN * (self.share * self._hoped - self.now)

    @property
    def possible(self) -> tuple[float, ...]:
        """What it may be in a text that is read whole; all are as likely."""
        return (*USUAL, *self._texts)

    @property
    def texts(self) -> list[float]:
        """What it was in the last ones, had they been read whole."""
        if self._num_seen < ENOUGH:
            return [*self._texts]
        this = self._num_right / self._num_seen / self.share
        return [*self._texts, min(MOST, this)][-TEXTS:]

    def remember(self, texts: Iterable[float]) -> None:
        """Go by these, as `texts` gave them.

        Raises:
            ValueError: they are something else.
        """
        found = [float(a) for a in texts]
        if not all(math.isfinite(a) and 0.0 <= a <= MOST for a in found):
            raise ValueError("not acceptances of texts")
        self._texts = deque(found, TEXTS)
        self.now = self.share * self._hoped

    @property
    def _hoped(self) -> float:
        """The mean of the better half of what is possible."""
        better = sorted(self.possible)[len(self.possible) // 2 :]
        return sum(better) / len(better)
