"""From messages to the token ids of a prompt: rendered by the chat template, then tokenized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dyspec_edge.engine import arguments
from dyspec_edge.engine.control_texts import ControlTexts, unmarked
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import Model
from dyspec_edge.text.template import ChatTemplate, Message
from dyspec_edge.text.thoughts import CLOSING_MARKER, opens_thought
from dyspec_edge.text.tools import Tool, ToolUse


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model reads it.

    Attributes:
        text: what the chat template made of the messages.
        tokens: its ids, with exactly one beginning-of-text token if the model wants one.
        opens_thought: the text leaves the model inside a thought, as some templates do.
        is_raw: the text was given as it is, without a chat template.
        tools: those that the reply may call.
        marked: the text, with marks in what messages quote of control tokens.
    """

    text: str
    tokens: tuple[int, ...]
    opens_thought: bool
    is_raw: bool = False
    tools: ToolUse | None = None
    marked: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A chat prompt with the reply to it: marked, and the tokens that were read and written."""

    marked: str = ""
    tokens: tuple[int, ...] = ()


class PromptBuilder:
    """Makes the prompts of one model, with its own chat template or one that the user gave.

    Args:
        control_texts: of the file's control tokens; in messages they are plain text.
        template: Jinja text or the name of a built-in template; None for the model's own.
        variables: for the template, with every prompt.
        goes_on: a last message of the assistant is not answered but gone on with.

    Raises:
        OptionError: the template cannot be parsed.
    """

    def __init__(
        self,
        model: Model,
        template: str | None,
        variables: Mapping[str, Any] | None = None,
        *,
        control_texts: Sequence[str] = (),
        goes_on: bool = False,
    ) -> None:
        self._model = model
        self._goes_on = goes_on
        self._variables = arguments.template_kwargs(variables)
        self._template = ChatTemplate.from_model(
            model.chat_template,
            template,
            bos=self._special_text(model.bos),
            eos=self._special_text(model.eos),
            has_token=lambda text: len(self._tokenize(text, special=False)) == 1,
        )
        self._controls = ControlTexts(model, control_texts, self._template.source)

    @property
    def notes(self) -> list[str]:
        """Lines about where the template comes from and what it does not heed, where it is news."""
        notes = [self._template.note] if self._template.note else []
        if unread := self._template.unread(self._variables):
            notes.append(f"the chat template does not look at {', '.join(unread)}")
        return notes

    def prepare(
        self,
        prompt: str | Sequence[Message],
        *,
        raw: bool,
        after: Dialogue,
        variables: Mapping[str, Any] | None = None,
        tools: ToolUse | None = None,
    ) -> Prompt:
        """The prompt of messages, or of one text.

        A prompt that goes on where the last reply ended keeps that reply's own tokens, which need
        not be those that its text would be cut into: the cache then fits to the last token.

        Args:
            prompt: messages, or a text: one user message, or with `raw` the bare prompt.
            after: the last prompt and the reply to it.
            variables: for the template, over those of every prompt.
            tools: what the reply may call.

        Raises:
            OptionError: messages or tools with `raw`, or messages that the template refuses.
        """
        if raw:
            if tools is not None:
                raise OptionError("a raw prompt has no place for tools; give messages")
            return self._raw(prompt)
        messages, begun = self._split(arguments.messages(prompt), tools)
        marked = self._render(messages, variables, tools)
        if begun:
            closes = opens_thought(unmarked(marked))
            marked += (f"\n{CLOSING_MARKER}\n\n" if closes else "") + begun
        if after.marked and marked.startswith(after.marked):
            rest = marked[len(after.marked) :]
            tokens = (*after.tokens, *self._controls.tokenize(rest, add_special=False))
        else:
            starts = self._template.starts_with_bos(marked)
            tokens = tuple(self._controls.tokenize(marked, add_special=not starts))
        text = unmarked(marked)
        return Prompt(text, tokens, opens_thought(text), tools=tools, marked=marked)

    def dialogue(self, prompt: Prompt, text: str, tokens: Sequence[int]) -> Dialogue:
        """A prompt with the text and the tokens of the whole reply to it."""
        reply = self._controls.marked(text, by_model=True)
        return Dialogue(prompt.marked + reply, (*prompt.tokens, *tokens))

    def tool_use(self, tools: Sequence[Tool], choice: Any, *, parallel: bool) -> ToolUse:
        """Tools for `prepare`; arguments and errors as of `ToolUse`."""
        return ToolUse(self._template, tools, choice, parallel=parallel)

    def _split(self, messages: list[Message], tools: ToolUse | None) -> tuple[list[Message], str]:
        last = messages[-1] if len(messages) > 1 else {}
        begun = last.get("content")
        is_begun = last.get("role") == "assistant" and not last.get("tool_calls")
        # A call that is required is the whole answer.
        is_call = tools is not None and tools.grammar is not None
        if not (self._goes_on and is_begun and isinstance(begun, str)) or is_call:
            return messages, ""
        return messages[:-1], self._controls.marked(begun, by_model=True)

    def _raw(self, prompt: str | Sequence[Message]) -> Prompt:
        """A bare text, in which the texts of control tokens stand for these tokens."""
        if not isinstance(prompt, str):
            raise OptionError("a raw prompt is one text, not messages")
        tokens = self._tokenize(prompt, special=not self._template.starts_with_bos(prompt))
        return Prompt(prompt, tuple(tokens), opens_thought(prompt), is_raw=True)

    def _render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None,
        tools: ToolUse | None,
    ) -> str:
        """What the template makes of the messages, with marks in what they quote."""
        given = {**self._variables, **arguments.template_kwargs(variables)}
        offered = None if tools is None else tools.descriptions
        quoting = [self._marked(message) for message in messages]
        marked = quoting, self._controls.marked(given), self._controls.marked(offered)
        text = self._made(*marked)
        if marked != (messages, given, offered):
            # A template that looks at such texts, or writes a value as Python does, sees the marks.
            with suppress(OptionError):
                if unmarked(text) != self._made(messages, given, offered):
                    contents = [
                        {**message, "content": its["content"]}
                        for message, its in zip(messages, quoting, strict=True)
                    ]
                    text = self._made(contents, given, offered)
        if tools is None:
            return text
        # A call that is required is the answer: a thought before it would not fit its grammar.
        closes = tools.grammar is not None and opens_thought(unmarked(text))
        return text + (f"\n{CLOSING_MARKER}\n\n" if closes else "") + tools.opening

    def _made(
        self,
        messages: Sequence[Message],
        given: Mapping[str, Any],
        offered: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        return self._template.render(messages, variables=given, tools=offered)

    def _marked(self, message: Message) -> dict[str, Any]:
        by_model = message.get("role") == "assistant"
        return dict(self._controls.marked(message, by_model=by_model))

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        return self._model.tokenize(text, add_special=special, parse_special=True)

    def _special_text(self, token: int) -> str:
        return (
            self._model.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
        )
