"""Whose turn it is: one pass after the other, a step of each open reply, or a part of its prompt.

submit  ->  waiting, first come first served  ->  a slot  ->  turns  ->  pieces

A reply whose client has left makes no further pass, and its slot is free after the pass that is
under way.  Where several replies will one day share a pass, this is the place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from dyspec_edge.engine import Chunk
from dyspec_edge.errors import DyspecError
from dyspec_edge.server import errors
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.metrics import Metrics
from dyspec_edge.server.request import Piece, Request
from dyspec_edge.server.slots import Slot, Slots, Taken
from dyspec_edge.server.steps import StepWriter
from dyspec_edge.server.stints import Pause, Stints

Emit = Callable[[Piece | DyspecError], None]

log = logging.getLogger(__name__)

TYPICAL_SECONDS = 10.0
"""What a reply takes, before any has ended."""


class Job:
    """A request on its way.

    Attributes:
        slot: where it is being answered, or None.
        chunks: the reply.
        reading: its prompt, until the first chunk is there.
        is_over: no more pieces will come.
    """

    def __init__(self, request: Request, emit: Emit, deadline: float) -> None:
        self.request = request
        self.emit = emit
        self.deadline = deadline
        self.slot: Slot | None = None
        self.chunks: Generator[Chunk] | None = None
        self.reading: Stints[Chunk] | None = None
        self.writer: StepWriter | None = None
        self.began = 0.0
        self.is_over = False


class Scheduler:
    """Answers requests with the conversations of `slots`, which it closes at its end.

    Args:
        max_waiting: requests that may wait for a slot.
        timeout: seconds that a request may take, the wait included.

    Attributes:
        metrics: of the replies that have ended.
    """

    def __init__(self, slots: Slots, *, max_waiting: int, timeout: float) -> None:
        self._slots = slots
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._closes_at: float | None = None
        self.metrics = Metrics(lambda: (len(self._running), len(self._waiting)))
        self._mean_seconds = TYPICAL_SECONDS
        self._thread = threading.Thread(target=self._run, name="dyspec-scheduler", daemon=True)
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Replies under way."""
        return len(self._running)

    def check_count(self, count: int) -> None:
        """Refuse what would be more open requests than there can be.

        Raises:
            ApiError: 400.
        """
        if count > self._room:
            raise ApiError(
                400,
                f"{count} replies are asked for at once; this server takes {self._room} at most "
                "(--parallel)",
                code="too_many_choices",
            )

    def submit(self, requests: Sequence[Request], emit: Emit) -> list[Job]:
        """Put requests into the queue, all or none; returns at once.

        Args:
            emit: called from the scheduler's thread with each piece, the last of which has a
                finish_reason, or with the error that ends the reply.

        Raises:
            ApiError: 429 where the queue is full, 503 while the server ends.
        """
        deadline = time.monotonic() + self._timeout
        jobs = [Job(request, emit, deadline) for request in requests]
        with self._changed:
            if self._closes_at is not None:
                raise errors.gone()
            if len(self._waiting) + len(self._running) + len(jobs) > self._room:
                raise self._full()
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def leave(self, job: Job) -> None:
        """Nobody waits for this reply any more; from any thread, at any time."""
        with self._changed:
            if job.is_over:
                return
            job.is_over = True
            self.metrics.client_left()
            if job in self._waiting:
                self._waiting.remove(job)
            elif job.slot is not None:
                job.slot.conversation.abort()
            self._changed.notify()

    def close(self, grace: float = 0.0) -> None:
        """Take no more requests; end those under way after `grace` seconds.  Returns at once."""
        with self._changed:
            self._closes_at = min(self._closes_at or float("inf"), time.monotonic() + grace)
            self._changed.notify()

    def join(self) -> None:
        """Wait until everything has ended and is freed, after `close`."""
        self._thread.join()

    @property
    def _room(self) -> int:
        return self._max_waiting + len(self._slots.all)

    def _full(self) -> ApiError:
        waves = (len(self._waiting) + 1) / len(self._slots.all)
        return ApiError(
            429,
            f"{len(self._waiting)} requests are waiting, as many as may; try again later",
            "rate_limit_error",
            code="queue_full",
            retry_after=max(1, round(waves * self._mean_seconds)),
        )

    def _run(self) -> None:
        try:
            while self._wait():
                self._admit()
                for job in tuple(self._running):
                    self._advance(job)
        finally:
            self._slots.close()

    def _wait(self) -> bool:
        """Until there is something to do; False where there will never be again."""
        with self._changed:
            while not self._waiting and not self._running:
                if self._closes_at is not None:
                    return False
                self._changed.wait()
            return True

    def _admit(self) -> None:
        with self._changed:
            if self._closes_at is not None:
                refused, self._waiting = self._waiting, deque()
                for job in refused:
                    self._end(job, errors.gone())
            for job in [job for job in self._waiting if time.monotonic() > job.deadline]:
                self._waiting.remove(job)
                self._end(job, self._late())
        while self._slots.has_free:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
                self._running.append(job)
            self._begin(job)

    def _begin(self, job: Job) -> None:
        try:
            taken = self._slots.take(job.request)
            with self._changed:
                job.slot = taken.slot
                job.began = time.monotonic()
                job.reading = Stints(lambda pause: self._first(job, taken, pause))
            if job.request.wants_trees:
                job.writer = taken.slot.step_writer()
        except Exception as error:
            self._fail(job, error)

    def _advance(self, job: Job) -> None:
        """A step of one reply."""
        now = time.monotonic()
        if job.is_over:
            self._end(job)
        elif self._closes_at is not None and now >= self._closes_at:
            self._end(job, errors.gone())
        elif now > job.deadline:
            self._end(job, self._late())
        else:
            self._step(job)

    def _first(self, job: Job, taken: Taken, pause: Pause) -> Chunk:
        job.chunks = taken.slot.reply(job.request, taken.prompt, pause)
        return next(job.chunks)

    def _step(self, job: Job) -> None:
        try:
            if job.reading is None:
                assert job.chunks is not None
                chunk = next(job.chunks)
            elif job.reading.advance():
                assert job.reading.result is not None
                chunk, job.reading = job.reading.result, None
            else:
                return
        except Exception as error:
            self._fail(job, error)
        else:
            if job.is_over:
                self._end(job)
                return
            step = None
            if job.writer is not None and job.slot is not None and chunk.finish_reason is None:
                last = job.slot.last_step
                step = None if last is None else job.writer.write(last)
            if chunk.finish_reason is not None:  # who hears of the end finds the slot free
                self._mean_seconds += 0.2 * (time.monotonic() - job.began - self._mean_seconds)
                if chunk.stats is not None:
                    self.metrics.reply_ended(chunk.stats)
                self._end(job)
            job.emit(Piece(chunk, step, job.request.choice))

    def _fail(self, job: Job, error: Exception) -> None:
        """End a reply with an error; a mistake of ours stays in the log, and ends nothing else."""
        if not isinstance(error, DyspecError):
            log.error("a reply failed", exc_info=error)
            error = ApiError(500, "internal error; the server's log tells", "server_error")
        self._end(job, error)

    def _end(self, job: Job, error: DyspecError | None = None) -> None:
        """Free what a job holds, then tell it why it ended."""
        if job.reading is not None and job.slot is not None:
            job.slot.conversation.abort()
            with suppress(Exception):  # of a reply that nobody waits for
                while not job.reading.advance():
                    pass
            job.reading = None
        if job.chunks is not None:
            job.chunks.close()
        with self._changed:
            if job in self._running:
                self._running.remove(job)
            if job.slot is not None:
                self._slots.give_back(job.slot)
                job.slot = None
            was_over, job.is_over = job.is_over, True
        if error is not None and not was_over:
            job.emit(error)

    def _late(self) -> ApiError:
        return ApiError(
            504, f"the request took longer than {self._timeout:g} s (--timeout)", "timeout_error"
        )
