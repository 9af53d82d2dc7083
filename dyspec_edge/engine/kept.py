"""Conversations that had to leave the caches: kept in memory, the least recently used out first.

caches     a title call                              <- takes the place of the chat
memory     system, question, answer (12 MiB)         <- from here the chat's next turn gets it back
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dyspec_edge.engine.session import SavedSession, Session

LEAST_TOKENS = 128
"""Shorter texts are read again: what is worth keeping would lose its room to them."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A kept conversation and what of a prompt it has read.

    Attributes:
        num_shared: tokens of the prompt that need not be read.
    """

    saved: SavedSession
    num_shared: int


class KeptSessions:
    """What sessions over the same contexts held before they took up another text.

    Args:
        limit: bytes of all that is kept; 0 keeps nothing.

    Attributes:
        num_bytes: that are taken.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._saved: list[SavedSession] = []  # the least recently used first

    def __len__(self) -> int:
        return len(self._saved)

    def keep(self, session: Session) -> None:
        """Save what a session holds, if it is long enough and there is room."""
        size, tokens = session.num_bytes, session.tokens
        if not self.limit or len(tokens) < LEAST_TOKENS or size > self.limit:
            return
        for saved in [one for one in self._saved if _begins(tokens, one.tokens)]:
            self._drop(saved)
        while self.num_bytes + size > self.limit:
            self._drop(self._saved[0])
        found = session.save()
        if found is not None:
            self._saved.append(found)
            self.num_bytes += found.num_bytes

    def find(self, tokens: Sequence[int]) -> Found | None:
        """The kept conversation that has read most of a prompt, if that is worth the copy."""
        found = [Found(saved, saved.num_shared(tokens)) for saved in self._saved]
        best = max(found, key=lambda one: one.num_shared, default=None)
        return best if best is not None and best.num_shared >= LEAST_TOKENS else None

    def restore(self, saved: SavedSession, session: Session) -> bool:
        """Let a session go on with what was kept, which is then kept no longer.

        Returns:
            False if there is no room in the caches; the session is then empty.
        """
        if saved in self._saved:  # it may have made room for another one
            self._drop(saved)
        return session.restore(saved)

    def _drop(self, saved: SavedSession) -> None:
        self._saved.remove(saved)
        self.num_bytes -= saved.num_bytes


def _begins(text: Sequence[int], start: Sequence[int]) -> bool:
    return list(text[: len(start)]) == list(start)
