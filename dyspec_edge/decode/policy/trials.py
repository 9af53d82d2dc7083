"""The stake that pays for looking at doubtful prices."""

from __future__ import annotations

SHARE = 0.01
"""Of all time; one plain token's time a reply comes on top."""


class Trials:
    """What may still be lost by hoping that passes cost less than is believed."""

    def __init__(self) -> None:
        self._lost = self._time = 0.0

    def begin(self, plain: float) -> None:
        """Hear of a new reply.

        Args:
            plain: seconds of a token without speculation.
        """
        self._lost = max(0.0, self._lost - plain - SHARE * self._time)
        self._time = 0.0

    def left(self, plain: float) -> float:
        """Seconds that the next step may lose."""
        return plain + SHARE * self._time - self._lost

    def settle(self, seconds: float, lost: float) -> None:
        """Take a step's time, and by how much its pass took longer than was hoped."""
        self._time += seconds
        self._lost += max(0.0, lost)
