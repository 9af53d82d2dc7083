"""Long jobs in a thread of their own, so that Ctrl-C works while llama.cpp computes.

    main thread         shows events, handles Ctrl-C  ->  cancel()
    background thread   runs the job, emits events    <-  the job ends early

Python runs signal handlers in the main thread and between its own instructions only: a main thread
inside a long C call would notice Ctrl-C only after the call.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from dyspec_edge.cli.terminal import Bar
    from dyspec_edge.decode.sampling import SamplingParams
    from dyspec_edge.engine import Chunk, Engine, Prompt

E = TypeVar("E")
R = TypeVar("R")

THREAD_NAME = "dyspec-background"
TICK = 0.1
"""Seconds after which an iteration over a job that emits nothing gives None."""

PATIENCE = 1.0
"""Seconds after the first Ctrl-C from which a second one means that cancelling did not help."""


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


class Job(Generic[E]):
    """A function that runs in a thread; iterating gives the events that it emits.

    The iteration gives an event, or None about every tenth of a second while there is none; it
    ends with the function, and raises what the function raised.  The first Ctrl-C calls `cancel`
    and sets `interrupted`.  Without a `cancel`, or pressed again when that has not helped, it
    raises KeyboardInterrupt and leaves the thread running (see `left_running`).

    Args:
        function: called with `emit`, which takes one event.
        cancel: asks the function to end early; called from the main thread.
    """

    def __init__(
        self,
        function: Callable[[Callable[[E], None]], None],
        *,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        self.interrupted = False
        self._function = function
        self._cancel = cancel
        self._events: queue.SimpleQueue[E | _Ended] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._interrupted_at = 0.0
        self._previous_handler: Any = None
        self._handles_signals = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Job[E]:
        if self._handles_signals:
            self._previous_handler = signal.signal(signal.SIGINT, self._on_sigint)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handles_signals:
            signal.signal(signal.SIGINT, self._previous_handler or signal.default_int_handler)
        if isinstance(error, KeyboardInterrupt):
            return
        while self._cancel is not None and self._thread.is_alive():
            self._cancel()
            self._thread.join(TICK)

    def __iter__(self) -> Iterator[E | None]:
        while True:
            try:
                event = self._events.get(timeout=TICK)
            except queue.Empty:
                # Again and again: a job that had not yet begun has missed the first cancel.
                if self.interrupted and self._cancel is not None:
                    self._cancel()
                yield None
                continue
            if isinstance(event, _Ended):
                if event.error is not None:
                    raise event.error
                return
            yield event

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._function(self._events.put)
        except BaseException as caught:  # handed over to the main thread
            error = caught
        self._events.put(_Ended(error))

    def _on_sigint(self, _signum: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._cancel is None or (self.interrupted and now - self._interrupted_at > PATIENCE):
            raise KeyboardInterrupt
        if not self.interrupted:
            self.interrupted = True
            self._interrupted_at = now
        self._cancel()


def left_running() -> bool:
    """Whether a job that could not be cancelled still runs: the program must end by `os._exit`.

    The interpreter's ordinary exit would unload libraries that the thread is using.
    """
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


@dataclass(frozen=True, slots=True)
class _Result(Generic[R]):
    value: R


@dataclass(frozen=True, slots=True)
class Progress:
    """A part done: of the prompt (tokens) or of loading (`total` is 1.0)."""

    label: str
    done: float
    total: float


def with_bar(job: Job[Progress | E], bar: Bar) -> Iterator[E]:
    """The events of a job, without its progress, which the bar shows."""
    for event in job:
        if event is None:
            bar.tick()
        elif isinstance(event, Progress):
            bar.update(event.label, event.done, event.total)
        else:
            yield event


def run(function: Callable[[Callable[[str, float], None]], R], bar: Bar) -> R:
    """What `function(on_progress)` returns, run in a thread.  It cannot be cancelled."""

    def job(emit: Callable[[Progress | _Result[R]], None]) -> None:
        result = function(lambda label, fraction: emit(Progress(label, fraction, 1.0)))
        emit(_Result(result))

    with Job(job) as running:
        (result,) = with_bar(running, bar)
    return result.value


def stream_reply(
    engine: Engine,
    prompt: str | Sequence[Mapping[str, str]] | Prompt,
    *,
    sampling: SamplingParams,
    max_tokens: int,
    stop: Sequence[str] = (),
    raw: bool = False,
) -> Job[Progress | Chunk]:
    """A job that generates a reply: progress while the prompt is read, then chunks of the text."""

    def job(emit: Callable[[Progress | Chunk], None]) -> None:
        chunks = engine.stream(
            prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            raw=raw,
            on_prefill=lambda done, total: emit(Progress("reading the prompt", done, total)),
        )
        for chunk in chunks:
            emit(chunk)

    return Job(job, cancel=engine.cancel)
