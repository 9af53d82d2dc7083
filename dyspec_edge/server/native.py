"""llama-server's own endpoints: completion, infill, tokens, templates, properties, slots.

Source: llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import dyspec_edge
from dyspec_edge.engine import Chunk, SamplingParams
from dyspec_edge.server import figures
from dyspec_edge.server.answers import EventStream, as_json, event_text, when_complete
from dyspec_edge.server.completions import RawPrompt, raw_prompt
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.fields import Fields, SamplingFields, parsed
from dyspec_edge.server.figures import LogprobWriter
from dyspec_edge.server.infill import infill_prompt
from dyspec_edge.server.request import Request
from dyspec_edge.server.service import Running, Service


class NativeBody(SamplingFields):
    """The body of /completion."""

    prompt: RawPrompt = ""
    n_probs: int = Field(0, ge=0, le=100)
    return_tokens: bool = False

    def request(self, service: Service, prompt: Any = None) -> Request:
        """What is asked for.

        Args:
            prompt: the one that stands for `self.prompt`, if there is one.
        """
        return Request(
            prompt=prompt or raw_prompt(service, self.prompt),
            sampling=self.sampling(service.sampling, service.tokenize),
            max_tokens=self.limit(),
            stop=self.stops(),
            json_schema=self.json_schema,
            logprobs=self.n_probs or None,
            policy=self.policy_name(),
            verify=self.verify,
        )


class ExtraFile(Fields):
    """A file that is not the one that is edited."""

    filename: str = "tmp"
    text: str = ""


class InfillBody(NativeBody):
    """The body of /infill."""

    prompt: str = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] = Field(default_factory=list)


class TextBody(Fields):
    """The body of /tokenize."""

    content: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class TokensBody(Fields):
    """The body of /detokenize."""

    tokens: list[int] = Field(default_factory=list)


class TemplateBody(Fields):
    """The body of /apply-template."""

    messages: list[dict[str, Any]]
    chat_template_kwargs: dict[str, Any] | None = None


async def completion(service: Service, http: HttpRequest) -> Response:
    """POST /completion."""
    body = parsed(NativeBody, await http.body())
    return await _answer(service, http, body, await to_thread.run_sync(body.request, service))


async def infill(service: Service, http: HttpRequest) -> Response:
    """POST /infill."""
    body = parsed(InfillBody, await http.body())
    return await _answer(service, http, body, await to_thread.run_sync(_infill, service, body))


async def tokenize(service: Service, http: HttpRequest) -> Response:
    """POST /tokenize."""
    body = parsed(TextBody, await http.body())
    tokens = await to_thread.run_sync(_tokens, service, body)
    if not body.with_pieces:
        return as_json({"tokens": tokens})
    return as_json({"tokens": [{"id": t, "piece": _piece(service.piece(t))} for t in tokens]})


async def detokenize(service: Service, http: HttpRequest) -> Response:
    """POST /detokenize."""
    tokens = parsed(TokensBody, await http.body()).tokens
    return as_json({"content": b"".join(map(service.piece, tokens)).decode("utf-8", "replace")})


async def apply_template(service: Service, http: HttpRequest) -> Response:
    """POST /apply-template."""
    body = parsed(TemplateBody, await http.body())
    prepare = service.slots.prepare
    found = await to_thread.run_sync(prepare, body.messages, body.chat_template_kwargs)
    return as_json({"prompt": found.text})


async def props(service: Service, _http: HttpRequest) -> Response:
    """GET /props."""
    slots = service.slots
    settings = {"n_ctx": slots.num_ctx, "params": _settings(service.sampling)}
    return as_json(
        {
            "default_generation_settings": settings,
            "total_slots": len(slots.all),
            "model_alias": service.name,
            "model_path": service.model.path.name,
            "chat_template": service.model.chat_template or "",
            "modalities": {"vision": False, "audio": False},
            "build_info": f"dyspec-edge {dyspec_edge.__version__}",
            "policy": slots.all[0].policy_name,
            "cache_ram": {
                "limit_bytes": slots.kept.limit,
                "used_bytes": slots.kept.num_bytes,
                "conversations": len(slots.kept),
            },
            "is_sleeping": False,
        }
    )


async def slots(service: Service, http: HttpRequest) -> Response:
    """GET /slots: the conversations, and what each holds."""
    found = service.slots
    if http.query_params.get("fail_on_no_slot") and not found.has_free:
        raise ApiError(503, "all slots are taken", "unavailable_error", retry_after=1)
    return as_json(
        [
            {
                "id": slot.number,
                "n_ctx": found.num_ctx,
                "is_processing": slot.is_taken,
                "speculative": slot.policy_name != "none",
                "policy": slot.policy_name,
                "n_cached": slot.num_cached,
            }
            for slot in found.all
        ]
    )


def _tokens(service: Service, body: TextBody) -> list[int]:
    return service.model.tokenize(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )


def _infill(service: Service, body: InfillBody) -> Request:
    prompt = infill_prompt(
        service.model,
        body.input_prefix,
        body.input_suffix,
        [(file.filename, file.text) for file in body.input_extra],
        begun=body.prompt,
        num_ctx=service.slots.num_ctx,
        max_tokens=body.limit(),
    )
    return body.request(service, prompt)


async def _answer(
    service: Service, http: HttpRequest, body: NativeBody, request: Request
) -> Response:
    running = await service.begin(request)
    writer = _Writer(service, running, body)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(), lambda error: event_text(error.body))


class _Writer:
    """One reply in the words of this protocol."""

    def __init__(self, service: Service, running: Running, body: NativeBody) -> None:
        self._service = service
        self._running = running
        self._body = body
        self._probs = LogprobWriter(service.piece)

    async def whole(self) -> Response:
        found = await self._running.whole()
        last = Chunk(
            found.answer, found.tokens, found.finish_reason, found.stats, None, found.stop_string
        )
        document = self._last(last, "\n" in found.answer)
        document["content"] = found.answer
        document["tokens"] = list(found.tokens) if self._body.return_tokens else []
        if self._body.n_probs:
            document["completion_probabilities"] = self._probs.chat(found.logprobs)
        return as_json(document)

    async def lines(self) -> AsyncGenerator[bytes]:
        count, has_line = 0, False
        async for piece in self._running.pieces():
            if piece is None:
                yield event_text(None)
                continue
            chunk = piece.chunk
            count += len(chunk.tokens)
            has_line |= "\n" in chunk.text
            document: dict[str, Any] = {
                "index": 0,
                "content": chunk.text,
                "tokens": list(chunk.tokens),
                "stop": False,
                "tokens_predicted": count,
                "tokens_evaluated": len(self._running.prompt.tokens),
            }
            if chunk.logprobs and self._body.n_probs:
                document["completion_probabilities"] = self._probs.chat(chunk.logprobs)
            if chunk.finish_reason is not None:
                document |= self._last(chunk, has_line)
            yield event_text(document)

    def _last(self, chunk: Chunk, has_line: bool) -> dict[str, Any]:
        stats, word = chunk.stats, chunk.stop_string
        assert stats is not None  # of the last chunk
        kind = "word" if word is not None else "eos"
        settings = {
            **_settings(self._body.sampling(self._service.sampling, self._service.tokenize)),
            "seed": stats.seed,
            "n_predict": -1 if self._body.limit() is None else self._body.limit(),
            "stop": list(self._body.stops()),
        }
        return {
            "index": 0,
            "stop": True,
            "model": self._service.name,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": settings,
            "prompt": self._running.prompt.text,
            "has_new_line": has_line,
            "truncated": stats.context_used >= stats.num_ctx,
            "stop_type": "limit" if chunk.finish_reason == "length" else kind,
            "stopping_word": word or "",
            "tokens_cached": stats.context_used,
            "timings": figures.timings(stats),
        }


def _settings(params: SamplingParams) -> dict[str, Any]:
    """Sampling parameters under llama-server's names."""
    found = asdict(params)
    found["typical_p"] = found.pop("typical")
    found["logit_bias"] = [{"token": t, "bias": _finite(b)} for t, b in params.logit_bias]
    found["grammar"] = params.grammar or ""
    found["seed"] = -1 if params.seed is None else params.seed
    return found


def _finite(bias: float) -> float | bool:
    return bias if bias > -1e30 else False


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
