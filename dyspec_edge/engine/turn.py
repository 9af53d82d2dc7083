"""Whose turn it is: one stream at a time, others wait, and nobody waits for himself."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from inspect import GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate
from typing import Any, TypeVar

from dyspec_edge.errors import Cancelled, DyspecError, EngineBusy

Item = TypeVar("Item")

TICK = 0.05
"""Seconds between two looks at whether a stream that is waited for can still end by itself."""


class Stream(Iterator[Item]):
    """Items that one thread at a time reads, until it is read to its end, closed or dropped.

    Args:
        items: read and closed by nobody else.
        check: called before each item; raises where there can be no more.

    Attributes:
        reader: the thread that last asked for an item.
    """

    def __init__(self, items: Generator[Item], check: Callable[[], None]) -> None:
        self.reader = 0
        self._items = items
        self._check = check
        self._lock = threading.RLock()
        self._was_cut = False
        self._is_cancelled = False
        self._abort: Callable[[], None] | None = None  # while it has its turn
        self._abort_lock = threading.Lock()

    def __next__(self) -> Item:
        """The next item.

        Raises:
            EngineBusy: asked for by a callback of this very stream.
            DyspecError: the engine was closed meanwhile, or belongs to another process.
        """
        self._check()
        with self._lock:
            self._require_rest()
            if self._was_cut:
                raise DyspecError("the engine was closed before the reply had ended; load it again")
            self.reader = threading.get_ident()
            return next(self._items)

    def close(self) -> None:
        """End the stream here, after the item that another thread is waiting for.  Idempotent.

        Raises:
            EngineBusy: called by a callback of this very stream.
        """
        with self._lock:
            self._require_rest()
            self._items.close()

    def cancel(self) -> None:
        """End this stream and no other early, from any thread.

        Whoever waits for an item gets the last one, or Cancelled if its turn had not come.
        """
        with self._abort_lock:
            self._is_cancelled = True
            if self._abort is not None:
                self._abort()

    def take_turn(self, abort: Callable[[], None] | None) -> None:
        """From now on `cancel` calls `abort`; None: the turn is over."""
        with self._abort_lock:
            self._abort = abort
            if self._is_cancelled and abort is not None:
                abort()

    def require_wanted(self) -> None:
        """Raise Cancelled if it was cancelled."""
        if self._is_cancelled:
            raise Cancelled("stopped before the reply's turn had come")

    @property
    def is_open(self) -> bool:
        """Whether it has begun and has not ended."""
        return getgeneratorstate(self._items) in (GEN_SUSPENDED, GEN_RUNNING)

    def cut(self) -> bool:
        """End the stream, unless a thread is waiting for an item; return whether it is this one."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            state = getgeneratorstate(self._items)
            if state == GEN_SUSPENDED:
                self._was_cut = True
                self._items.close()
            return state == GEN_RUNNING
        finally:
            self._lock.release()

    def _require_rest(self) -> None:
        if getgeneratorstate(self._items) == GEN_RUNNING:
            raise EngineBusy("a callback asks for or closes its own stream; use engine.cancel()")


class Turn:
    """The right to use what is loaded, which a stream has from its first item to its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._current: weakref.ref[Stream[Any]] | None = None
        self._afterwards: Callable[[], None] | None = None
        self._is_taken = False

    @property
    def is_here(self) -> bool:
        """Whether this is the process that has loaded: a fork has none of llama.cpp's threads."""
        return os.getpid() == self._process

    @property
    def is_free_or_mine(self) -> bool:
        """Whether no other thread uses what is loaded."""
        stream = self._stream()
        return not self._is_taken or stream is None or stream.reader == threading.get_ident()

    def stream(
        self, items: Generator[Item], begin: Callable[[], None], abort: Callable[[], None]
    ) -> Stream[Item]:
        """`items`, after the streams before it have ended.

        Args:
            begin: called before the first item, when the turn has come.
            abort: asks `items` to end early, from any thread.

        Raises:
            EngineBusy: from the first item: the stream before was left half-read by this thread.
            DyspecError: from any item, in a forked process.
        """
        # The stream learns its own address, weakly: one that was left half-read must be found.
        this: list[weakref.ref[Stream[Item]]] = []
        stream = Stream(self._in_turn(items, begin, abort, this), self.require_process)
        this.append(weakref.ref(stream))
        return stream

    def require_process(self) -> None:
        """Raise DyspecError in a forked process."""
        if not self.is_here:
            raise DyspecError(
                "the engine was loaded before this process was forked; load it after the fork"
            )

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
            if stream is not None and stream.cut():
                return False
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
        abort: Callable[[], None],
        this: list[weakref.ref[Stream[Item]]],
    ) -> Generator[Item]:
        self._wait(this[0])
        try:
            begin()
            self._current, self._is_taken = this[0], True
            self._tell(this[0], abort)
            yield from items
        finally:
            self._tell(this[0], None)
            items.close()
            self._is_taken = False
            self._lock.release()
            action, self._afterwards = self._afterwards, None
            if action is not None:
                action()

    @staticmethod
    def _tell(this: weakref.ref[Stream[Item]], abort: Callable[[], None] | None) -> None:
        stream = this()
        if stream is not None:  # one that was dropped ends without it
            stream.take_turn(abort)

    def _wait(self, this: weakref.ref[Stream[Item]]) -> None:
        while not self._lock.acquire(timeout=TICK):
            own = this()
            if own is not None:
                own.require_wanted()
            stream = self._stream()
            if stream is not None and stream.is_open and stream.reader == threading.get_ident():
                raise EngineBusy(
                    "another stream of this engine is half-read in this thread; read it to its "
                    "end or close it first"
                )

    def _stream(self) -> Stream[Any] | None:
        return self._current() if self._current is not None else None
