"""One conversation with text around it: its last prompt and reply, and the reply under way.

    Engine    what is loaded, one request after the other
    Session   one text: prompts that go on where the last reply ended, replies
    Reply     one reply

An engine has one session.  Whoever serves several conversations over the same models gives each a
session of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from dyspec_edge.decode import saved
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine import arguments
from dyspec_edge.engine.prompt import Dialogue, Prompt, PromptBuilder
from dyspec_edge.engine.reply import Chunk, Reply
from dyspec_edge.engine.thought_tokens import ThoughtMarkers
from dyspec_edge.errors import ContextOverflow, OptionError
from dyspec_edge.llama import Model
from dyspec_edge.text.json_schema import to_gbnf
from dyspec_edge.text.template import Message
from dyspec_edge.text.tools import Tool, ToolUse


@dataclass(frozen=True, slots=True, eq=False)
class SavedSession:
    """What a session held between two replies.

    Attributes:
        text: the tokens and both models' states.
        dialogue: prompt and reply as text.
    """

    text: saved.SavedText
    dialogue: Dialogue

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the text."""
        return self.text.target.tokens

    @property
    def num_bytes(self) -> int:
        """Of the states."""
        return self.text.num_bytes

    def num_shared(self, tokens: Sequence[int]) -> int:
        """Tokens of a prompt that need not be read after `Session.restore`."""
        return self.text.num_shared(tokens)


class Session:
    """Prompts and replies of one conversation.

    Args:
        conversation: the tokens; closed by whoever made it.
        num_ctx: usable tokens.
        plain_seconds: what a token of plain decoding costs, where it was measured.

    Attributes:
        last_step: the latest step of the reply under way or the last one, with its tree.
    """

    def __init__(
        self,
        conversation: Conversation,
        model: Model,
        prompts: PromptBuilder,
        *,
        num_ctx: int,
        plain_seconds: float | None,
    ) -> None:
        self.last_step: Step | None = None
        self._conversation = conversation
        self._model = model
        self._prompts = prompts
        self._thoughts = ThoughtMarkers(model)
        self._num_ctx = num_ctx
        self._plain_seconds = plain_seconds
        self._dialogue = Dialogue()

    def prepare(
        self,
        prompt: str | Sequence[Message],
        *,
        raw: bool,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: ToolUse | None = None,
    ) -> Prompt:
        """As `PromptBuilder.prepare`, after what was said last in this session."""
        return self._prompts.prepare(
            prompt, raw=raw, after=self._dialogue, variables=template_kwargs, tools=tools
        )

    def tool_use(self, tools: Sequence[Tool], choice: Any, *, parallel: bool) -> ToolUse:
        """Tools for `prepare`; arguments and errors as of `ToolUse`."""
        return self._prompts.tool_use(tools, choice, parallel=parallel)

    def reply(
        self,
        prompt: str | Sequence[Message] | Prompt,
        params: SamplingParams,
        *,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        raw: bool,
        json_schema: Mapping[str, Any] | bool | None = None,
        logprobs: int | None = None,
        on_prefill: Callable[[int, int], None] | None,
    ) -> Generator[Chunk]:
        """The chunks of a reply; arguments and errors as of `Engine.stream`.

        One that is closed before its end leaves the caches valid.
        """
        started = time.perf_counter()
        params.check(self._model.num_vocab)
        params = params.without_end(self._model.end_tokens.tolist())
        num_logprobs = arguments.logprobs(logprobs)
        most, stops = arguments.max_tokens(max_tokens), arguments.stop(stop)
        if not isinstance(prompt, Prompt):
            prompt = self.prepare(prompt, raw=raw)
        params = held_to(params, json_schema, prompt)
        room = self._room(prompt)
        limit = room if most is None else min(room, most)
        reply = Reply(
            self._conversation,
            self._model,
            self._thoughts.reply(prompt.tools.marker if prompt.tools else ""),
            params.within(self._num_ctx),
            prompt.tokens,
            stops,
            started=started,
            num_ctx=self._num_ctx,
            plain_seconds=self._plain_seconds,
        )
        try:
            with closing(reply.chunks(limit, num_logprobs, on_prefill)) as chunks:
                for chunk in chunks:
                    self.last_step = reply.last_step or self.last_step
                    yield chunk
        finally:
            reply.close()
            if not prompt.is_raw and reply.is_whole:
                self._dialogue = self._prompts.dialogue(prompt, reply.text, reply.tokens)

    @property
    def tokens(self) -> Sequence[int]:
        """Of the text in the target's cache."""
        return self._conversation.target.tokens

    @property
    def num_bytes(self) -> int:
        """What `save` will take."""
        return saved.num_bytes(self._conversation)

    def save(self) -> SavedSession | None:
        """A copy of what the session holds, between two replies; None if that is not possible."""
        text = saved.save(self._conversation)
        return None if text is None else SavedSession(text, self._dialogue)

    def restore(self, session: SavedSession) -> bool:
        """Go on with what was saved.

        Returns:
            False if there is no room in the caches; the session is then empty.
        """
        is_done = saved.restore(self._conversation, session.text)
        self._dialogue = session.dialogue if is_done else Dialogue()
        return is_done

    def _room(self, prompt: Prompt) -> int:
        """Tokens that the context has left for a reply."""
        size = len(prompt.tokens)
        if not prompt.text or not size:
            raise OptionError("the prompt is empty; say something")
        if size >= self._num_ctx:
            raise ContextOverflow(size, self._num_ctx)
        return self._num_ctx - size


def held_to(
    params: SamplingParams, json_schema: Mapping[str, Any] | bool | None, prompt: Prompt
) -> SamplingParams:
    """The parameters with the grammar that the reply has to fit: the one of three that is given.

    Raises:
        OptionError: more than one is, or a schema that a grammar cannot keep.
    """
    schema = None if json_schema is None else to_gbnf(json_schema)
    calls = None if prompt.tools is None else prompt.tools.grammar
    found = [text for text in (params.grammar, schema, calls) if text is not None]
    if len(found) > 1:
        raise OptionError(
            "a grammar, json_schema and a required call exclude each other; give one of them"
        )
    return replace(params, grammar=found[0] if found else None)
