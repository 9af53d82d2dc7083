"""Long work in a thread of its own, so that Ctrl-C is heard while llama.cpp computes.

    main thread   reads events, draws, owns SIGINT   ->  cancel()
    work thread   runs the job, which emits events   <-  the job ends early

Python runs signal handlers in the main thread, between two of its own instructions: a main thread
inside a long C call would hear Ctrl-C only when the call is over.
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

THREAD_NAME = "dyspec-work"
TICK = 0.1  # seconds between two looks at a job that emits nothing
PATIENCE = 1.0  # a second Ctrl-C later than this means that cancelling did not help


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


class Work(Generic[E]):
    """Runs `job(emit)` in a thread and iterates over what it emits.

    The iteration gives an event, or None about every tenth of a second while there is none; it
    ends with the job, and raises what the job raised.  The first Ctrl-C calls `cancel` and sets
    `interrupted`; without a `cancel`, or pressed again when that has not helped, it raises
    KeyboardInterrupt and leaves the thread behind (see `left_running`).
    """

    def __init__(
        self,
        job: Callable[[Callable[[E], None]], None],
        *,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        self.interrupted = False
        self._job = job
        self._cancel = cancel
        self._events: queue.SimpleQueue[E | _Ended] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._interrupted_at = 0.0
        self._previous_handler: Any = None
        self._handles_signals = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Work[E]:
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
                # Said again, because a job that had not yet begun may have missed it.
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
            self._job(self._events.put)
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
    """Whether a job that could not be cancelled still runs: leave by `os._exit` then.

    The interpreter's ordinary way out would pull libraries from under it.
    """
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


@dataclass(frozen=True, slots=True)
class _Made(Generic[R]):
    result: R


@dataclass(frozen=True, slots=True)
class Progress:
    """A part done: of the prompt (tokens) or of loading (`total` is 1.0)."""

    label: str
    done: float
    total: float


def shown(job: Work[Progress | E], bar: Bar) -> Iterator[E]:
    """What a job emits, but for the progress, which goes to the bar."""
    for event in job:
        if event is None:
            bar.tick()
        elif isinstance(event, Progress):
            bar.update(event.label, event.done, event.total)
        else:
            yield event


def awaited(make: Callable[[Callable[[str, float], None]], R], bar: Bar) -> R:
    """What `make(on_progress)` returns, made in a thread; it cannot be cancelled."""

    def job(emit: Callable[[Progress | _Made[R]], None]) -> None:
        result = make(lambda label, fraction: emit(Progress(label, fraction, 1.0)))
        emit(_Made(result))

    with Work(job) as running:
        (made,) = shown(running, bar)
    return made.result


def generate(
    engine: Engine,
    prompt: str | Sequence[Mapping[str, str]] | Prompt,
    *,
    sampling: SamplingParams,
    max_tokens: int,
    stop: Sequence[str] = (),
    raw: bool = False,
) -> Work[Progress | Chunk]:
    """One reply: progress through a prompt that is being read, then the chunks of the text."""

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

    return Work(job, cancel=engine.cancel)
