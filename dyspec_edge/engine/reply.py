"""A reply under way: steps of a conversation in, pieces of text out, and why and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.sampling import Sampler, SamplingParams, fresh_seed
from dyspec_edge.decode.stats import Counters, Stats, summarise
from dyspec_edge.engine.thought_tokens import ThoughtTokens
from dyspec_edge.errors import Cancelled
from dyspec_edge.llama import Model
from dyspec_edge.text.stop_strings import StopStrings
from dyspec_edge.text.utf8 import Utf8Stream


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a reply.

    Attributes:
        text: what came since the last chunk, whole characters; may be empty.
        tokens: the ids behind it; characters may lag behind tokens.
        finish_reason: on the last chunk "stop" (end token or stop string), "length" (max_tokens
            or context full) or "cancelled"; else None.
        stats: the figures, on the last chunk.
        logprobs: of `tokens`, where they were asked for.
        stop_string: on the last chunk the stop string that ended the reply, or None.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    stats: Stats | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply; attributes as in `Chunk`."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stats: Stats
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> Completion:
        """All chunks of a reply as one."""
        found = list(chunks)
        last = found[-1]
        assert last.finish_reason is not None, "a stream ends with all figures, or raises"
        assert last.stats is not None
        likely = [chunk.logprobs for chunk in found if chunk.logprobs is not None]
        return cls(
            "".join(chunk.text for chunk in found),
            tuple(token for chunk in found for token in chunk.tokens),
            last.finish_reason,
            last.stats,
            tuple(one for some in likely for one in some) if likely else None,
        )


class Reply:
    """One reply: what has been emitted so far, as tokens and as text.  To be closed.

    Args:
        pieces: turns the tokens of this reply into bytes.
        params: how tokens are sampled; without a seed the reply gets one of its own.
        prompt: token ids.
        stop: the text ends before the first of these strings.
        started: when the caller asked, by `time.perf_counter`.
        num_ctx: usable tokens, for the figures.
        plain_seconds: what a token of plain decoding costs, where it was measured.

    Attributes:
        text: what was shown, whole characters.
        tokens: the ids behind it, without an end token.
        was_cut: a stop string cut the text, so that tokens and text do not match to the end.
        last_step: the latest step.

    Raises:
        OptionError: a stop string is empty.
    """

    def __init__(
        self,
        conversation: Conversation,
        model: Model,
        pieces: ThoughtTokens,
        params: SamplingParams,
        prompt: Sequence[int],
        stop: Sequence[str],
        *,
        started: float,
        num_ctx: int,
        plain_seconds: float | None,
    ) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.was_cut = False
        self.last_step: Step | None = None
        self._conversation = conversation
        self._model = model
        self._prompt = prompt
        self._pieces = pieces
        self._characters = Utf8Stream()
        self._stops = StopStrings(stop)
        seed = fresh_seed() if params.seed is None else params.seed
        self._sampler = Sampler(model, params, seed, prompt)
        self._started = started
        self._num_ctx = num_ctx
        self._plain_seconds = plain_seconds
        self._finish_reason: str | None = None
        self._num_cached = 0
        self._prefill_seconds = 0.0
        self._first_token_after = 0.0
        self._steps: list[Step] = []
        self._before = Counters.read(conversation)

    def chunks(
        self,
        max_tokens: int,
        num_logprobs: int | None,
        on_prefill: Callable[[int, int], None] | None,
    ) -> Generator[Chunk]:
        """Read the prompt and generate; the last chunk has the figures.

        Args:
            num_logprobs: most likely tokens beside each token; None for no log-probabilities.
            on_prefill: called with (tokens read, tokens to read) while the prompt is read.

        Raises:
            DecodeError: llama.cpp failed.
        """
        try:
            self._read_prompt(on_prefill)
            for step in self._conversation.generate(
                max_tokens, keep_trees=True, num_logprobs=num_logprobs
            ):
                yield self._take(step)
                if self._finish_reason is not None:
                    break
        except Cancelled:
            self._finish_reason = "cancelled"
        last = self._last_chunk()
        yield last if num_logprobs is None else replace(last, logprobs=())

    @property
    def is_whole(self) -> bool:
        """Whether the text that was shown is that of all tokens: nothing cut, nothing held back."""
        return not (self.was_cut or self._stops.is_holding or self._characters.is_holding)

    def close(self) -> None:
        """Leave both caches with the prompt and the emitted tokens, and free the sampler."""
        self._conversation.rewind(len(self._prompt) + len(self.tokens))
        self._sampler.close()

    def _read_prompt(self, on_prefill: Callable[[int, int], None] | None) -> None:
        started = time.perf_counter()
        conversation = self._conversation
        self._num_cached = conversation.begin(self._prompt, self._sampler, on_progress=on_prefill)
        self._prefill_seconds = time.perf_counter() - started
        self._before = Counters.read(conversation)

    def _take(self, step: Step) -> Chunk:
        """The chunk of a step, cut where an end token or a stop string ends the text."""
        if not self._steps:
            self._first_token_after = time.perf_counter() - self._started
        first, shown = len(self.tokens), ""
        for token in step.tokens:
            if token in self._conversation.end_tokens:
                self._finish_reason = "stop"
                break
            self.tokens.append(token)
            text, met = self._stops.feed(self._characters.feed(self._pieces.piece(token)))
            shown += text
            if met:
                self._finish_reason, self.was_cut = "stop", True
                break
        self.text += shown
        emitted = tuple(self.tokens[first:])
        self._steps.append(step._replace(num_accepted=min(step.num_accepted, len(emitted))))
        self.last_step = step
        likely = None if step.logprobs is None else step.logprobs[: len(emitted)]
        return Chunk(shown, emitted, logprobs=likely)

    def _last_chunk(self) -> Chunk:
        """What was held back, the reason of the end, and the figures."""
        rest = ""
        if not self.was_cut:
            text, met = self._stops.feed(self._characters.flush())
            rest = text if met else text + self._stops.flush()
            self.text += rest
        stats = summarise(
            conversation=self._conversation,
            sampler=self._sampler,
            before=self._before,
            steps=self._steps,
            num_generated=len(self.tokens),
            prompt_tokens=len(self._prompt),
            cached_tokens=self._num_cached,
            time_to_first_token=self._first_token_after,
            prefill_seconds=self._prefill_seconds,
            num_ctx=self._num_ctx,
            measured_plain=self._plain_seconds,
        )
        reason = self._finish_reason or "length"
        return Chunk(rest, (), reason, stats, stop_string=self._stops.met)
