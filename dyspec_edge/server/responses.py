"""OpenAI's Responses, as Codex asks for them; nothing is stored between requests.

Source: OpenAI's API reference (responses, streaming events).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from uuid import uuid4

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from dyspec_edge.decode.stats import Stats
from dyspec_edge.server.answers import EventStream, as_json, event_text, when_complete
from dyspec_edge.server.errors import ApiError, unsupported
from dyspec_edge.server.fields import SamplingFields, parsed
from dyspec_edge.server.reading import Part, ReplyReader
from dyspec_edge.server.request import Request
from dyspec_edge.server.service import Running, Service
from dyspec_edge.text.thoughts import Kind
from dyspec_edge.text.tool_calls import CallPart
from dyspec_edge.text.tools import ToolUse

ECHOED = ("instructions", "max_output_tokens", "temperature", "top_p", "tools", "metadata")


class ResponsesBody(SamplingFields):
    """The body of /v1/responses."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def request(self, service: Service) -> Request:
        """What is asked for.

        Raises:
            DyspecError: something that cannot be done.
        """
        if self.previous_response_id:
            raise unsupported("previous_response_id", "nothing is stored; send the whole input")
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return Request(
            prompt=[*system, *_messages(self.input)],
            sampling=self.sampling(service.sampling, service.tokenize),
            max_tokens=self.max_output_tokens,
            stop=self.stops(),
            json_schema=self._schema(),
            template_kwargs=self.chat_template_kwargs or {},
            tools=self._tool_use(service),
            policy=self.policy_name(),
            verify=self.verify,
        )

    def _schema(self) -> dict[str, Any] | bool | None:
        wanted = (self.text or {}).get("format") or {}
        kind = wanted.get("type", "text") if isinstance(wanted, Mapping) else None
        if kind == "text":
            return self.json_schema
        if kind == "json_object":
            return {"type": "object"}
        schema = wanted.get("schema") if kind == "json_schema" else None
        if not isinstance(schema, dict):
            raise ApiError(400, "text.format needs a type and its schema", param="text.format")
        return schema

    def _tool_use(self, service: Service) -> ToolUse | None:
        """The functions; tools that the provider itself would run are not offered to the model."""
        functions = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            for tool in self.tools or ()
            if tool.get("type") == "function"
        ]
        return service.slots.tool_use(
            functions, self.tool_choice, parallel=self.parallel_tool_calls
        )


async def responses(service: Service, http: HttpRequest) -> Response:
    """POST /v1/responses."""
    body = parsed(ResponsesBody, await http.body())
    running = await service.begin(await to_thread.run_sync(body.request, service))
    writer = _Writer(service, running, body)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(), writer.failed)


class _Writer:
    """One reply in the words of this protocol."""

    def __init__(self, service: Service, running: Running, body: ResponsesBody) -> None:
        self._running = running
        self._number = 0
        fields = body.model_dump(include=set(ECHOED))
        self._head = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": running.created,
            "model": service.name,
            **fields,
            "tools": fields["tools"] or [],
            "tool_choice": body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            "text": body.text or {"format": {"type": "text"}},
            "error": None,
            "store": False,
        }

    async def whole(self) -> Response:
        found = await self._running.whole()
        items = _Items()
        if found.thought:
            items.add(("thought", found.thought))
        if found.answer or not found.calls:
            items.add(("answer", found.answer))
        for call in found.calls:
            items.add(call)
        items.end()
        return as_json(self._document(items, found.finish_reason, found.stats))

    async def lines(self) -> AsyncGenerator[bytes]:
        reader, items = ReplyReader(self._running.prompt), _Items()
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        begun["incomplete_details"] = None
        for name in ("response.created", "response.in_progress"):
            yield self._event({"type": name, "response": begun})
        async for piece in self._running.pieces():
            if piece is None:
                yield event_text(None)
                continue
            chunk = piece.chunk
            for part in reader.feed(chunk):
                for event in items.add(part):
                    yield self._event(event)
            if chunk.finish_reason is not None and chunk.stats is not None:
                for event in items.end():
                    yield self._event(event)
                reason = reader.finish_reason(chunk.finish_reason)
                last = self._document(items, reason, chunk.stats)
                yield self._event({"type": f"response.{last['status']}", "response": last})

    def failed(self, error: ApiError) -> bytes:
        what = {"code": error.code or error.kind, "message": str(error)}
        failed = {**self._head, "status": "failed", "output": [], "usage": None, "error": what}
        return self._event({"type": "response.failed", "response": failed})

    def _document(self, items: _Items, reason: str, stats: Stats) -> dict[str, Any]:
        is_cut = reason == "length"
        return {
            **self._head,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": items.done,
            "usage": {
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details": {"cached_tokens": stats.cached_tokens},
                "output_tokens": stats.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": stats.prompt_tokens + stats.generated_tokens,
            },
        }

    def _event(self, document: Mapping[str, Any]) -> bytes:
        numbered = {**document, "sequence_number": self._number}
        self._number += 1
        return event_text(numbered, str(document["type"]))


class _Items:
    """Output items: what follows on something of its own kind goes on with it.

    Attributes:
        done: those that are complete.
    """

    NAMES: Mapping[Kind, str] = {"thought": "reasoning_text", "answer": "output_text"}

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._kind: Kind | int | None = None
        self._id = ""
        self._text = ""
        self._call = CallPart(0)

    def add(self, part: Part) -> list[dict[str, Any]]:
        """The events of a part."""
        kind = part.index if isinstance(part, CallPart) else part[0]
        events = []
        if kind != self._kind:
            events = [*self.end(), *self._begin(kind, part)]
        text = part.arguments if isinstance(part, CallPart) else part[1]
        self._text += text
        return [*events, self._event("delta", delta=text)] if text else events

    def end(self) -> list[dict[str, Any]]:
        """The events that close the item that is open."""
        if self._kind is None:
            return []
        item = self._item("completed")
        if isinstance(self._kind, int):
            events = [self._event("done", arguments=self._text, name=self._call.name)]
        else:
            events = [
                self._event("done", text=self._text),
                self._at("response.content_part.done", part=item["content"][0], content_index=0),
            ]
        events.append(self._output("response.output_item.done", item))
        self.done.append(item)
        self._kind = None
        return events

    def _begin(self, kind: Kind | int, part: Part) -> list[dict[str, Any]]:
        self._kind, self._text = kind, ""
        prefix = {"thought": "rs", "answer": "msg"}.get(str(kind), "fc")
        self._id = f"{prefix}_{uuid4().hex}"
        if isinstance(part, CallPart):
            self._call = part
            return [self._output("response.output_item.added", self._item("in_progress"))]
        item = self._item("in_progress")
        (content,) = item["content"]
        added = self._at("response.content_part.added", part=content, content_index=0)
        return [self._output("response.output_item.added", {**item, "content": []}), added]

    def _item(self, status: str) -> dict[str, Any]:
        head = {"id": self._id, "status": status}
        if isinstance(self._kind, int):
            call = {"call_id": self._call.id, "name": self._call.name, "arguments": self._text}
            return {**head, "type": "function_call", **call}
        assert self._kind is not None
        content: dict[str, Any] = {"type": self.NAMES[self._kind], "text": self._text}
        if self._kind == "thought":
            return {**head, "type": "reasoning", "summary": [], "content": [content]}
        content |= {"annotations": [], "logprobs": []}
        return {**head, "type": "message", "role": "assistant", "content": [content]}

    def _event(self, stage: str, /, **members: Any) -> dict[str, Any]:
        if isinstance(self._kind, int):
            return self._at(f"response.function_call_arguments.{stage}", **members)
        assert self._kind is not None
        name = f"response.{self.NAMES[self._kind]}.{stage}"
        more: dict[str, Any] = {"logprobs": []} if self._kind == "answer" else {}
        return self._at(name, content_index=0, **more, **members)

    def _at(self, name: str, /, **members: Any) -> dict[str, Any]:
        return {"type": name, "item_id": self._id, "output_index": len(self.done), **members}

    def _output(self, name: str, item: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": name, "output_index": len(self.done), "item": item}


def _messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as messages of a chat."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[dict[str, Any]] = []
    for item in given:
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if found and found[-1].get("tool_calls"):
                found[-1]["tool_calls"].append(call)
            else:
                found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            content = _content(item.get("output"))
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            found.append({"role": role, "content": _content(item.get("content"))})
        elif kind != "reasoning":  # a thought of an earlier turn, which no template wants
            raise unsupported(f"input of the type {kind!r}", "send messages and calls of functions")
    return found


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text", "text")
    parts = []
    for part in content:
        is_text = isinstance(part, Mapping) and part.get("type") in texts
        parts.append({**part, "type": "text"} if is_text else part)
    return parts
