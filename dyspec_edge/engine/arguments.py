"""What callers give: the forms that an argument may have, else an error that names it.

Everything that takes requests goes through here, so that no wrong type gets further down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dyspec_edge.errors import OptionError
from dyspec_edge.text.template import Message


def max_tokens(value: Any) -> int | None:
    """Tokens of a reply at most; None, as -1 and None say, for as many as fit."""
    if value is None or (value == -1 and not isinstance(value, bool)):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f"max_tokens is {value!r}; it must be a whole number from 0 on, or -1")
    return value


def logprobs(value: Any) -> int | None:
    """Most likely tokens that are named beside each token; None for no log-probabilities."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise OptionError(f"logprobs is {value!r}; it must be a whole number from 0 on, or None")
    return value


def stop(value: Any) -> tuple[str, ...]:
    """Stop strings: one text, several, or None."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    is_list = isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray))
    if is_list and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise OptionError(f"stop is {value!r}; it must be a text or a list of texts")


def template_kwargs(value: Any) -> dict[str, Any]:
    """Variables for a chat template by name; None for none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"template_kwargs is {_shown(value)}; it must be a mapping of names")
    return dict(value)


def messages(value: Any) -> list[Message]:
    """Chat messages: each a mapping with a role and a content, and perhaps calls of tools.

    A content may be a list of parts of the type "text", which are joined, and None beside
    "tool_calls"; a text alone is one user message.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, Mapping):
        raise OptionError("messages is one message; put it into a list")
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise OptionError(f"messages is {_shown(value)}; it must be a list of messages or a text")
    return [_message(number, message) for number, message in enumerate(value, start=1)]


def _message(number: int, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise OptionError(f"message {number} is {_shown(message)}; it must have role and content")
    if message.get("tool_calls"):
        calls = [_call(number, call) for call in message["tool_calls"]]
        message = {**message, "content": message.get("content") or "", "tool_calls": calls}
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes, bytearray)):
        return {**message, "content": "".join(_part(number, part) for part in content)}
    return message


def _call(number: int, call: Any) -> dict[str, Any]:
    """A call of an earlier turn, its arguments as the object that templates expect."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise OptionError(f"message {number} has a tool call without a function's name")
    given = function.get("arguments") or {}
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        found = given  # some model wrote it; the template shows it as it is
    return {**call, "function": {**function, "arguments": found}}


def _part(number: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    what = f"of the type {kind!r}" if isinstance(kind, str) else _shown(part)
    raise OptionError(f"message {number} has a part {what}; only parts of the type 'text' are read")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
