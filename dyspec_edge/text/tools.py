r"""Tools that a chat may call: how they stand in a prompt, what holds a reply to them, its reader.

    use = ToolUse(template, tools, "auto", parallel=True)      checked; OptionError names the fault
    template.render(messages, tools=use.descriptions) + use.opening            the prompt
    use.grammar                                                GBNF where a call is required
    reader = use.reader()
    reader.feed("...")  ->  ["text", CallPart(0, id, name), CallPart(0, arguments='{"a"'), ...]
    reader.flush(); reader.calls                               "tool_calls" if there are any

With an engine: `use = engine.tools(...)`, `prompt = engine.prepare(messages, tools=use)`, and
`engine.stream(prompt)` keeps to the grammar by itself.  Thoughts are told from the answer before
the reader, which takes the answer alone.

How a model writes calls is seen from how its template writes those of an earlier turn:

    <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>     Hermes, Qwen
    [TOOL_CALLS][{"name": ..., "arguments": {...}}]                  Mistral
    {"name": ..., "parameters": {...}}                               Llama 3
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dyspec_edge.errors import OptionError
from dyspec_edge.text import json_schema
from dyspec_edge.text.json_text import gbnf, quoted
from dyspec_edge.text.template import ChatTemplate, Message
from dyspec_edge.text.tool_calls import CallReader

Tool = Mapping[str, Any]

HERMES, MISTRAL = "<tool_call>", "[TOOL_CALLS]"
FENCE = {"```json\n": "```"}
"""Qwen2.5-Coder writes its calls as Markdown, whatever its template says."""

_CALL = {"name": "probe_function", "arguments": {"probe_key": "probe_value"}}
_OFFER = {
    "name": "probe_function",
    "description": "a probe",
    "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
}
_FOUND = re.compile(
    r"(?:(?P<before><tool_call>\s*|\[TOOL_CALLS\]\s*\[)|\s)"
    r'\{"name": "probe_function", "(?P<key>arguments|parameters)": \{"probe_key": "probe_value"\}'
    r"[^{}]*\}(?P<after>\s*</tool_call>)?"
)


class ToolForm(NamedTuple):
    """How a model writes calls.

    Attributes:
        marker: what tells that calls follow; "" where the reply begins with one.
        before, after: what is around each call.
        between: what is between two.
        key: of the arguments.
    """

    marker: str
    before: str
    after: str
    between: str
    key: str

    @property
    def is_list(self) -> bool:
        """The calls stand in a list behind a marker that is a control token.

        No grammar can ask for that token: where a call is required, the prompt ends with it.
        """
        return self.marker == MISTRAL

    @classmethod
    def of(cls, template: ChatTemplate) -> ToolForm:
        """The form of a template.

        Raises:
            OptionError: it knows no tools, or writes calls in a form that is not known here.
        """
        if template.unread(("tools",)):
            raise OptionError(
                "the model's chat template knows no tools; use a model that was trained for them "
                "(Qwen2.5, Hermes, Llama 3.1, Mistral), or give its template with --chat-template"
            )
        found = _FOUND.search(_probed(template))
        before, after, key = found.group("before", "after", "key") if found else ("", "", "")
        if (before or "").startswith(MISTRAL):
            return cls(MISTRAL, "", "", ", ", key)
        if before and after:
            return cls(HERMES, before, after, "\n", key)
        if before or key != "parameters":
            raise OptionError(
                "the model's chat template writes calls of tools in a form that is not known: "
                "neither <tool_call> with JSON, nor [TOOL_CALLS] with a list, nor bare JSON"
            )
        return cls("", "", "", "; ", key)


class ToolUse:
    """The tools of one request.

    Args:
        template: of the model.
        tools: as OpenAI's `tools`.
        choice: "auto", "none", "required", or {"type": "function", "function": {"name": ...}}.
        parallel: a reply may hold several calls.

    Attributes:
        descriptions: what the template is given; None under "none".
        opening: what stands behind the prompt.
        marker: the text of a token that is shown in a reply, even if it is a control token.
        grammar: GBNF that holds the reply to calls with valid arguments, under "required" and a
            named function; else None.

    Raises:
        OptionError: a value that has no meaning, a template without tools, or a schema that a
            grammar cannot keep where a call is required.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tools: Sequence[Tool],
        choice: str | Mapping[str, Any] = "auto",
        *,
        parallel: bool = True,
    ) -> None:
        functions = _functions(tools)
        chosen = _chosen(choice, functions)
        self._form = ToolForm.of(template)
        self._functions = {name: functions[name] for name in chosen}
        is_single = isinstance(choice, Mapping) or not parallel or not self._form.marker
        self._most = 1 if is_single else None
        self._is_required = choice not in ("auto", "none")
        self.descriptions = [dict(tool) for tool in tools] if chosen else None
        self.marker = self._form.marker
        self.opening = self.marker if self._is_required and self._form.is_list else ""
        self.grammar = self._gbnf() if self._is_required else None

    def reader(self) -> CallReader:
        """What tells the calls of one reply from its text."""
        return CallReader(
            self.marker,
            self._form.after.strip(),
            self._functions,
            others=FENCE if self.marker == HERMES else {},
            inside=bool(self.opening),
            most=self._most,
        )

    def _gbnf(self) -> str:
        form, rules, calls = self._form, dict[str, str](), list[str]()
        for number, (name, parameters) in enumerate(self._functions.items()):
            try:
                rules |= json_schema.rules(parameters, f"arguments{number}")
            except OptionError as error:
                raise OptionError(f"the parameters of tool {name!r}: {error}") from None
            head = f'{{"name": {json.dumps(name)}, "{form.key}": '
            calls.append(f'{quoted(head)} arguments{number} "}}"')
        call = f"{quoted(form.before)} ({' | '.join(calls)}) {quoted(form.after)}"
        more = "" if self._most == 1 else f" ({quoted(form.between)} call)*"
        root = f'"[" call{more} "]"' if form.is_list else f"call{more}"
        return gbnf({"root": root, "call": call, **rules})


def _functions(tools: Any) -> dict[str, Any]:
    """The schema of each function's arguments, by name."""
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)) or not tools:
        raise OptionError("tools must be a list of at least one function")
    found = dict[str, Any]()
    for number, tool in enumerate(tools, start=1):
        if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
            raise OptionError(
                f"tool {number} is no function; only tools of that type are supported"
            )
        given = tool.get("function")
        function: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        name = function.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,128}", name, re.ASCII):
            raise OptionError(
                f"tool {number} has no name of 1 to 128 letters, digits, dots, dashes or _"
            )
        if name in found:
            raise OptionError(f"two tools have the name {name!r}; give each its own")
        found[name] = _arguments_schema(name, function.get("parameters"))
    return found


def _arguments_schema(name: str, parameters: Any) -> dict[str, Any]:
    """An object; where the schema does not say what else may be in it, nothing is."""
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise OptionError(f"the parameters of tool {name!r} must be a JSON schema of an object")
    closed = {"additionalProperties": False} if "properties" in parameters else {}
    return {"type": "object", **closed, **parameters}


def _chosen(choice: Any, functions: Mapping[str, Any]) -> list[str]:
    """The functions that a choice allows."""
    if choice == "none":
        return []
    if choice in ("auto", "required"):
        return list(functions)
    name: Any = None
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise OptionError(
            f'tool_choice is {choice!r:.80}; it must be "auto", "none", "required" or '
            '{"type": "function", "function": {"name": ...}}'
        )
    if name not in functions:
        raise OptionError(f"tool_choice names {name!r}, which is not among the tools")
    return [name]


def _probed(template: ChatTemplate) -> str:
    """What the template makes of a call."""
    call = {"id": "probe0001", "type": "function", "function": _CALL}
    messages: list[Message] = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tool = {"type": "function", "function": _OFFER}
    try:
        return template.render(messages, tools=[tool], add_generation_prompt=False)
    except OptionError:
        return ""
