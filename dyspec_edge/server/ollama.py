"""Ollama's API, for programs that know no other: chat, generate, tags.

Streams are lines of JSON, and on unless a request says otherwise.
Source: Ollama's docs/api.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime, timezone
from typing import Any

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from dyspec_edge.decode.stats import Stats
from dyspec_edge.engine import Prompt
from dyspec_edge.server.answers import EventStream, as_json, when_complete
from dyspec_edge.server.errors import ApiError, unsupported
from dyspec_edge.server.fields import Fields, SamplingFields, parsed
from dyspec_edge.server.infill import infill_prompt
from dyspec_edge.server.reading import Part, ReplyReader
from dyspec_edge.server.request import Request
from dyspec_edge.server.service import Running, Service
from dyspec_edge.text.tool_calls import CallPart

NDJSON = "application/x-ndjson"
VERSION = "0.9.0"
"""Of the API that is spoken here; clients look whether it is new enough for them."""


class OllamaOptions(SamplingFields):
    """Ollama's `options`."""

    num_predict: int | None = None

    def limit(self) -> int | None:
        """Tokens of the reply at most; None for as many as fit."""
        return None if self.num_predict is None or self.num_predict < 0 else self.num_predict


class OllamaBody(Fields):
    """What both kinds of requests have."""

    model: str | None = None
    options: OllamaOptions | None = None
    format: str | dict[str, Any] | None = None
    stream: bool = True
    think: bool | str | None = None

    def _request(self, service: Service, prompt: Any, tools: Any = None) -> Request:
        options = self.options or OllamaOptions()
        schema: Any = self.format or None
        if isinstance(schema, str):
            if schema != "json":
                raise unsupported(f"format {schema!r:.40}", "give 'json' or a JSON schema")
            schema = {"type": "object"}
        thinking = {} if self.think is None else {"enable_thinking": self.think is not False}
        return Request(
            prompt=prompt,
            sampling=options.sampling(service.sampling, service.tokenize),
            max_tokens=options.limit(),
            stop=options.stops(),
            json_schema=schema,
            template_kwargs=thinking,
            tools=tools,
            policy=options.policy_name(),
            verify=options.verify,
        )


class OllamaChatBody(OllamaBody):
    """The body of /api/chat."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None

    def request(self, service: Service) -> Request:
        """What is asked for; errors as of `Request`s of a chat."""
        tools = service.slots.tool_use(self.tools or ())
        return self._request(service, self.messages, tools)


class OllamaGenerateBody(OllamaBody):
    """The body of /api/generate."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool = False

    def request(self, service: Service) -> Request:
        """What is asked for."""
        prompt: Prompt | list[dict[str, str]]
        if self.suffix:
            limit = (self.options or OllamaOptions()).limit()
            prompt = infill_prompt(
                service.model,
                self.prompt,
                self.suffix,
                num_ctx=service.slots.num_ctx,
                max_tokens=limit,
            )
        elif self.raw:
            prompt = service.slots.prepare_raw(self.prompt)
        else:
            system = [{"role": "system", "content": self.system}] if self.system else []
            prompt = [*system, {"role": "user", "content": self.prompt}]
        return self._request(service, prompt)


async def chat(service: Service, http: HttpRequest) -> Response:
    """POST /api/chat."""
    body = parsed(OllamaChatBody, await http.body())
    return await _answer(service, http, body, is_chat=True)


async def generate(service: Service, http: HttpRequest) -> Response:
    """POST /api/generate."""
    body = parsed(OllamaGenerateBody, await http.body())
    return await _answer(service, http, body, is_chat=False)


async def tags(service: Service, _http: HttpRequest) -> Response:
    """GET /api/tags."""
    report = service.slots.loaded.models.reports[0]
    details = {
        "format": "gguf",
        "family": report.architecture,
        "families": [report.architecture],
        "parameter_size": "",
        "quantization_level": "",
    }
    entry = {
        "name": service.name,
        "model": service.name,
        "modified_at": _time(service.created),
        "size": report.weights_bytes,
        "digest": "",
        "details": details,
    }
    return as_json({"models": [entry]})


async def version(_service: Service, _http: HttpRequest) -> Response:
    """GET /api/version."""
    return as_json({"version": VERSION})


async def _answer(
    service: Service,
    http: HttpRequest,
    body: OllamaChatBody | OllamaGenerateBody,
    *,
    is_chat: bool,
) -> Response:
    running = await service.begin(await to_thread.run_sync(body.request, service))
    writer = _Writer(service, running, is_chat=is_chat)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(), _failed, NDJSON)


class _Writer:
    """One reply in the words of this protocol."""

    def __init__(self, service: Service, running: Running, *, is_chat: bool) -> None:
        self._running = running
        self._is_chat = is_chat
        self._head = {"model": service.name, "created_at": _time(running.created)}

    async def whole(self) -> Response:
        found = await self._running.whole()
        parts: list[Part] = [("answer", found.answer)]
        if found.thought:
            parts.append(("thought", found.thought))
        text = self._said([*parts, *found.calls])
        return as_json({**self._head, **text, **_last(found.finish_reason, found.stats)})

    async def lines(self) -> AsyncGenerator[bytes]:
        reader = ReplyReader(self._running.prompt)
        async for piece in self._running.pieces():
            if piece is None:
                continue
            chunk = piece.chunk
            parts = [part for part in reader.feed(chunk) if not isinstance(part, CallPart)]
            if parts:
                yield _line({**self._head, **self._said(parts), "done": False})
            if chunk.finish_reason is not None and chunk.stats is not None:
                if reader.calls:
                    yield _line({**self._head, **self._said(reader.calls), "done": False})
                yield _line(
                    {**self._head, **self._said([]), **_last(chunk.finish_reason, chunk.stats)}
                )

    def _said(self, parts: list[Part] | list[CallPart] | list[tuple[Any, str]]) -> dict[str, Any]:
        """Parts as a message, or as what /api/generate calls it."""
        texts = {"thought": "", "answer": ""}
        calls = []
        for part in parts:
            if isinstance(part, CallPart):
                function = {"name": part.name, "arguments": _arguments(part.arguments)}
                calls.append({"function": function})
            else:
                texts[part[0]] += part[1]
        thinking = {"thinking": texts["thought"]} if texts["thought"] else {}
        if not self._is_chat:
            return {"response": texts["answer"], **thinking}
        message = {"role": "assistant", "content": texts["answer"], **thinking}
        return {"message": {**message, "tool_calls": calls} if calls else message}


def _last(reason: str, stats: Stats) -> dict[str, Any]:
    """The end and the figures; times in nanoseconds."""
    seconds = stats.time_to_first_token + stats.decode_seconds
    return {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": int(1e9 * seconds),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(1e9 * stats.prefill_seconds),
        "eval_count": stats.generated_tokens,
        "eval_duration": int(1e9 * stats.decode_seconds),
    }


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:  # cut off by the limit
        return {}


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _failed(error: ApiError) -> bytes:
    return _line({"error": str(error)})
