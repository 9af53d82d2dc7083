"""Tools: how templates write calls, and how replies are told from calls however they are cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dyspec_edge.errors import OptionError
from dyspec_edge.text.template import ChatTemplate
from dyspec_edge.text.tool_calls import CallPart, CallReader, Parts
from dyspec_edge.text.tools import ToolForm, ToolUse
from tests.text.cuts import random_cuts

TEMPLATES = Path(__file__).parent / "templates"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "clock"}}
HERMES = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern {1}", "x": "\\"}"}}\n</tool_call>'
)
ARGUMENTS = '{"city": "Bern {1}", "x": "\\"}"}'


def template(name: str) -> ChatTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos="<s>", eos="</s>")


def use(name: str, choice: Any = "auto", *, parallel: bool = True) -> ToolUse:
    return ToolUse(template(name), [WEATHER, CLOCK], choice, parallel=parallel)


def read(reader: CallReader, text: str, seed: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls of a reply that comes in pieces; parts and calls agree."""
    parts: Parts = []
    for piece in random_cuts(text, seed):
        parts += reader.feed(piece)
    parts += reader.flush()
    calls: list[CallPart] = []
    for part in parts:
        if isinstance(part, str):
            assert part
        elif part.id:
            assert (part.index, part.arguments) == (len(calls), "")
            calls.append(part)
        else:
            assert part.arguments
            assert part.index == len(calls) - 1
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + part.arguments)
    assert calls == reader.calls
    assert len({call.id for call in calls}) == len(calls)
    shown = "".join(part for part in parts if isinstance(part, str))
    return shown, [(call.name, call.arguments) for call in calls]


# Forms


def test_forms_are_seen_from_what_templates_write() -> None:
    hermes = ToolForm("<tool_call>", "<tool_call>\n", "\n</tool_call>", "\n", "arguments")
    assert ToolForm.of(template("qwen2.5")) == hermes
    assert ToolForm.of(template("mistral-nemo")).is_list
    assert ToolForm.of(template("llama3-tools")) == ToolForm("", "", "", "; ", "parameters")


def test_templates_without_tools_or_in_an_unknown_form_say_so() -> None:
    with pytest.raises(OptionError, match="knows no tools; use a model"):
        use("smollm2")
    source = "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
    with pytest.raises(OptionError, match="form that is not known"):
        ToolUse(ChatTemplate(source), [CLOCK])


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([], "auto", "at least one"),
        ("weather", "auto", "at least one"),
        ([{"type": "web_search"}], "auto", "tool 1 is no function"),
        ([{"type": "function"}], "auto", "tool 1 has no name"),
        ([{"type": "function", "function": {"name": "a b"}}], "auto", "tool 1 has no name"),
        ([CLOCK, CLOCK], "auto", "two tools"),
        ([CLOCK], "always", "tool_choice is 'always'"),
        ([CLOCK], {"type": "function"}, "tool_choice is"),
        ([WEATHER], NAMED, "'clock', which is not among"),
        ([{"function": {"name": "f", "parameters": []}}], "auto", "parameters of tool 'f'"),
        (
            [{"function": {"name": "f", "parameters": {"properties": {"a": {"pattern": "b"}}}}}],
            "required",
            "tool 'f'.*`pattern`",
        ),
    ],
)
def test_what_has_no_meaning_is_named(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ToolUse(template("qwen2.5"), tools, choice)


def test_none_offers_nothing_and_reads_everything_as_text() -> None:
    found = use("qwen2.5", "none")
    assert (found.descriptions, found.grammar) == (None, None)
    assert read(found.reader(), HERMES) == (HERMES, [])


def test_only_a_required_call_has_a_grammar() -> None:
    assert use("qwen2.5").grammar is None
    required, named = use("qwen2.5", "required").grammar, use("qwen2.5", NAMED).grammar
    assert required is not None
    assert named is not None
    assert "weather" in required
    assert "weather" not in named
    assert "call)*" in required
    assert "call)*" not in named
    assert "call)*" not in (use("qwen2.5", "required", parallel=False).grammar or "")


def test_mistrals_prompt_ends_with_the_marker_where_a_call_is_required() -> None:
    assert use("mistral-nemo").opening == ""
    required = use("mistral-nemo", "required")
    assert required.opening == "[TOOL_CALLS]"
    text = '[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"city": "x"}}]'
    assert read(required.reader(), text) == ("", [("clock", "{}"), ("weather", '{"city": "x"}')])


# Replies


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_the_same_however_the_text_is_cut(seed: int) -> None:
    text = f'I look.\n{HERMES}\n<tool_call>\n{{"name":"clock","arguments":{{}}}}\n</tool_call>\n'
    calls = [("weather", ARGUMENTS), ("clock", "{}")]
    assert read(use("qwen2.5").reader(), text, seed) == ("I look.", calls)
    listed = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "x"}, "id": "012345678"}]'
    found = read(use("mistral-nemo").reader(), listed, seed)
    assert found == ("", [("weather", '{"city": "x"}')])
    bare = ' {"name": "weather", "parameters": {"city": "x"}}'
    assert read(use("llama3-tools").reader(), bare, seed) == ("", [("weather", '{"city": "x"}')])


TEXTS = [
    "A plain answer, with <b>, a <tool and a {brace}.  ",
    '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    "<tool_call> is the marker of a call",
    '<tool_call>\n{"name": 5}\n</tool_call>',
    '<tool_call>\n{"name" "weather"}\n</tool_call> and more',
    '<tool_call>\n{"na',
    "<tool_call>\n",
    "<tool_c",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_no_call_is_text_to_the_last_character(text: str, seed: int) -> None:
    assert read(use("qwen2.5").reader(), text, seed) == (text, [])


@pytest.mark.parametrize(
    "text", ['{"name": "unknown", "parameters": {}}', '{"answer": {"name": 1}} ', "{", "Hi {} "]
)
@pytest.mark.parametrize("seed", range(5))
def test_without_a_marker_other_json_is_text(text: str, seed: int) -> None:
    assert read(use("llama3-tools").reader(), text, seed) == (text, [])


def test_other_json_without_a_marker_is_not_held_back() -> None:
    assert use("llama3-tools").reader().feed('{"answer": [1, 2') == ['{"answer": [1, 2']


@pytest.mark.parametrize("seed", range(5))
def test_a_fence_is_one_more_marker_unless_something_else_is_in_it(seed: int) -> None:
    call = '```json\n{\n  "name": "weather",\n  "arguments": {\n"city": "x"}\n}\n```\n'
    found = read(use("qwen2.5").reader(), f"So:\n{call}{HERMES}", seed)
    assert found == ("So:", [("weather", '{\n"city": "x"}'), ("weather", ARGUMENTS)])
    for text in ('```json\n{"a": 1}\n```', "```python\nx\n```", '```json\n{"name": "x"}\n```\n.'):
        assert read(use("qwen2.5").reader(), text, seed) == (text, [])


def test_a_call_after_text_that_looked_like_one() -> None:
    text = f"The marker is <tool_call>. {HERMES}"
    shown, calls = read(use("qwen2.5").reader(), text)
    assert (shown, calls) == ("The marker is <tool_call>.", [("weather", ARGUMENTS)])


def test_the_name_comes_first_and_arguments_as_they_are_written() -> None:
    reader = use("qwen2.5").reader()
    assert reader.feed('<tool_call>\n{"name": "weat') == []
    (first,) = reader.feed('her", "arguments": {')[:1]
    assert isinstance(first, CallPart)
    assert (first.name, len(first.id), first.arguments) == ("weather", 9, "")
    assert reader.feed('"city": "Be') == [CallPart(0, arguments='"city": "Be')]
    assert reader.feed('rn"}}\n</tool_call>') == [CallPart(0, arguments='rn"}')]
    assert reader.flush() == []
    delta = first.as_delta()
    assert json.loads(json.dumps(delta)) == {
        "index": 0,
        "id": first.id,
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"arguments": {"city": "x"}, "name": "weather"}', '{"city": "x"}'),
        ('{"name": "weather", "arguments": "{\\"city\\": 1}"}', '{"city": 1}'),
        ('{"name": "weather"}', "{}"),
        ('{{"name": "weather", "arguments": {"city": "x"}}}', '{"city": "x"}'),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_calls_that_are_written_otherwise(written: str, arguments: str, seed: int) -> None:
    found = read(use("qwen2.5").reader(), f"<tool_call>{written}</tool_call>", seed)
    assert found == ("", [("weather", arguments)])


def test_a_call_that_is_cut_keeps_what_was_written() -> None:
    for size in range(len(HERMES)):
        shown, calls = read(use("qwen2.5").reader(), HERMES[:size])
        if size > HERMES.index('{"city'):
            assert shown == ""
            assert calls[0][0] == "weather"
            assert ARGUMENTS.startswith(calls[0][1])
        else:
            assert (shown, calls) == (HERMES[:size], [])


def test_one_call_only() -> None:
    for found in (use("qwen2.5", parallel=False), use("qwen2.5", NAMED)):
        reader = found.reader()
        call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
        assert read(reader, f"{call}\n{call}") == ("", [("clock", "{}")])
