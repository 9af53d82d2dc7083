"""Whose turn it is: one stream at a time, others wait, and nobody waits for himself."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from inspect import GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate
from typing import Any, TypeVar

from dyspec_edge.errors import EngineBusy

Item = TypeVar("Item")

TICK = 0.05
"""Seconds between two looks at whether a stream that is waited for can still end by itself."""


class Turn:
    """The right to use what is loaded, which a stream has from its first item to its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: weakref.ref[Generator[Any]] | None = None
        self._reader = 0  # the thread that last asked the stream for an item
        self._afterwards: Callable[[], None] | None = None
        self.is_taken = False

    @property
    def is_free_or_mine(self) -> bool:
        """Whether no other thread uses what is loaded."""
        return not self.is_taken or self._reader == threading.get_ident()

    def stream(
        self, items: Generator[Item], begin: Callable[[], None], end: Callable[[], None]
    ) -> Generator[Item]:
        """`items`, after the streams before it have ended.

        Args:
            begin: called before the first item, when the turn has come.
            end: called after the last one, or when the stream is closed.

        Raises:
            EngineBusy: from the first item: the stream before was left half-read by this thread.
        """
        # The stream learns its own address, weakly: one that was left half-read must be found.
        this: list[weakref.ref[Generator[Item]]] = []
        stream = self._in_turn(items, begin, end, this)
        this.append(weakref.ref(stream))
        return stream

    def end(self, cancel: Callable[[], None], then: Callable[[], None]) -> bool:
        """Wait until no stream is under way, ending the present one; then act in its place.

        Args:
            cancel: asks a stream that runs in another thread to end early.
            then: called before any other stream can begin.

        Returns:
            False if it runs in this very thread, which cannot wait for itself.
        """
        while not self._lock.acquire(timeout=TICK):
            cancel()
            stream = self._stream()
            if stream is None:
                continue
            state = getgeneratorstate(stream)
            if state == GEN_RUNNING and self._reader == threading.get_ident():
                return False
            if state == GEN_SUSPENDED:
                with suppress(ValueError):  # another thread has just gone on reading it
                    stream.close()
        try:
            then()
        finally:
            self._lock.release()
        return True

    def when_over(self, action: Callable[[], None]) -> None:
        """Call `action` when the present stream has ended."""
        self._afterwards = action

    def _in_turn(
        self,
        items: Generator[Item],
        begin: Callable[[], None],
        end: Callable[[], None],
        this: list[weakref.ref[Generator[Item]]],
    ) -> Generator[Item]:
        self._wait()
        try:
            self._reader = threading.get_ident()
            begin()
            self._current, self.is_taken = this[0], True
            for item in items:
                yield item
                self._reader = threading.get_ident()
        finally:
            items.close()
            if self.is_taken:
                end()
            self.is_taken = False
            self._lock.release()
            action, self._afterwards = self._afterwards, None
            if action is not None:
                action()

    def _wait(self) -> None:
        while not self._lock.acquire(timeout=TICK):
            stream = self._stream()
            if (
                stream is not None
                and self._reader == threading.get_ident()
                and getgeneratorstate(stream) in (GEN_SUSPENDED, GEN_RUNNING)
            ):
                raise EngineBusy(
                    "another stream of this engine is half-read in this thread; read it to its "
                    "end or close it first"
                )

    def _stream(self) -> Generator[Any] | None:
        return self._current() if self._current is not None else None
