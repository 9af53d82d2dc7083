"""Stop strings: a reply ends before the first of them, and no part of one is shown."""

from __future__ import annotations

from collections.abc import Sequence

from dyspec_edge.errors import OptionError


class StopStrings:
    """Ends a text before the first stop string, and never releases a part of one.

    The stop string whose last character comes first wins, the longest among those that end
    together: what token-by-token decoding would have met first.

    Attributes:
        met: the one that ended the text, or None.

    Raises:
        OptionError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.met: str | None = None
        if "" in stops:
            raise OptionError("a stop string is empty; leave it out or give it some characters")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop string was met (now or earlier)."""
        if self.met is not None:
            return "", True
        pending = self._held + text
        found = [(at + len(s), at, s) for s in self._stops if (at := pending.find(s)) >= 0]
        if found:
            _, at, self.met = min(found)
            self._held = ""
            return pending[:at], True
        size = partial_match(pending, self._stops)
        self._held = pending[len(pending) - size :]
        return pending[: len(pending) - size], False

    @property
    def is_holding(self) -> bool:
        """Whether text is held back that may turn out to be the beginning of a stop string."""
        return bool(self._held)

    def flush(self) -> str:
        """The text held back, when the reply has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def partial_match(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of `text` that may turn out to be the beginning of a stop string."""
    longest = max(map(len, stops), default=0)
    for size in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0
