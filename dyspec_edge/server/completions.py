"""OpenAI's completions of a bare text, with llama-server's additions.

Source: OpenAI's API reference (completions), llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from uuid import uuid4

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.engine import Prompt
from dyspec_edge.server import figures
from dyspec_edge.server.answers import DONE, EventStream, as_json, event_text, when_complete
from dyspec_edge.server.chat import FINGERPRINT, StreamOptions
from dyspec_edge.server.errors import ApiError, unsupported
from dyspec_edge.server.fields import SamplingFields, parsed
from dyspec_edge.server.figures import LogprobWriter
from dyspec_edge.server.infill import infill_prompt
from dyspec_edge.server.request import Request
from dyspec_edge.server.service import Running, Service

RawPrompt = str | list[int] | list[str] | list[list[int]]


class CompletionBody(SamplingFields):
    """The body of /v1/completions."""

    prompt: RawPrompt
    model: str | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0, le=100)
    suffix: str | None = None
    echo: bool | None = None
    n: int | None = None

    def request(self, service: Service) -> Request:
        """What is asked for.

        Raises:
            DyspecError: something that cannot be done.
        """
        if self.n not in (None, 1):
            raise unsupported("n other than 1", "send the request several times")
        if self.echo:
            raise unsupported("echo", "leave it out")
        options = self.stream_options or StreamOptions()
        return Request(
            prompt=self.wanted_prompt(service),
            sampling=self.sampling(service.sampling, service.tokenize),
            max_tokens=self.limit(),
            stop=self.stops(),
            json_schema=self.json_schema,
            logprobs=self.logprobs,
            policy=self.policy_name(),
            verify=self.verify,
            wants_trees=options.include_tree and self.stream,
        )

    def wanted_prompt(self, service: Service) -> Prompt:
        """The prompt; with a suffix that of the middle between both.

        Raises:
            ApiError: a suffix to something else than a text, or a model that knows no middle.
        """
        if not self.suffix:
            return raw_prompt(service, self.prompt)
        if not isinstance(self.prompt, str):
            raise ApiError(400, "a suffix needs a prompt that is one text", param="suffix")
        return infill_prompt(
            service.model,
            self.prompt,
            self.suffix,
            num_ctx=service.slots.num_ctx,
            max_tokens=self.limit(),
        )


def raw_prompt(service: Service, given: RawPrompt) -> Prompt:
    """One bare prompt: a text, token ids, or a list with one of these.

    Raises:
        ApiError: several prompts, none, or ids beyond the vocabulary.
    """
    if isinstance(given, str):
        return service.slots.prepare_raw(given)
    if given and all(isinstance(part, int) for part in given):
        ids = tuple(int(part) for part in given)  # type: ignore[arg-type]
        text = b"".join(map(service.piece, ids)).decode("utf-8", "replace")
        return Prompt(text, ids, opens_thought=False, is_raw=True)
    if len(given) != 1:
        raise ApiError(
            400, f"prompt holds {len(given)} prompts; send them one by one", param="prompt"
        )
    return raw_prompt(service, given[0])  # type: ignore[arg-type]


async def completions(service: Service, http: HttpRequest) -> Response:
    """POST /v1/completions."""
    body = parsed(CompletionBody, await http.body())
    running = await service.begin(body.request(service))
    writer = _Writer(service, running)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(body.stream_options or StreamOptions()), writer.failed)


class _Writer:
    """One reply in the words of this protocol."""

    def __init__(self, service: Service, running: Running) -> None:
        self._running = running
        self._logprobs = LogprobWriter(service.piece)
        self._num_characters = 0
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": running.created,
            "model": service.name,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> Response:
        found = await self._running.whole()
        choice = self._choice(found.answer, found.logprobs, found.finish_reason)
        return as_json(
            {
                **self._head,
                "choices": [choice],
                "usage": figures.usage(found.stats),
                "timings": figures.timings(found.stats),
            }
        )

    async def lines(self, options: StreamOptions) -> AsyncGenerator[bytes]:
        extra: dict[str, Any] = {"usage": None} if options.include_usage else {}
        async for piece in self._running.pieces():
            if piece is None:
                yield event_text(None)
                continue
            chunk = piece.chunk
            choice = self._choice(chunk.text, chunk.logprobs or (), chunk.finish_reason)
            more: Mapping[str, Any] = {} if piece.step is None else {"step": piece.step}
            if chunk.stats is not None:
                more = {"timings": figures.timings(chunk.stats)}
            if chunk.text or chunk.logprobs or more:
                yield event_text({**self._head, "choices": [choice], **extra, **more})
            if chunk.stats is not None and options.include_usage:
                usage = figures.usage(chunk.stats)
                yield event_text({**self._head, "choices": [], "usage": usage})
        yield event_text(DONE)

    def failed(self, error: ApiError) -> bytes:
        return event_text(error.body) + event_text(DONE)

    def _choice(
        self, text: str, likely: tuple[TokenLogprobs, ...], reason: str | None
    ) -> dict[str, Any]:
        logprobs = None
        if likely:
            logprobs = self._logprobs.completion(likely, self._num_characters)
            logprobs["content"] = self._logprobs.chat(likely)
            self._num_characters += sum(map(len, logprobs["tokens"]))
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}
