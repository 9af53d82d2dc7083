"""What all protocols stand on: the model's facts, requests in, replies out, on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from anyio import to_thread

from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.decode.stats import Stats
from dyspec_edge.engine import Chunk, Prompt, SamplingParams
from dyspec_edge.engine.session import held_to
from dyspec_edge.errors import ContextOverflow, DyspecError
from dyspec_edge.server import errors
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.reading import ReplyReader
from dyspec_edge.server.request import Piece, Request
from dyspec_edge.server.scheduler import Job, Scheduler
from dyspec_edge.server.slots import Slots
from dyspec_edge.text.thoughts import Kind
from dyspec_edge.text.tool_calls import CallPart

PING_SECONDS = 10.0
"""A stream that is silent for so long gets a comment, so that nobody takes it for dead."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may ask for.

    Attributes:
        max_tokens: of a reply, also where a request names no number; None for what fits.
        max_prompt: tokens of a prompt; None for what fits.
    """

    max_tokens: int | None = None
    max_prompt: int | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A reply that is complete.

    Attributes:
        thought: what came before the answer, or "".
        answer: the text after it.
        calls: of tools.
        finish_reason: "stop", "length" or "tool_calls".
        logprobs: of `tokens`, where they were asked for.
    """

    thought: str
    answer: str
    calls: tuple[CallPart, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str
    stats: Stats
    stop_string: str | None = None


class Running:
    """Replies under way that belong to one answer, mostly one, as the event loop sees them.

    Attributes:
        prompts: what is being answered, by choice.
        created: seconds since 1970.
    """

    def __init__(
        self, service: Service, requests: Sequence[Request], prompts: Sequence[Prompt]
    ) -> None:
        self.prompts = tuple(prompts)
        self.created = int(time.time())
        self._events: asyncio.Queue[Piece | DyspecError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._scheduler = service.scheduler
        self._waiting: asyncio.Task[Piece | DyspecError] | None = None
        self._jobs: list[Job] = self._scheduler.submit(requests, self._emit)

    @property
    def prompt(self) -> Prompt:
        """What the first reply answers."""
        return self.prompts[0]

    async def begun(self) -> None:
        """Wait a while for the first piece, so that an error that comes first is an answer.

        Raises:
            DyspecError: it has ended before it began.
        """
        self._waiting = asyncio.ensure_future(self._events.get())
        await asyncio.wait([self._waiting], timeout=PING_SECONDS)
        if self._waiting.done() and isinstance(self._waiting.result(), DyspecError):
            await self._next()

    async def pieces(self) -> AsyncGenerator[Piece | None]:
        """Pieces until the last of each reply; None where none has come for a while.

        Raises:
            DyspecError: why a reply ended early.
        """
        num_open = len(self._jobs)
        while num_open:
            piece = await self._next()
            yield piece
            num_open -= piece is not None and piece.chunk.finish_reason is not None

    async def whole(self) -> Whole:
        """The first reply when all are complete; errors as of `pieces`."""
        return (await self.all_whole())[0]

    async def all_whole(self) -> list[Whole]:
        """The replies when they are complete; errors as of `pieces`."""
        collected = [_Collected(prompt) for prompt in self.prompts]
        async for piece in self.pieces():
            if piece is not None:
                collected[piece.choice].add(piece.chunk)
        return [one.whole() for one in collected]

    def leave(self) -> None:
        """Nobody listens any more: end it soon.  Idempotent."""
        if self._waiting is not None:
            self._waiting.cancel()
        for job in self._jobs:
            self._scheduler.leave(job)

    async def _next(self) -> Piece | None:
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._events.get())
        await asyncio.wait([self._waiting], timeout=PING_SECONDS)
        if not self._waiting.done():
            return None
        event, self._waiting = self._waiting.result(), None
        if isinstance(event, DyspecError):
            raise event
        if event.chunk.finish_reason == "cancelled":
            raise errors.gone()
        return event

    def _emit(self, event: Piece | DyspecError) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


class _Collected:
    """The pieces of a reply so far."""

    def __init__(self, prompt: Prompt) -> None:
        self._reader = ReplyReader(prompt)
        self._texts: dict[Kind, list[str]] = {"thought": [], "answer": []}
        self._tokens: list[int] = []
        self._likely: list[TokenLogprobs] = []
        self._last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        self._tokens += chunk.tokens
        self._likely += chunk.logprobs or ()
        self._last = chunk
        for part in self._reader.feed(chunk):
            if not isinstance(part, CallPart):
                self._texts[part[0]].append(part[1])

    def whole(self) -> Whole:
        last = self._last
        assert last is not None  # the last piece has them
        assert last.stats is not None
        return Whole(
            "".join(self._texts["thought"]),
            "".join(self._texts["answer"]),
            tuple(self._reader.calls),
            tuple(self._tokens),
            tuple(self._likely),
            self._reader.finish_reason(last.finish_reason or "stop"),
            last.stats,
            last.stop_string,
        )


class Service:
    """Requests in, replies out.

    Args:
        slots: closed by the scheduler.
        name: of the model, for clients.
        sampling: what holds where a request says nothing.
    """

    def __init__(
        self,
        slots: Slots,
        scheduler: Scheduler,
        *,
        name: str,
        sampling: SamplingParams,
        limits: Limits,
    ) -> None:
        self.slots = slots
        self.scheduler = scheduler
        self.name = name
        self.model = slots.loaded.models.target
        self.metrics = scheduler.metrics
        self.sampling = sampling
        self.created = int(time.time())
        self._limits = limits

    async def begin(self, *requests: Request) -> Running:
        """Check requests whose replies belong to one answer, and put them into the queue.

        Raises:
            DyspecError: a request cannot be answered, or not now.
        """
        ready = [await to_thread.run_sync(self._ready, request) for request in requests]
        return Running(self, [request for request, _ in ready], [prompt for _, prompt in ready])

    async def prompt_of(self, request: Request) -> Prompt:
        """The prompt that a request would read.

        Raises:
            DyspecError: the request cannot be answered.
        """
        return await to_thread.run_sync(self._checked, request)

    def tokenize(self, text: str) -> list[int]:
        """The ids of a bare text."""
        return self.model.tokenize(text, add_special=False, parse_special=True)

    def piece(self, token: int) -> bytes:
        """The bytes of a token; control tokens have theirs, too.

        Raises:
            ApiError: there is no such token.
        """
        if not 0 <= token < self.model.num_vocab:
            raise ApiError(400, f"token {token}: the vocabulary ends at {self.model.num_vocab - 1}")
        return self.model.piece(token, special=True)

    def _ready(self, request: Request) -> tuple[Request, Prompt]:
        """The request within this server's limits, its schema as a grammar, and its prompt."""
        prompt = self._checked(request)
        if request.json_schema is not None:  # not in the scheduler's thread: it takes a while
            sampling = held_to(request.sampling, request.json_schema, prompt)
            request = replace(request, sampling=sampling, json_schema=None)
        most = self._limits.max_tokens
        if most is None:
            return request, prompt
        limit = most if request.max_tokens is None else min(most, request.max_tokens)
        return replace(request, max_tokens=limit), prompt

    def _checked(self, request: Request) -> Prompt:
        request.sampling.check(self.model.num_vocab)
        prompt = request.prompt
        if not isinstance(prompt, Prompt):
            prompt = self.slots.prepare(prompt, request.template_kwargs, request.tools)
        size, most = len(prompt.tokens), self._limits.max_prompt
        if most is not None and size > most:
            raise ApiError(
                400,
                f"the prompt has {size} tokens; this server takes {most} (--max-prompt)",
                code="context_length_exceeded",
            )
        if size >= self.slots.num_ctx:
            raise ContextOverflow(size, self.slots.num_ctx)
        return prompt
