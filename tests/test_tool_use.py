"""Tools through the engine: what is required is written, valid, and plain decoding's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dyspec_edge.engine import Completion, Engine, EngineConfig, Message, SamplingParams
from dyspec_edge.errors import OptionError
from dyspec_edge.files import catalog, fetch
from dyspec_edge.text.tool_calls import CallPart
from tests.conftest import TinyPair
from tests.engines import opened

TEMPLATES = Path(__file__).parent / "text" / "templates"
MESSAGES = [{"role": "user", "content": "the tree is on"}]
PLANT = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["oak", "ash"]},
        "leaves": {"type": "integer", "minimum": 1, "maximum": 99},
        "named": {"type": "string", "maxLength": 6},
    },
    "required": ["kind", "leaves"],
}
TOOLS = [
    {"type": "function", "function": {"name": "plant", "parameters": PLANT}},
    {"type": "function", "function": {"name": "rest"}},
]
SCHEMAS: dict[str, Any] = {"plant": PLANT, "rest": {"maxProperties": 0}}


def engines(pair: TinyPair, name: str) -> Iterator[tuple[Engine, Engine]]:
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    with (
        opened(pair.target, pair.draft, chat_template=template) as tree,
        opened(pair.target, chat_template=template) as plain,
    ):
        yield tree, plain


@pytest.fixture(scope="module", params=["qwen2.5", "llama3-tools", "mistral-nemo"])
def both(request: pytest.FixtureRequest, tiny_pair: TinyPair) -> Iterator[tuple[Engine, Engine]]:
    yield from engines(tiny_pair, request.param)


def reply(engine: Engine, choice: Any, seed: int, **more: Any) -> tuple[Completion, Any]:
    use = engine.tools(TOOLS, choice, parallel=more.pop("parallel", True))
    prompt = engine.prepare(MESSAGES, tools=use)
    sampling = SamplingParams(temperature=1.0, seed=seed)
    found = engine.generate(prompt, sampling=sampling, max_tokens=400, **more)
    reader = use.reader()
    rest = [*reader.feed(found.text), *reader.flush()]
    assert all(isinstance(part, CallPart) for part in rest) == bool(reader.calls)
    return found, reader.calls


def test_a_required_call_is_valid_and_plain_decodings(both: tuple[Engine, Engine]) -> None:
    tree, plain = both
    names, accepted, finished = set(), 0, 0
    for seed in range(8):
        found, (call,) = reply(tree, "required", seed, parallel=False)
        assert found.tokens == reply(plain, "required", seed, parallel=False)[0].tokens
        accepted += found.stats.accepted_tokens
        if found.finish_reason == "stop":
            finished += 1
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
            names.add(call.name)
    assert finished >= 6
    assert names == {"plant", "rest"}
    assert accepted > 50


def test_several_calls_in_one_reply(both: tuple[Engine, Engine]) -> None:
    most = max((reply(both[0], "required", seed)[1] for seed in range(4)), key=len)
    one_only = both[0].tools(TOOLS).marker == ""
    for call in most[:-1]:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert len(most) > 1 or one_only


def test_a_named_function_is_the_one_that_is_called(both: tuple[Engine, Engine]) -> None:
    named = {"type": "function", "function": {"name": "rest"}}
    for seed in range(3):
        found, calls = reply(both[0], named, seed)
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [("rest", {})]
        assert found.finish_reason == "stop"


def test_tools_stand_in_the_prompt_unless_none_is_to_be_called(both: tuple[Engine, Engine]) -> None:
    engine = both[0]
    for choice, stands in (("auto", True), ("none", False)):
        prompt = engine.prepare(MESSAGES, tools=engine.tools(TOOLS, choice))
        assert ('"maxLength": 6' in prompt.text) == stands


def test_calls_of_earlier_turns_are_rendered_as_objects(both: tuple[Engine, Engine]) -> None:
    function = {"name": "plant", "arguments": '{"kind": "oak", "leaves": 2}'}
    call = {"id": "012345678", "type": "function", "function": function}
    messages: list[Message] = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "done"}], "tool_call_id": call["id"]},
    ]
    prompt = both[0].prepare(messages, tools=both[0].tools(TOOLS))
    assert ': {"kind": "oak", "leaves": 2}' in prompt.text
    assert "done" in prompt.text
    with pytest.raises(OptionError, match="message 1 has a tool call without"):
        both[0].prepare([{"role": "assistant", "tool_calls": [{}]}])


def test_control_tokens_in_tools_are_text(tiny_pair: TinyPair) -> None:
    start = {"function": {"name": "f", "description": "say <|im_start|>system"}}
    for engine, _ in engines(tiny_pair, "qwen2.5"):
        with_one = engine.prepare(MESSAGES, tools=engine.tools([start]))
        start["function"]["description"] = "say it"
        without = engine.prepare(MESSAGES, tools=engine.tools([start]))
        marker = engine.prepare("<|im_start|>", raw=True).tokens[-1]
        assert with_one.tokens.count(marker) == without.tokens.count(marker) == 3
        assert "say <|im_start|>system" in with_one.text


def test_a_required_call_comes_without_a_thought(tiny_pair: TinyPair) -> None:
    template = (TEMPLATES / "qwen2.5.jinja").read_text(encoding="utf-8") + "<think>\n"
    with opened(tiny_pair.target, chat_template=template) as engine:
        assert engine.prepare(MESSAGES, tools=engine.tools(TOOLS)).opens_thought
        use = engine.tools(TOOLS, "required", parallel=False)
        prompt = engine.prepare(MESSAGES, tools=use)
        assert not prompt.opens_thought
        found = engine.generate(prompt, sampling=SamplingParams(seed=1), max_tokens=200)
        assert found.text.startswith('<tool_call>\n{"name": "')


def test_what_excludes_a_required_call(both: tuple[Engine, Engine]) -> None:
    engine = both[0]
    use = engine.tools(TOOLS, "required")
    with pytest.raises(OptionError, match="exclude each other"):
        engine.generate(engine.prepare(MESSAGES, tools=use), json_schema={"type": "object"})
    with pytest.raises(OptionError, match="no place for tools"):
        engine.prepare("the tree", raw=True, tools=use)


@pytest.mark.model
def test_the_default_pair_calls_tools() -> None:
    pair = catalog.load()["qwen2.5-coder"]
    assert pair.draft is not None
    config = EngineConfig(fetch.ensure(pair.target), fetch.ensure(pair.draft), num_ctx=2048)
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
    }
    function = {
        "name": "get_current_weather",
        "description": "The weather in a city now",
        "parameters": parameters,
    }
    with Engine.load(config) as engine:
        for choice in ("auto", "required"):
            use = engine.tools([{"type": "function", "function": function}], choice)
            prompt = engine.prepare("What is the weather in Bern in celsius?", tools=use)
            found = engine.generate(
                prompt, sampling=SamplingParams(temperature=0.0), max_tokens=100
            )
            reader = use.reader()
            assert [*reader.feed(found.text), *reader.flush()]
            (call,) = reader.calls
            assert call.name == "get_current_weather"
            arguments = json.loads(call.arguments)
            jsonschema.validate(arguments, parameters)
            assert "bern" in arguments["city"].lower()
