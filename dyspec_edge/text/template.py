"""Chat messages in, prompt text out: the model's own Jinja template, run as its makers run it.

Templates are programs from a downloaded file, so they run in Jinja's sandbox.  Where one refuses
a conversation (two user messages in a row, a system message), a documented rule merges messages
until it accepts; nothing is dropped.  Tokens and caches are unknown here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dyspec_edge.errors import OptionError
from dyspec_edge.text.built_in import BUILT_IN

Message = Mapping[str, Any]

OWN_VARIABLES = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"))
"""What a prompt itself gives to the template; no variable of the user can stand in its place."""

# What a template can raise: its own complaint, or a message of a shape that it did not expect.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class ChatTemplate:
    """A chat template and the special texts that it may write.

    Args:
        source: Jinja text.
        bos, eos: texts of the model's beginning-of-text and end-of-text tokens, "" for none.
        note: one line about where the template comes from, "" where that is no news.

    Raises:
        OptionError: the text is no Jinja template.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "", *, note: str = "") -> None:
        self.source = source
        self.note = note
        self._bos = bos
        self._eos = eos
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = (
                f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            )
            raise OptionError(
                f"the chat template cannot be parsed: {_one_line(error)}{line}; "
                "give another with --chat-template"
            ) from error

    @classmethod
    def from_model(
        cls,
        meta_template: str | None,
        override: str | None = None,
        *,
        bos: str = "",
        eos: str = "",
        has_token: Callable[[str], bool] = lambda _: False,
    ) -> ChatTemplate:
        """The template to use for a model: the user's, else the file's, else a built-in one.

        Args:
            meta_template: the template in the model file, None if it has none.
            override: Jinja text, or the name of a built-in template (text/built_in.py).
            bos: as for the class.
            eos: as for the class.
            has_token: whether the vocabulary has a token of this text; finds the built-in
                template for a file without one.

        Raises:
            OptionError: the template cannot be parsed, or is neither a name nor a template.
        """
        if override is not None:
            return cls(_named_or_text(override), bos, eos, note="chat template: given by the user")
        if meta_template:
            return cls(meta_template, bos, eos)
        names = [name for name, built in BUILT_IN.items() if has_token(built.token)]
        title, _, source = BUILT_IN[names[0] if names else "chatml"]
        note = f"the model file has no chat template; {title} is used (see --chat-template)"
        return cls(source, bos, eos, note=note)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation.

        The messages go to the template as they are.  If it raises, or leaves the system message
        out, they are merged step by step until it accepts: (1) neighbours of one role become one
        message, joined by a blank line; (2) system text moves to the front of the first user
        message, followed by a blank line.

        Args:
            messages: each with "role" and "content", both texts; other keys are passed on.
            add_generation_prompt: end with the beginning of the assistant's next message.
            tools: descriptions of functions, for templates that know them.
            variables: more variables for the template, as enable_thinking; none of
                `OWN_VARIABLES`.

        Raises:
            OptionError: no messages, a message without role or content, a variable that is not
                the user's to set, or a template that refuses even the merged messages; with
                the template's own words.
        """
        _validate(messages)
        variables = variables or {}
        if taken := OWN_VARIABLES & variables.keys():
            raise OptionError(
                f"{', '.join(sorted(taken))}: a chat template gets that from the prompt itself; "
                "leave it out of --chat-template-kwargs"
            )
        values = {"documents": None, **variables, "tools": tools}
        values["add_generation_prompt"] = add_generation_prompt
        rendered: str | None = None
        refusal: Exception | None = None
        for attempt in _attempts([dict(message) for message in messages]):
            try:
                text = self._render(attempt, values)
            except _TEMPLATE_ERRORS as error:
                refusal = refusal or error
                continue
            if _has_system_text(attempt, text):
                return text
            rendered = rendered or text
        if rendered is not None:
            return rendered
        assert refusal is not None  # every attempt either rendered or was refused
        raise OptionError(
            f"the chat template refuses these messages: {_one_line(refusal)}"
        ) from refusal

    def starts_with_bos(self, prompt: str) -> bool:
        """Whether a rendered prompt has the beginning-of-text token already."""
        return bool(self._bos) and prompt.startswith(self._bos)

    def unread(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that the template does not look at, as variables of a prompt."""
        read = meta.find_undeclared_variables(_environment().parse(self.source))
        return [name for name in names if name not in read]

    def _render(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        return self._template.render(
            messages=messages, bos_token=self._bos, eos_token=self._eos, **values
        )


class _GenerationTag(Extension):
    """{% generation %}: marks the assistant's words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # The settings and functions that Hugging Face's transformers gives to templates.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _named_or_text(override: str) -> str:
    if override in BUILT_IN:
        return BUILT_IN[override].source
    if "{" not in override:
        raise OptionError(
            f"chat template {override[:60]!r} is neither Jinja text nor one of "
            f"{', '.join(sorted(BUILT_IN))}"
        )
    return override


def _validate(messages: Sequence[Message]) -> None:
    if not messages:
        raise OptionError("there are no messages to answer; give at least one")
    for number, message in enumerate(messages, start=1):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise OptionError(
                    f"message {number} has no text as its {key!r}: {message.get(key)!r}"
                )


def _attempts(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    yield messages
    merged = _merge_neighbours(messages)
    if merged != messages:
        yield merged
    folded = _merge_neighbours(_fold_system(messages))
    if folded != merged:
        yield folded


def _merge_neighbours(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            text = f"{merged[-1]['content']}\n\n{message['content']}"
            merged[-1] = {**merged[-1], **message, "content": text}
        else:
            merged.append(message)
    return merged


def _fold_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    text = "\n\n".join(part for part in system if part)
    if not text and others:
        return others
    for number, message in enumerate(others):
        if message["role"] == "user":
            first = {**message, "content": f"{text}\n\n{message['content']}"}
            return [*others[:number], first, *others[number + 1 :]]
    return [{"role": "user", "content": text}, *others]


def _has_system_text(messages: Sequence[Message], text: str) -> bool:
    # Some templates pass over a system message without a word.
    return all(
        message["content"].strip() in text for message in messages if message["role"] == "system"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
