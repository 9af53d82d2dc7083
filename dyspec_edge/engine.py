"""Text in, text out: what chat, server, benchmarks and embedding programs all consume.

The engine knows templates, tokens' bytes, stop strings and figures; how tokens come about is the
decoder's business (speculative.py).  One reply at a time; others wait for their turn.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import GEN_SUSPENDED, getgeneratorstate
from types import TracebackType
from typing import Any

from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.loop import Step
from dyspec_edge.decode.sampling import Sampler, SamplingParams, fresh_seed
from dyspec_edge.decode.stats import Counters, Stats, summarise
from dyspec_edge.errors import Cancelled, ContextOverflow, DyspecError, OptionError
from dyspec_edge.load.loading import EngineConfig, Loaded, load
from dyspec_edge.text import streams
from dyspec_edge.text.template import ChatTemplate

__all__ = ["Chunk", "Completion", "Engine", "EngineConfig", "Message", "SamplingParams", "Stats"]

LLAMA_CPP_DEFAULTS = SamplingParams()

Message = Mapping[str, Any]
"""A chat message: "role" and "content", both texts."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a reply.

    Attributes:
        text: what came since the last chunk, whole characters; may be empty.
        tokens: the ids behind it; characters may lag behind tokens.
        finish_reason: on the last chunk "stop" (end token or stop string), "length" (max_tokens
            or context full) or "cancelled"; else None.
        stats: the figures, on the last chunk.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    stats: Stats | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply; attributes as in `Chunk`."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stats: Stats


class Engine:
    """A loaded target, and a draft where there is one.

    with Engine.load(EngineConfig(Path("target.gguf"), Path("draft.gguf"))) as engine:
        for chunk in engine.stream([{"role": "user", "content": "Hello"}]):
            print(chunk.text, end="")

    Methods may be called from any thread; replies are generated one at a time.

    Attributes:
        last_step: of the reply under way or the last one; its nodes are those of `decoder.tree`.
    """

    def __init__(self, config: EngineConfig, loaded: Loaded) -> None:
        self.config = config
        self.num_ctx = loaded.models.num_ctx
        self.decoder = loaded.decoder
        self._loaded = loaded
        self._model = loaded.models.target
        self._lock = threading.Lock()
        self._running = False
        self._closed = False
        self._current: weakref.ref[Generator[Chunk]] | None = None
        self.last_step: Step | None = None
        self._dialogue: tuple[str, tuple[int, ...]] = ("", ())
        model = self._model
        self._template = ChatTemplate.from_model(
            model.chat_template,
            config.chat_template,
            bos=self._special_text(model.bos),
            eos=self._special_text(model.eos),
            has_token=lambda text: len(self._encode(text, special=False)) == 1,
        )
        notices = [*loaded.notices, *([self._template.note] if self._template.note else [])]
        self.notices: tuple[str, ...] = tuple(notices)

    @classmethod
    def load(
        cls, config: EngineConfig, *, on_progress: Callable[[str, float], None] | None = None
    ) -> Engine:
        """Open the models.

        Args:
            on_progress: called with what is being done and a fraction 0..1.

        Raises:
            ModelFileError: a file is missing, broken or of a kind that cannot run.
            VocabularyError: the draft does not fit the target.
            DeviceError: not enough memory, or no GPU where one is required.
            OptionError: a value that has no meaning.
        """
        loaded = load(config, on_progress)
        try:
            return cls(config, loaded)
        except BaseException:
            loaded.close()
            raise

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        sampling: SamplingParams = LLAMA_CPP_DEFAULTS,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        raw: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Generator[Chunk]:
        """Generate a reply piece by piece.

        A consumer may stop iterating at any time; the caches stay valid.  Other replies wait until
        this one is read to its end, closed or dropped.

        Args:
            prompt: messages, or a text (one user message; with `raw` the bare prompt).
            sampling: how tokens are drawn.
            max_tokens: -1 for as many as the context holds.
            stop: the reply ends before the first of these strings.
            on_prefill: called with (tokens read, tokens to read) while the prompt is read.

        Raises:
            ContextOverflow: the prompt fills the context.
            OptionError: an empty prompt, or a value that has no meaning.
            DecodeError: llama.cpp failed.
        """
        reply = self._reply(prompt, sampling, max_tokens, stop, raw, on_prefill)
        this: list[weakref.ref[Generator[Chunk]]] = []
        stream = self._in_turn(reply, this)
        this.append(weakref.ref(stream))
        return stream

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        sampling: SamplingParams = LLAMA_CPP_DEFAULTS,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        raw: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Completion:
        """The whole reply at once; arguments and errors as in `stream`."""
        text: list[str] = []
        tokens: list[int] = []
        for chunk in self.stream(
            prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            raw=raw,
            on_prefill=on_prefill,
        ):
            text.append(chunk.text)
            tokens.extend(chunk.tokens)
        assert chunk.finish_reason is not None
        assert chunk.stats is not None
        return Completion("".join(text), tuple(tokens), chunk.finish_reason, chunk.stats)

    def cancel(self) -> None:
        """End the reply that is being generated, from any thread or a signal handler.

        The stream then ends with finish_reason "cancelled".  Without a reply under way, nothing
        happens.
        """
        if self._running:
            self.decoder.set_abort(True)

    def count_tokens(self, prompt: str | Sequence[Message], *, raw: bool = False) -> int:
        """Tokens of the rendered prompt."""
        self._require_open()
        return len(self._tokenize(self._render(prompt, raw=raw)))

    def render(self, prompt: str | Sequence[Message]) -> str:
        """The text that the chat template makes of messages, or of one user message."""
        self._require_open()
        return self._render(prompt, raw=False)

    def opens_thought(self, prompt: str | Sequence[Message]) -> bool:
        """Whether the rendered prompt leaves the model inside a thought."""
        return streams.opens_thought(self._render(prompt, raw=False))

    def draw_tree(self) -> str:
        """The last token tree with the accepted path marked; "" before the first step."""
        self._require_open()
        step = self.last_step
        if step is None:
            return ""
        return self.decoder.tree.draw(self._shown, step.path, step.nodes)

    def close(self) -> None:
        """Free models and caches.  Idempotent."""
        while not self._lock.acquire(timeout=0.05):
            self.cancel()
            stream = self._current() if self._current is not None else None
            if stream is not None and getgeneratorstate(stream) == GEN_SUSPENDED:  # half-read
                with suppress(ValueError):  # somebody did in this very moment
                    stream.close()
        try:
            self._closed = True
            self._loaded.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _in_turn(
        self, reply: Generator[Chunk], this: Sequence[weakref.ref[Generator[Chunk]]]
    ) -> Generator[Chunk]:
        """`reply`, when no other one is under way."""
        with self._lock:
            self._require_open()
            self.decoder.set_abort(False)  # a cancel may have come too late for the last reply
            self._current = this[0]
            self._running = True
            try:
                yield from reply
            finally:
                self._running = False
                self.decoder.set_abort(False)

    def _require_open(self) -> None:
        if self._closed:
            raise DyspecError("the engine is closed; load it again")

    def _reply(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams,
        max_tokens: int,
        stop: Sequence[str],
        raw: bool,
        on_prefill: Callable[[int, int], None] | None,
    ) -> Generator[Chunk]:
        started = time.perf_counter()
        params.check(self._model.num_vocab)
        if max_tokens < 1 and max_tokens != -1:
            raise OptionError(f"max_tokens is {max_tokens}; it must be at least 1, or -1")
        rendered = self._render(prompt, raw=raw)
        tokens = self._tokenize(rendered)
        if not rendered or not tokens:
            raise OptionError("the prompt is empty; say something")
        if len(tokens) >= self.num_ctx:
            raise ContextOverflow(len(tokens), self.num_ctx)
        room = self.num_ctx - len(tokens)
        limit = room if max_tokens == -1 else min(room, max_tokens)
        seed = fresh_seed() if params.seed is None else params.seed
        sampler = Sampler(self._model, params, seed, tokens)
        reply = _Reply(self, sampler, streams.StopStrings(stop), tokens, started)
        try:
            try:
                reply.prefill(on_prefill)
                for step in self.decoder.generate(tokens[-1], sampler, limit):
                    self.last_step = step
                    yield reply.take(step)
                    if reply.finish_reason is not None:
                        break
                    if self.decoder.target.context.abort_flag.is_set:  # no GPU pass looks at it
                        raise Cancelled("stopped")
            except Cancelled:
                reply.finish_reason = "cancelled"
            yield reply.last_chunk()
        finally:
            self.decoder.rewind(len(tokens) + len(reply.emitted))
            if not raw and not reply.was_cut:
                self._dialogue = rendered + reply.text, (*tokens, *reply.emitted)
            sampler.close()

    def _render(self, prompt: str | Sequence[Message], *, raw: bool) -> str:
        if raw:
            if not isinstance(prompt, str):
                raise OptionError("a raw prompt is one text, not messages")
            return prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self._template.render(messages)

    def _tokenize(self, rendered: str) -> tuple[int, ...]:
        """Token ids of a rendered prompt, with exactly one beginning-of-text token if wanted.

        A prompt that goes on where the last reply ended keeps that reply's own tokens, which need
        not be those that its text would be cut into: the cache then fits to the last token.
        """
        before, tokens = self._dialogue
        if before and rendered.startswith(before):
            return (*tokens, *self._encode(rendered[len(before) :], special=False))
        starts = self._template.starts_with_bos(rendered)
        return tuple(self._encode(rendered, special=not starts))

    def _encode(self, text: str, *, special: bool) -> list[int]:
        return self._model.tokenize(text, add_special=special, parse_special=True)

    def _special_text(self, token: int) -> str:
        return self._shown(token) if token >= 0 else ""

    def _shown(self, token: int) -> str:
        return self._model.piece(token, special=True).decode("utf-8", "replace")


class _Reply:
    """A reply under way: emitted tokens, the text they make, and why it ends."""

    def __init__(
        self,
        engine: Engine,
        sampler: Sampler,
        stops: streams.StopStrings,
        prompt: Sequence[int],
        started: float,
    ) -> None:
        self.emitted: list[int] = []
        self.finish_reason: str | None = None
        self.text = ""
        self.was_cut = False
        self._engine = engine
        self._sampler = sampler
        self._characters = streams.Utf8Stream()
        self._stops = stops
        self._prompt = prompt
        self._started = started
        self._cached = 0
        self._prefill_seconds = 0.0
        self._first_token_after = 0.0
        self._steps: list[Step] = []
        self._before = Counters.read(engine.decoder)

    def prefill(self, on_prefill: Callable[[int, int], None] | None) -> None:
        """Read the prompt with both models."""
        started = time.perf_counter()
        decoder = self._engine.decoder
        temperature = decoder.drafter.temperature if decoder.drafter else None
        ranking = Ranking(
            self._sampler.params,
            self._sampler.seed,
            residual=decoder.verifier.name == "residual",
            draft_temperature=temperature,
        )
        self._cached = decoder.begin(self._prompt, ranking, on_progress=on_prefill)
        self._prefill_seconds = time.perf_counter() - started
        self._before = Counters.read(decoder)

    def take(self, step: Step) -> Chunk:
        """The chunk of a step, cut where an end token or a stop string ends the text."""
        if not self._steps:
            self._first_token_after = time.perf_counter() - self._started
        model, first, shown = self._engine._model, len(self.emitted), ""
        for token in step.tokens:
            if token in self._engine.decoder.end_tokens:
                self.finish_reason = "stop"
                break
            self.emitted.append(token)
            text, met = self._stops.feed(self._characters.feed(model.piece(token)))
            shown += text
            if met:
                self.finish_reason, self.was_cut = "stop", True
                break
        self.text += shown
        emitted = tuple(self.emitted[first:])
        self._steps.append(step._replace(num_accepted=min(step.num_accepted, len(emitted))))
        return Chunk(shown, emitted)

    def last_chunk(self) -> Chunk:
        """What was held back, the reason of the end, and the figures."""
        rest = ""
        if not self.was_cut:
            text, met = self._stops.feed(self._characters.flush())
            rest = text if met else text + self._stops.flush()
            self.text += rest
        reason = self.finish_reason or "length"
        stats = summarise(
            decoder=self._engine.decoder,
            sampler=self._sampler,
            before=self._before,
            steps=self._steps,
            num_generated=len(self.emitted),
            prompt_tokens=len(self._prompt),
            cached_tokens=self._cached,
            time_to_first_token=self._first_token_after,
            prefill_seconds=self._prefill_seconds,
            num_ctx=self._engine.num_ctx,
            measured_plain=self._engine._loaded.plain_seconds,
        )
        return Chunk(rest, (), reason, stats)
