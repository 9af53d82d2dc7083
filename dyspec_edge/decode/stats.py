"""The figures of a reply: what was done, how long each part took, what it was worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.native import StreamTotals


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of one reply; times in seconds.

    Attributes:
        speedup: tokens per second against `plain_seconds_per_token`; None if that is unknown.
        time_to_first_token: from the call to the first emitted token, both prompts read.
        prompt_tokens, cached_tokens: of the rendered prompt, and how many were in the cache.
        generated_tokens: emitted, an end token not counted.
        draft_tokens, accepted_tokens: tree nodes that the target checked, and those it emitted.
        steps: target passes.
        block_efficiency: generated tokens per target pass.
        acceptance_rate: accepted / drafted tokens.
        accept_length_histogram: entry i counts the steps that accepted i drafted tokens.
        target_seconds, draft_seconds: inside llama_decode, the prompt apart.
        rows_seconds: reducing rows of logits.
        sampling_seconds: the sampler chain and the draw.
        overhead_seconds: all the rest of the steps.
        plain_seconds_per_token: of plain decoding, as measured at load; kept up with by `priced`.
        plain_steps, chain_steps, tree_steps: steps by what the target checked: the root alone, one
            path, or branches.
        tree_size_histogram: entry i counts the steps in which i drafted nodes were checked.
        streamed_bytes: of weights, read for passes of the target, the prompt's apart; 0 where they
            are in memory or left to the system.
        stream_read_seconds, stream_wait_seconds: in which they were being read, and in which a
            pass had to wait for them; all the other reading was hidden behind computing.
        learned: what the policy has learned so far, by name; empty if it does not learn.
    """

    seed: int
    policy: str
    verify: str
    temperature: float
    time_to_first_token: float
    speedup: float | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    draft_tokens: int
    accepted_tokens: int
    steps: int
    block_efficiency: float
    acceptance_rate: float
    accept_length_histogram: tuple[int, ...]
    tokens_per_second: float
    prompt_tokens_per_second: float
    prefill_seconds: float
    decode_seconds: float
    target_seconds: float
    draft_seconds: float
    rows_seconds: float
    sampling_seconds: float
    overhead_seconds: float
    draft_passes: int
    draft_rows: int
    target_rows: int
    context_used: int
    num_ctx: int
    plain_seconds_per_token: float | None
    plain_steps: int = 0
    chain_steps: int = 0
    tree_steps: int = 0
    tree_size_histogram: tuple[int, ...] = ()
    streamed_bytes: int = 0
    stream_read_seconds: float = 0.0
    stream_wait_seconds: float = 0.0
    learned: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Counters:
    """The running totals of a conversation at one moment."""

    target_seconds: float
    draft_seconds: float
    read_seconds: float
    rows_seconds: float
    target_rows: int
    draft_passes: int
    draft_rows: int
    plain_seconds: float | None
    stream: StreamTotals

    @classmethod
    def read(cls, conversation: Conversation) -> Counters:
        """The totals as they stand."""
        target, drafter = conversation.target, conversation.drafter
        plain = conversation.policy.figures().get("plain")
        draft = drafter.totals
        return cls(
            target.decode_seconds,
            draft.pass_seconds,
            drafter.read_seconds,
            draft.rows_seconds,
            target.num_rows,
            draft.num_passes,
            draft.num_rows,
            plain,
            target.stream_totals,
        )


def summarise(
    *,
    conversation: Conversation,
    sampler: Sampler,
    before: Counters,
    steps: Sequence[Step],
    num_generated: int,
    prompt_tokens: int,
    cached_tokens: int,
    time_to_first_token: float,
    prefill_seconds: float,
    num_ctx: int,
    measured_plain: float | None,
) -> Stats:
    """The figures of a reply from its steps and from the totals `before` the first of them.

    What a plain token costs is `measured_plain`, unless the policy keeps an account of it.
    """
    now = Counters.read(conversation)
    plain_seconds = measured_plain
    num_emitted = sum(len(step.tokens) for step in steps)
    if now.plain_seconds is not None and before.plain_seconds is not None and num_emitted:
        plain_seconds = (now.plain_seconds - before.plain_seconds) / num_emitted
    decode_seconds = sum(step.seconds for step in steps)
    target_seconds = now.target_seconds - before.target_seconds
    draft_seconds = now.draft_seconds - before.draft_seconds
    rows_seconds = now.rows_seconds - before.rows_seconds + sampler.rows_seconds
    drafted = sum(step.num_drafted for step in steps)
    accepted = sum(step.num_accepted for step in steps)
    lengths = Counter(step.num_accepted for step in steps)
    sizes = Counter(step.num_drafted for step in steps)
    chains = sum(step.is_chain and step.num_drafted > 0 for step in steps)
    rate = num_generated / decode_seconds if decode_seconds > 0 else 0.0
    new_tokens = prompt_tokens - cached_tokens
    known = target_seconds + draft_seconds + rows_seconds + sampler.seconds
    return Stats(
        seed=sampler.seed,
        policy=conversation.policy.name,
        verify=conversation.verifier.name,
        temperature=sampler.temperature,
        time_to_first_token=time_to_first_token,
        speedup=rate * plain_seconds if plain_seconds and rate else None,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        generated_tokens=num_generated,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        steps=len(steps),
        block_efficiency=num_generated / len(steps) if steps else 0.0,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        accept_length_histogram=_histogram(lengths),
        tokens_per_second=rate,
        prompt_tokens_per_second=new_tokens / prefill_seconds if prefill_seconds > 0 else 0.0,
        prefill_seconds=prefill_seconds + now.read_seconds - before.read_seconds,
        decode_seconds=decode_seconds,
        target_seconds=target_seconds,
        draft_seconds=draft_seconds,
        rows_seconds=rows_seconds,
        sampling_seconds=sampler.seconds,
        overhead_seconds=max(0.0, decode_seconds - known),
        draft_passes=now.draft_passes - before.draft_passes,
        draft_rows=now.draft_rows - before.draft_rows,
        target_rows=now.target_rows - before.target_rows,
        context_used=prompt_tokens + num_generated,
        num_ctx=num_ctx,
        plain_seconds_per_token=plain_seconds,
        plain_steps=sizes[0],
        chain_steps=chains,
        tree_steps=len(steps) - sizes[0] - chains,
        tree_size_histogram=_histogram(sizes),
        streamed_bytes=now.stream.num_bytes - before.stream.num_bytes,
        stream_read_seconds=now.stream.read_seconds - before.stream.read_seconds,
        stream_wait_seconds=now.stream.wait_seconds - before.stream.wait_seconds,
        learned=dict(conversation.policy.figures()),
    )


def _histogram(counts: Counter[int]) -> tuple[int, ...]:
    """Entry i is the count of i, up to the last that occurs."""
    return tuple(counts[i] for i in range(max((i for i in counts if counts[i]), default=-1) + 1))
