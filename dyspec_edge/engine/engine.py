"""The engine: a loaded target, and a draft where there is one, that one reply at a time uses."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from dyspec_edge.decode.loop import Step
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine.prompt import Prompt, PromptBuilder
from dyspec_edge.engine.reply import Chunk, Completion
from dyspec_edge.engine.session import Session
from dyspec_edge.engine.turn import Stream, Turn
from dyspec_edge.errors import DyspecError
from dyspec_edge.llama import Model
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.loading import Loaded, load
from dyspec_edge.text.template import Message
from dyspec_edge.text.tools import Tool, ToolUse

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
        self._model = loaded.models.target
        self._turn = Turn()
        # Between a look at the models and their end: neither may begin while the other goes on.
        self._models_lock = threading.Lock()
        self._loaded = loaded
        self._closed = False
        prompts = PromptBuilder(
            self._model,
            config.chat_template,
            config.template_kwargs,
            control_texts=loaded.models.reports[0].control_texts(),
        )
        self._session = Session(
            self.conversation,
            self._model,
            prompts,
            num_ctx=self.num_ctx,
            plain_seconds=loaded.plain_seconds,
        )
        self.notices: tuple[str, ...] = (*loaded.notices, *prompts.notes)

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
            engine = cls(config, loaded)
        except BaseException:
            loaded.close()
            raise
        # For an engine that nobody closes: it goes with its last reference, or when Python ends.
        weakref.finalize(engine, _free, loaded, engine._turn)
        return engine

    def prepare(
        self,
        prompt: str | Sequence[Message],
        *,
        raw: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: ToolUse | None = None,
    ) -> Prompt:
        """The prompt that `stream` would read: rendered, tokenized, and its tokens known.

        Args:
            prompt: messages, or a text (one user message; with `raw` the bare prompt).
            template_kwargs: variables for the chat template, over those of the configuration.
            tools: what the reply may call, made by `tools`; its `reader` tells calls from text.

        Raises:
            OptionError: messages that the chat template refuses, messages or tools with `raw`.
        """
        with self.open_model():
            return self._session.prepare(
                prompt, raw=raw, template_kwargs=template_kwargs, tools=tools
            )

    def tools(
        self,
        tools: Sequence[Tool],
        choice: str | Mapping[str, Any] = "auto",
        *,
        parallel: bool = True,
    ) -> ToolUse:
        """OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`, for `prepare`.

        Raises:
            OptionError: a value that has no meaning, a chat template that knows no tools, or a
                schema that cannot be kept where a call is required.
        """
        return self._session.tool_use(tools, choice, parallel=parallel)

    def stream(
        self,
        prompt: str | Sequence[Message] | Prompt,
        *,
        sampling: SamplingParams = LLAMA_CPP_DEFAULTS,
        max_tokens: int | None = -1,
        stop: str | Sequence[str] | None = (),
        raw: bool = False,
        json_schema: Mapping[str, Any] | bool | None = None,
        logprobs: int | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Stream[Chunk]:
        """Generate a reply piece by piece.

        A consumer may stop iterating at any time; the caches stay valid.  Other replies wait until
        this one is read to its end, closed or dropped.

        Args:
            prompt: messages, a text (one user message; with `raw` the bare prompt), or what
                `prepare` has made of them.
            sampling: how tokens are sampled.
            max_tokens: -1 or None for as many as fit into the context; 0 reads the prompt only.
            stop: the reply ends before this string, or the first of these.
            json_schema: the reply is a JSON document that is valid under it, as far as it goes;
                {"type": "object"} for any object.
            logprobs: chunks carry the target's log-probabilities of their tokens, and of so many
                most likely ones; None for none.
            on_prefill: called with (tokens read, tokens to read) while the prompt is read.

        Raises:
            ContextOverflow: the prompt fills the context.
            OptionError: an empty prompt, a value that has no meaning, or a keyword of the schema
                that a grammar cannot keep.
            DecodeError: llama.cpp failed.
            EngineBusy: this thread has left another stream half-read, so that waiting for it would
                never end.
            DyspecError: the engine is closed, or was closed before the reply had ended.
        """
        reply = self._session.reply(
            prompt,
            sampling,
            max_tokens=max_tokens,
            stop=stop,
            raw=raw,
            json_schema=json_schema,
            logprobs=logprobs,
            on_prefill=on_prefill,
        )
        return self._turn.stream(reply, self._begin_turn, self.cancel)

    def generate(
        self,
        prompt: str | Sequence[Message] | Prompt,
        *,
        sampling: SamplingParams = LLAMA_CPP_DEFAULTS,
        max_tokens: int | None = -1,
        stop: str | Sequence[str] | None = (),
        raw: bool = False,
        json_schema: Mapping[str, Any] | bool | None = None,
        logprobs: int | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Completion:
        """The whole reply at once; arguments and errors as in `stream`."""
        chunks = self.stream(
            prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            raw=raw,
            json_schema=json_schema,
            logprobs=logprobs,
            on_prefill=on_prefill,
        )
        return Completion.of(chunks)

    def cancel(self) -> None:
        """End the reply that is being generated, from any thread or a signal handler.

        The stream then ends with finish_reason "cancelled".  Without a reply under way, nothing
        happens.
        """
        self.conversation.abort()

    @property
    def last_step(self) -> Step | None:
        """The latest step of the reply under way or the last one, with its tree."""
        return self._session.last_step

    def render_tree(self) -> str:
        """The last token tree with the accepted path marked; "" before the first step."""

        def shown(token: int) -> str:
            return self._model.piece(token, special=True).decode("utf-8", "replace")

        with self.open_model():
            step = self.last_step
            return "" if step is None or step.tree is None else step.tree.render(shown)

    def close(self) -> None:
        """Free models and caches.  Idempotent.

        A reply that another thread is waiting for is cancelled; whoever goes on with one that was
        left half-read gets a DyspecError.  Called while a reply runs in this very thread, out of a
        callback, it takes effect when that reply has ended; in a forked process, not at all.
        """
        if self._turn.is_here and not self._turn.end(self.cancel, self._shut):
            self._turn.when_over(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _shut(self) -> None:
        with self._models_lock:
            self._closed = True
            self._loaded.close()

    def _begin_turn(self) -> None:
        self._require_open()
        self.conversation.clear_abort()  # of another reply, or of none

    @contextmanager
    def open_model(self) -> Iterator[Model]:
        """The target's vocabulary, in a block during which nobody closes it.

        Raises:
            DyspecError: the engine is closed.
        """
        self._turn.require_process()  # a lock that was held at the fork is never free again
        with self._models_lock:
            self._require_open()
            yield self._model

    def _require_open(self) -> None:
        if self._closed:
            raise DyspecError("the engine is closed; load it again")


def _free(loaded: Loaded, turn: Turn) -> None:
    """Free what an engine has loaded.

    Not while a thread that Python does not wait for still generates, nor in a forked process,
    which has none of llama.cpp's threads.
    """
    if turn.is_here and turn.is_free_or_mine:
        turn.end(lambda: None, loaded.close)
