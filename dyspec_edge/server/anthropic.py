"""Anthropic's Messages, as Claude Code and Zed ask for them.

Source: Anthropic's API reference (messages, streaming, count_tokens).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from dyspec_edge.decode.stats import Stats
from dyspec_edge.server.answers import EventStream, as_json, event_text, when_complete
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.fields import SamplingFields, parsed
from dyspec_edge.server.reading import Part, ReplyReader
from dyspec_edge.server.request import Request
from dyspec_edge.server.service import Running, Service
from dyspec_edge.text.tool_calls import CallPart
from dyspec_edge.text.tools import ToolUse

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class CountBody(SamplingFields):
    """The body of /v1/messages/count_tokens."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def request(self, service: Service) -> Request:
        """What is asked for.

        Raises:
            DyspecError: something that cannot be done.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [turn for message in self.messages for turn in _turns(message)]
        return Request(
            prompt=[*system, *turns],
            sampling=self.sampling(service.sampling, service.tokenize),
            max_tokens=self.limit(),
            stop=tuple(text for text in self.stop_sequences or () if text),
            template_kwargs=self.chat_template_kwargs or {},
            tools=_tool_use(service, self.tools or [], self.tool_choice),
            policy=self.policy_name(),
            verify=self.verify,
        )


class MessagesBody(CountBody):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=1)


async def messages(service: Service, http: HttpRequest) -> Response:
    """POST /v1/messages."""
    body = parsed(MessagesBody, await http.body())
    running = await service.begin(await to_thread.run_sync(body.request, service))
    writer = _Writer(service, running)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(), _failed)


async def count_tokens(service: Service, http: HttpRequest) -> Response:
    """POST /v1/messages/count_tokens."""
    body = parsed(CountBody, await http.body())
    prompt = await service.prompt_of(await to_thread.run_sync(body.request, service))
    return as_json({"input_tokens": len(prompt.tokens)})


class _Writer:
    """One reply in the words of this protocol."""

    def __init__(self, service: Service, running: Running) -> None:
        self._running = running
        self._head = {
            "id": f"msg_{uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": service.name,
        }

    async def whole(self) -> Response:
        found = await self._running.whole()
        content: list[dict[str, Any]] = []
        if found.thought:
            content.append({"type": "thinking", "thinking": found.thought, "signature": ""})
        if found.answer or not found.calls:
            content.append({"type": "text", "text": found.answer})
        content += [{**_tool_block(call), "input": _input(call.arguments)} for call in found.calls]
        return as_json(
            {
                **self._head,
                "content": content,
                "stop_reason": _stop_reason(found.finish_reason, found.stop_string),
                "stop_sequence": found.stop_string,
                "usage": _usage(found.stats),
            }
        )

    async def lines(self) -> AsyncGenerator[bytes]:
        reader, blocks = ReplyReader(self._running.prompt), _Blocks()
        size = len(self._running.prompt.tokens)
        start: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": size, "output_tokens": 0}
        yield _event({"type": "message_start", "message": {**self._head, **start, "usage": usage}})
        async for piece in self._running.pieces():
            if piece is None:
                yield _event({"type": "ping"})
                continue
            chunk = piece.chunk
            for part in reader.feed(chunk):
                for event in blocks.add(part):
                    yield _event(event)
            if chunk.finish_reason is not None and chunk.stats is not None:
                for event in blocks.end():
                    yield _event(event)
                reason = reader.finish_reason(chunk.finish_reason)
                delta = {
                    "stop_reason": _stop_reason(reason, chunk.stop_string),
                    "stop_sequence": chunk.stop_string,
                }
                yield _event(
                    {"type": "message_delta", "delta": delta, "usage": _usage(chunk.stats)}
                )
        yield _event({"type": "message_stop"})


class _Blocks:
    """Content blocks of a stream: what follows on something of its own kind goes on with it."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | int | None = None

    def add(self, part: Part) -> list[dict[str, Any]]:
        if isinstance(part, CallPart):
            block: dict[str, Any] = {**_tool_block(part), "input": {}}
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
            return self._go_on(part.index, block, delta if part.arguments else None)
        kind, text = part
        if kind == "thought":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._go_on(kind, block, {"type": "thinking_delta", "thinking": text})
        return self._go_on(kind, {"type": "text", "text": ""}, {"type": "text_delta", "text": text})

    def end(self) -> list[dict[str, Any]]:
        """Close what is open; a reply without anything has one empty text."""
        opened = (
            [] if self._kind is not None else self._open("answer", {"type": "text", "text": ""})
        )
        return [*opened, {"type": "content_block_stop", "index": self._index}]

    def _go_on(
        self, kind: str | int, block: Mapping[str, Any], delta: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        events = [] if kind == self._kind else self._open(kind, block)
        if delta is None:
            return events
        return [*events, {"type": "content_block_delta", "index": self._index, "delta": delta}]

    def _open(self, kind: str | int, block: Mapping[str, Any]) -> list[dict[str, Any]]:
        closed = [] if self._kind is None else self.end()
        self._index, self._kind = self._index + 1, kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*closed, start]


def _turns(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message as those of a chat: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [dict(message)]
    texts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input", {}))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = block.get("content") or ""
            results.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
            )
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(block)
    if calls:
        return [*results, {"role": role, "content": texts, "tool_calls": calls}]
    return [*results, {"role": role, "content": texts}] if texts or not results else results


def _tool_use(
    service: Service, tools: Sequence[Mapping[str, Any]], choice: Mapping[str, Any] | None
) -> ToolUse | None:
    """The tools of the client; those that the provider itself would run are not offered."""
    functions = []
    for tool in tools:
        if "input_schema" in tool:
            function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
            if tool.get("description"):
                function["description"] = tool["description"]
            functions.append({"type": "function", "function": function})
    choice = {"type": "auto"} if choice is None else choice
    kind, name = choice.get("type"), choice.get("name")
    if kind == "tool" and isinstance(name, str):
        wanted: Any = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in CHOICES:
        wanted = CHOICES[kind]
    else:
        raise ApiError(
            400,
            f'tool_choice is {choice!r:.80}; it must have the type "auto", "any", "none", or '
            '"tool" and the name of one',
            param="tool_choice",
        )
    parallel = not choice.get("disable_parallel_tool_use", False)
    return service.slots.tool_use(functions, wanted, parallel=parallel)


def _tool_block(call: CallPart) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _input(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:  # cut off by max_tokens
        return {}


def _stop_reason(reason: str, stop_string: str | None) -> str:
    if stop_string is not None:
        return "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}.get(reason, "end_turn")


def _usage(stats: Stats) -> dict[str, int]:
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.generated_tokens,
    }


def _event(document: Mapping[str, Any]) -> bytes:
    return event_text(document, str(document["type"]))


def _failed(error: ApiError) -> bytes:
    return _event({"type": "error", **error.body})
