"""OpenAI's chat completions, with llama-server's additions.

Source: OpenAI's API reference (chat), llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal
from uuid import uuid4

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import dyspec_edge
from dyspec_edge.decode.stats import Stats
from dyspec_edge.server import figures
from dyspec_edge.server.answers import DONE, EventStream, as_json, event_text, when_complete
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.fields import Fields, SamplingFields, parsed
from dyspec_edge.server.figures import LogprobWriter
from dyspec_edge.server.reading import Part, ReplyReader
from dyspec_edge.server.request import Piece, Request, choices
from dyspec_edge.server.service import Running, Service, Whole
from dyspec_edge.text.thoughts import Kind
from dyspec_edge.text.tool_calls import CallPart
from dyspec_edge.text.tools import ToolUse

FINGERPRINT = f"dyspec-edge-{dyspec_edge.__version__}"
MEMBERS: Mapping[Kind, str] = {"thought": "reasoning_content", "answer": "content"}


class ResponseFormat(Fields):
    """What the reply shall be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class StreamOptions(Fields):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_tree: bool = False


class ChatBody(SamplingFields):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    model: str | None = None
    max_completion_tokens: int | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=100)
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    n: int | None = Field(None, ge=1)

    def requests(self, service: Service) -> list[Request]:
        """What is asked for: `n` replies.

        Raises:
            DyspecError: something that cannot be done.
        """
        service.scheduler.check_count(self.n or 1)
        limit = self.max_completion_tokens
        one = Request(
            prompt=self.messages,
            sampling=self.sampling(service.sampling, service.tokenize),
            max_tokens=self.limit() if limit is None else limit,
            stop=self.stops(),
            json_schema=self.schema_wanted(),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            template_kwargs=self.chat_template_kwargs or {},
            tools=self.tool_use(service),
            policy=self.policy_name(),
            verify=self.verify,
            wants_trees=self.options.include_tree and self.stream,
        )
        return choices([one], self.n or 1)

    def tool_use(self, service: Service) -> ToolUse | None:
        """What the reply may call, or None.

        Raises:
            OptionError: a value that has no meaning, or a model that knows no tools.
        """
        return service.slots.tool_use(
            self.tools or (), self.tool_choice, parallel=self.parallel_tool_calls
        )

    def schema_wanted(self) -> dict[str, Any] | bool | None:
        """The JSON schema that the reply has to keep, or None.

        Raises:
            ApiError: a format without its schema.
        """
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return self.json_schema
        if wanted.type == "json_object":
            return wanted.schema_ or {"type": "object"}
        outer = wanted.json_schema or {}
        schema = outer.get("schema", wanted.schema_)
        if not isinstance(schema, dict):
            where = "response_format.json_schema.schema"
            raise ApiError(400, f"{where} is missing; it holds the schema", param=where)
        return schema

    @property
    def options(self) -> StreamOptions:
        """The stream's options."""
        return self.stream_options or StreamOptions()


async def chat_completions(service: Service, http: HttpRequest) -> Response:
    """POST /v1/chat/completions."""
    body = parsed(ChatBody, await http.body())
    running = await service.begin(*await to_thread.run_sync(body.requests, service))
    writer = _Writer(service, running)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(body.options), writer.failed)


class _Writer:
    """The replies to one chat in the words of this protocol."""

    def __init__(self, service: Service, running: Running) -> None:
        self._running = running
        self._logprobs = LogprobWriter(service.piece)
        self._head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": running.created,
            "model": service.name,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> Response:
        found = await self._running.all_whole()
        return as_json(
            {
                "object": "chat.completion",
                **self._head,
                "choices": [self._choice(index, one) for index, one in enumerate(found)],
                **figures.of_whole([one.stats for one in found], len(found)),
            }
        )

    def _choice(self, index: int, found: Whole) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": found.answer}
        if found.thought:
            message["reasoning_content"] = found.thought
        if found.calls:
            message["content"] = found.answer or None
            message["tool_calls"] = [call.as_call() for call in found.calls]
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": found.finish_reason,
        }
        if found.logprobs:
            choice["logprobs"] = {"content": self._logprobs.chat(found.logprobs)}
        return choice

    async def lines(self, options: StreamOptions) -> AsyncGenerator[bytes]:
        readers = [ReplyReader(prompt) for prompt in self._running.prompts]
        ended: dict[int, Stats] = {}
        extra = {"usage": None} if options.include_usage else {}
        for choice in range(len(readers)):
            yield self._line(choice, {"role": "assistant", "content": None}, extra)
        async for piece in self._running.pieces():
            if piece is None:
                yield event_text(None)
                continue
            chunk, reader = piece.chunk, readers[piece.choice]
            more = extra if piece.step is None else {**extra, "step": piece.step}
            for line in self._piece_lines(piece, reader.feed(chunk), more):
                yield line
            if chunk.finish_reason is not None and chunk.stats is not None:
                reason = reader.finish_reason(chunk.finish_reason)
                last = {**extra, "timings": figures.timings(chunk.stats)}
                yield self._line(piece.choice, {}, last, reason=reason)
                ended[piece.choice] = chunk.stats
        if options.include_usage:
            usage = figures.usage([ended[choice] for choice in sorted(ended)], len(ended))
            yield event_text({**self._chunk, "choices": [], "usage": usage})
        yield event_text(DONE)

    def failed(self, error: ApiError) -> bytes:
        return event_text(error.body) + event_text(DONE)

    def _piece_lines(
        self, piece: Piece, parts: list[Part], extra: Mapping[str, Any]
    ) -> list[bytes]:
        """A line for each part; the first carries what belongs to the whole piece."""
        likely = piece.chunk.logprobs
        if not parts and not likely and piece.step is None:
            return []
        deltas = [_delta(part) for part in parts]
        first, *others = deltas or [{"content": ""}]
        logprobs = {"content": self._logprobs.chat(likely)} if likely else None
        rest = {name: value for name, value in extra.items() if name != "step"}
        lines = [self._line(piece.choice, first, extra, logprobs)]
        return lines + [self._line(piece.choice, delta, rest) for delta in others]

    def _line(
        self,
        index: int,
        delta: Mapping[str, Any],
        extra: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return event_text({**self._chunk, "choices": [choice], **extra})

    @property
    def _chunk(self) -> dict[str, Any]:
        return {"object": "chat.completion.chunk", **self._head}


def _delta(part: Part) -> dict[str, Any]:
    if isinstance(part, CallPart):
        return {"tool_calls": [part.as_delta()]}
    kind, text = part
    return {MEMBERS[kind]: text}
