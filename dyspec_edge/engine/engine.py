"""The engine: a loaded target, and a draft where there is one, that one reply at a time uses."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from inspect import GEN_SUSPENDED, getgeneratorstate
from types import TracebackType

from dyspec_edge.decode.loop import Step
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine.prompt import Prompt, PromptBuilder
from dyspec_edge.engine.reply import Chunk, Completion
from dyspec_edge.engine.session import Session
from dyspec_edge.errors import DyspecError
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.loading import Loaded, load
from dyspec_edge.text.template import Message

LLAMA_CPP_DEFAULTS = SamplingParams()


class Engine:
    """A loaded target, and a draft where there is one.

    with Engine.load(EngineConfig(Path("target.gguf"), Path("draft.gguf"))) as engine:
        for chunk in engine.stream([{"role": "user", "content": "Hello"}]):
            print(chunk.text, end="")

    Methods may be called from any thread; replies are generated one at a time.

    Attributes:
        num_ctx: usable tokens.
        conversation: the tokens, their caches, and what proposes and accepts them.
        notices: lines that say what was decided at load, and why.
    """

    def __init__(self, config: EngineConfig, loaded: Loaded) -> None:
        self.config = config
        self.num_ctx = loaded.models.num_ctx
        self.conversation = loaded.conversation()
        self._loaded = loaded
        self._model = loaded.models.target
        self._lock = threading.Lock()
        self._running = False
        self._closed = False
        self._current: weakref.ref[Generator[Chunk]] | None = None
        prompts = PromptBuilder(self._model, config.chat_template)
        self._session = Session(
            self.conversation,
            self._model,
            prompts,
            num_ctx=self.num_ctx,
            plain_seconds=loaded.plain_seconds,
        )
        notes = [prompts.note] if prompts.note else []
        self.notices: tuple[str, ...] = (*loaded.notices, *notes)

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

    def prepare(self, prompt: str | Sequence[Message], *, raw: bool = False) -> Prompt:
        """The prompt that `stream` would read: rendered, tokenized, and its tokens known.

        Args:
            prompt: messages, or a text (one user message; with `raw` the bare prompt).

        Raises:
            OptionError: messages that the chat template refuses, or messages with `raw`.
        """
        self._require_open()
        return self._session.prepare(prompt, raw=raw)

    def stream(
        self,
        prompt: str | Sequence[Message] | Prompt,
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
            prompt: messages, a text (one user message; with `raw` the bare prompt), or what
                `prepare` has made of them.
            sampling: how tokens are sampled.
            max_tokens: -1 for as many as fit into the context.
            stop: the reply ends before the first of these strings.
            on_prefill: called with (tokens read, tokens to read) while the prompt is read.

        Raises:
            ContextOverflow: the prompt fills the context.
            OptionError: an empty prompt, or a value that has no meaning.
            DecodeError: llama.cpp failed.
        """
        reply = self._session.reply(
            prompt,
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            raw=raw,
            on_prefill=on_prefill,
        )
        # The stream learns its own address, weakly: `close` must find one that was left half-read.
        this: list[weakref.ref[Generator[Chunk]]] = []
        stream = self._in_turn(reply, this)
        this.append(weakref.ref(stream))
        return stream

    def generate(
        self,
        prompt: str | Sequence[Message] | Prompt,
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
            self.conversation.abort()

    @property
    def last_step(self) -> Step | None:
        """The latest step of the reply under way or the last one, with its tree."""
        return self._session.last_step

    def render_tree(self) -> str:
        """The last token tree with the accepted path marked; "" before the first step."""
        self._require_open()
        step = self.last_step
        if step is None or step.tree is None:
            return ""

        def shown(token: int) -> str:
            return self._model.piece(token, special=True).decode("utf-8", "replace")

        return step.tree.render(shown)

    def close(self) -> None:
        """Free models and caches.  Idempotent."""
        while not self._lock.acquire(timeout=0.05):
            self.cancel()
            stream = self._current() if self._current is not None else None
            if stream is not None and getgeneratorstate(stream) == GEN_SUSPENDED:  # half-read
                with suppress(ValueError):  # another thread has just gone on reading it
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
        """The chunks of `reply`, after the replies before it have ended."""
        with self._lock:
            self._require_open()
            self.conversation.clear_abort()  # a cancel may have come too late for the last reply
            self._current = this[0]
            self._running = True
            try:
                yield from reply
            finally:
                self._running = False
                self.conversation.clear_abort()

    def _require_open(self) -> None:
        if self._closed:
            raise DyspecError("the engine is closed; load it again")
