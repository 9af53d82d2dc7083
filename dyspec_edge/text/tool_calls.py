"""Calls of tools in a reply: its text in, parts of calls out, as soon as they are certain.

    text     I look. <tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>
    parts    "I look.", call 0 of "weather", arguments '{"city', '": "Bern"}'

What looks like a call and is none (broken JSON, a function that nobody offered) is text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from dyspec_edge.text.stop_strings import partial_match

_HEAD = re.compile(
    r'\{+\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_BEGINNING = '{"name":'

_SPACES = " \t\r\n"
_SEPARATORS = _SPACES + ",;[]"

ID_LENGTH = 9
"""Characters of a call's id: Mistral's templates insist on 9, others do not mind."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """What a piece of a reply adds to a call.

    Attributes:
        index: of the call in the reply, from 0 on.
        id, name: on the first part of a call, which has no arguments; else "".
        arguments: a piece of the arguments' JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""

    def as_delta(self) -> dict[str, Any]:
        """The element of `delta.tool_calls` in OpenAI's stream."""
        if not self.id:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        return {"index": self.index, **self.as_call()}

    def as_call(self) -> dict[str, Any]:
        """The element of `message.tool_calls` in OpenAI's answer."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


Parts = list[str | CallPart]


class CallReader:
    """Tells the calls of one reply from its text; thoughts are not for it.

    Args:
        marker: what stands before calls; "" where a reply that begins with a brace is a call.
        closing: what stands behind each call, "" for nothing.
        names: of the functions that may be called.
        others: markers that models write in its place, with what closes each; other things are
            written behind them, too, so that only an object that begins with a name is a call.
        inside: the prompt ends with the marker.
        most: calls that are taken, None for all.

    Attributes:
        calls: those that have begun, each with what is there of its arguments.
    """

    def __init__(
        self,
        marker: str,
        closing: str,
        names: Collection[str],
        *,
        others: Mapping[str, str] = MappingProxyType({}),
        inside: bool = False,
        most: int | None = None,
    ) -> None:
        self.calls: list[CallPart] = []
        self._closings = {marker: closing, **others} if names else {}
        self._own = self._marker = marker
        self._names = frozenset(names)
        self._most = most
        at_start = bool(names) and (inside or not marker)
        self._state: Literal["text", "between", "call"] = "between" if at_start else "text"
        self._held = ""  # what is not certain; in a call all of it
        self._spaces = ""  # white space of the text before, which is dropped if a call follows
        self._before = ""  # what stood before a call, if that turns out to be text
        self._call = _Call()

    @property
    def _closing(self) -> str:
        return self._closings.get(self._marker, "")

    @property
    def is_full(self) -> bool:
        """Whether no other call is taken."""
        return len(self.calls) == self._most

    def feed(self, text: str) -> Parts:
        """What is certain now, in order: text, and parts of calls."""
        parts: Parts = []
        self._held += text
        new = text
        while True:
            if self._state == "call":
                if not self._read_call(new, parts):
                    return parts
            elif not (self._read_text if self._state == "text" else self._look)(parts):
                return parts
            new = self._held

    def flush(self) -> Parts:
        """What is still held when the reply has ended; what has not become a call is text."""
        rest, state = self._held, self._state
        self._held, self._state = "", "text"
        if state == "call" and (self._call.is_known or self.calls):
            return []  # the beginning of another call is no text either
        if state == "between" and self.calls:
            left = rest.strip(_SEPARATORS)
            rest = "" if self._closing.startswith(left) else left
        rest = self._before + rest
        rest = rest if self.calls and not rest.strip() else self._spaces + rest
        self._before = self._spaces = ""
        return [rest] if rest else []

    def _read_text(self, parts: Parts) -> bool:
        """Release text up to a marker; whether there is one."""
        markers = [marker for marker in self._closings if marker]
        found = [(at, marker) for marker in markers if (at := self._held.find(marker)) >= 0]
        at, marker = min(found, default=(-1, ""))
        sure = at if found else len(self._held) - partial_match(self._held, markers)
        text = self._spaces + self._held[:sure]
        shown = text.rstrip() if self._names else text
        self._spaces = text[len(shown) :]
        if shown:
            parts.append(shown)
        self._held = self._held[sure + len(marker) :]
        if not found:
            return False
        self._state, self._before, self._marker = "between", marker, marker
        return True

    def _look(self, parts: Parts) -> bool:
        """Find the next call behind a marker or another call; whether something was found."""
        rest = self._held.lstrip(_SEPARATORS if self._marker or self.calls else _SPACES)
        if rest.startswith("{"):
            self._before += self._held[: len(self._held) - len(rest)]
            self._held, self._state, self._call = rest, "call", _Call()
            return True
        if self._closing and rest.startswith(self._closing):
            self._held, self._state, self._before = rest[len(self._closing) :], "text", ""
            return True
        if self._closing.startswith(rest) or not rest:
            return False
        self._as_text(parts)
        return True

    def _read_call(self, new: str, parts: Parts) -> bool:
        """Read on in a call; whether it has ended, or turned out to be text."""
        call = self._call
        is_doubtful = not self._marker or self._marker != self._own
        arguments = call.feed(new)
        if call.name is not None and not call.is_known:
            if call.name not in self._names:
                self._as_text(parts)
                return True
            call.is_known = True
            self._spaces = self._before = ""
            if not self.is_full:
                self.calls.append(CallPart(len(self.calls), _fresh_id(), call.name))
                parts.append(self.calls[-1])
                call.is_taken = True
        elif call.is_broken or (is_doubtful and not call.may_be_one):
            self._as_text(parts)
            return True
        if call.is_taken and arguments:
            last = self.calls[-1]
            self.calls[-1] = replace(last, arguments=last.arguments + arguments)
            parts.append(CallPart(last.index, arguments=arguments))
        if not call.is_over:
            return False
        self._held, self._state = self._held[call.size :], "between"
        return True

    def _as_text(self, parts: Parts) -> None:
        """What was taken for a call is text; a marker is not looked for in its own."""
        text = self._spaces + self._before
        if not self._marker:
            text, self._held = text + self._held, ""
        if text:
            parts.append(text)
        self._spaces = self._before = ""
        self._state = "text"


class _Call:
    """A JSON object as it grows, which may be a call."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.size = 0
        self.is_known = self.is_taken = self.is_broken = False
        self._text = ""
        self._object = _Value()
        self._arguments: _Value | None = None

    @property
    def is_over(self) -> bool:
        return self._object.is_over

    @property
    def may_be_one(self) -> bool:
        compact = "".join(self._text[:64].split())
        return compact.startswith(_BEGINNING) or _BEGINNING.startswith(compact)

    def feed(self, text: str) -> str:
        """Read on; returns what this adds to the arguments."""
        own = self._object.take(text)
        self.size += len(own)
        if self._arguments is None:
            self._text += own
            head = _HEAD.match(self._text)
            if head is None:
                return self._whole() if self.is_over else ""
            self.name = _loaded(head[1])
            self.is_broken = self.name is None
            self._arguments, own = _Value(), self._text[head.end() :]
        return self._arguments.take(own)

    def _whole(self) -> str:
        """Name and arguments of a call that has ended, and whose keys come in another order."""
        call = _loaded(self._text)
        name = call.get("name") if isinstance(call, dict) else None
        self.is_broken = not isinstance(name, str)
        if self.is_broken:
            return ""
        self.name = name
        found = call.get("arguments", call.get("parameters", {}))
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


class _Value:
    """Finds the end of a JSON value that begins with a bracket."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._in_string = self._escaped = False

    def take(self, text: str) -> str:
        """What of a text belongs to the value."""
        for i, c in enumerate(text):
            if self.is_over:
                return text[:i]
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = c == "\\", c != '"'
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                self.is_over = self._depth == 0
        return text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fresh_id() -> str:
    return secrets.token_hex(ID_LENGTH)[:ID_LENGTH]
