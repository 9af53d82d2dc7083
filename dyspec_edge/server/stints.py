"""Work that cannot be left half done by its caller, a piece at a time, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

Pause = Callable[[], None]


class Stints(Generic[T]):
    """A function that pauses now and then; it and its caller never run at the same time.

    Args:
        work: called in a thread of its own with `pause`, which returns at the next `advance`.

    Attributes:
        result: of the function, once it has ended.
    """

    def __init__(self, work: Callable[[Pause], T]) -> None:
        self.result: T | None = None
        self._work = work
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="dyspec-stints", daemon=True)
        self._thread.start()

    def advance(self) -> bool:
        """Let it run until it pauses or ends; whether it has ended.

        Raises:
            Exception: what the function raised.
        """
        if not self._is_over:
            self._go.release()
            self._paused.acquire()
        if self._error is not None:
            raise self._error
        return self._is_over

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.result = self._work(self._pause)
        except Exception as error:
            self._error = error
        finally:
            self._is_over = True
            self._paused.release()

    def _pause(self) -> None:
        self._paused.release()
        self._go.acquire()
