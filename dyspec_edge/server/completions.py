"""OpenAI's completions of a bare text, with llama-server's additions.

Source: OpenAI's API reference (completions), llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.decode.stats import Stats
from dyspec_edge.engine import Prompt
from dyspec_edge.server import figures
from dyspec_edge.server.answers import DONE, EventStream, as_json, event_text, when_complete
from dyspec_edge.server.chat import FINGERPRINT, StreamOptions
from dyspec_edge.server.errors import ApiError, unsupported
from dyspec_edge.server.fields import SamplingFields, parsed
from dyspec_edge.server.figures import LogprobWriter
from dyspec_edge.server.infill import infill_prompt
from dyspec_edge.server.request import Request, choices
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
    n: int | None = Field(None, ge=1)

    def requests(self, service: Service) -> list[Request]:
        """What is asked for: `n` replies to each prompt.

        Raises:
            DyspecError: something that cannot be done.
        """
        if self.echo:
            raise unsupported("echo", "leave it out")
        given = several_prompts(self.prompt)
        service.scheduler.check_count(len(given) * (self.n or 1))
        return choices([self._request(service, one) for one in given], self.n or 1)

    def _request(self, service: Service, prompt: RawPrompt) -> Request:
        options = self.stream_options or StreamOptions()
        return Request(
            prompt=self._prompt(service, prompt),
            sampling=self.sampling(service.sampling, service.tokenize),
            max_tokens=self.limit(),
            stop=self.stops(),
            json_schema=self.json_schema,
            logprobs=self.logprobs,
            policy=self.policy_name(),
            verify=self.verify,
            wants_trees=options.include_tree and self.stream,
        )

    def _prompt(self, service: Service, prompt: RawPrompt) -> Prompt:
        if not self.suffix:
            return raw_prompt(service, prompt)
        if not isinstance(prompt, str):
            raise ApiError(400, "a suffix needs a prompt that is a text", param="suffix")
        return infill_prompt(
            service.model,
            prompt,
            self.suffix,
            num_ctx=service.slots.num_ctx,
            max_tokens=self.limit(),
        )


def several_prompts(given: RawPrompt) -> Sequence[RawPrompt]:
    """The prompts of a list of prompts, or the one that is no such list."""
    if isinstance(given, str) or all(isinstance(part, int) for part in given):
        return (given,)
    return given  # type: ignore[return-value]


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
    running = await service.begin(*await to_thread.run_sync(body.requests, service))
    writer = _Writer(service, running, body.n or 1)
    if not body.stream:
        return await when_complete(http, running, writer.whole)
    await running.begun()
    return EventStream(running, writer.lines(body.stream_options or StreamOptions()), writer.failed)


class _Writer:
    """The replies to `n` times each prompt in the words of this protocol."""

    def __init__(self, service: Service, running: Running, n: int) -> None:
        self._running = running
        self._n = n
        self._logprobs = LogprobWriter(service.piece)
        self._num_characters = [0] * len(running.prompts)
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": running.created,
            "model": service.name,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> Response:
        found = await self._running.all_whole()
        return as_json(
            {
                **self._head,
                "choices": [
                    self._choice(index, one.answer, one.logprobs, one.finish_reason)
                    for index, one in enumerate(found)
                ],
                **figures.of_whole([one.stats for one in found], self._n),
            }
        )

    async def lines(self, options: StreamOptions) -> AsyncGenerator[bytes]:
        extra: dict[str, Any] = {"usage": None} if options.include_usage else {}
        ended: dict[int, Stats] = {}
        async for piece in self._running.pieces():
            if piece is None:
                yield event_text(None)
                continue
            chunk = piece.chunk
            choice = self._choice(
                piece.choice, chunk.text, chunk.logprobs or (), chunk.finish_reason
            )
            more: Mapping[str, Any] = {} if piece.step is None else {"step": piece.step}
            if chunk.stats is not None:
                more = {"timings": figures.timings(chunk.stats)}
                ended[piece.choice] = chunk.stats
            if chunk.text or chunk.logprobs or more:
                yield event_text({**self._head, "choices": [choice], **extra, **more})
        if options.include_usage:
            usage = figures.usage([ended[choice] for choice in sorted(ended)], self._n)
            yield event_text({**self._head, "choices": [], "usage": usage})
        yield event_text(DONE)

    def failed(self, error: ApiError) -> bytes:
        return event_text(error.body) + event_text(DONE)

    def _choice(
        self, index: int, text: str, likely: tuple[TokenLogprobs, ...], reason: str | None
    ) -> dict[str, Any]:
        logprobs = None
        if likely:
            logprobs = self._logprobs.completion(likely, self._num_characters[index])
            logprobs["content"] = self._logprobs.chat(likely)
            self._num_characters[index] += sum(map(len, logprobs["tokens"]))
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
