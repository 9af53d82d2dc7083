"""What clients ask for, whatever protocol they speak, and what they get piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dyspec_edge.engine import Chunk, Message, Prompt, SamplingParams
from dyspec_edge.text.tools import ToolUse


@dataclass(frozen=True, slots=True)
class Request:
    """One reply that is wanted.

    Attributes:
        prompt: chat messages, or a bare prompt that is ready.
        max_tokens: of the reply at most; None for as many as fit.
        stop: the reply ends before the first of these.
        json_schema: the reply is JSON that is valid under it; None for anything.
        logprobs: most likely tokens to name beside each token; None for no log-probabilities.
        template_kwargs: variables for the chat template.
        tools: what the reply may call.
        policy, verify: as --policy and --verify spell them; None for the server's.
        wants_trees: pieces carry their steps with the token trees.
        choice: its number among the replies that a client asks for at once.
    """

    prompt: Sequence[Message] | Prompt
    sampling: SamplingParams
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | bool | None = None
    logprobs: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolUse | None = None
    policy: str | None = None
    verify: str | None = None
    wants_trees: bool = False
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a reply.

    Attributes:
        chunk: the engine's.
        step: for JSON, where trees are wanted.
        choice: of the request.
    """

    chunk: Chunk
    step: Mapping[str, Any] | None = None
    choice: int = 0


def choices(requests: Sequence[Request], n: int) -> list[Request]:
    """`n` replies to each request, numbered one after the other.

    A request's seed is that of its first reply; the next ones have the seeds that follow it, as
    llama-server's have.
    """
    found: list[Request] = []
    for request in requests:
        seed = request.sampling.seed
        for ahead in range(n):
            own = None if seed is None else seed + ahead
            sampling = replace(request.sampling, seed=own)
            found.append(replace(request, sampling=sampling, choice=len(found)))
    return found
