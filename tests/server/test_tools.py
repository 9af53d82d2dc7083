"""Calls of tools in every protocol, with the official clients; a grammar makes tiny models call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dyspec_edge.server.run import ServerConfig
from tests.conftest import TinyPair
from tests.engines import tiny_config
from tests.server.conftest import TinyServer, running

TEMPLATE = Path(__file__).parents[1] / "text" / "templates" / "qwen2.5.jinja"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
}
FUNCTION: Any = {"name": "weather", "description": "of today", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
MESSAGES: Any = [{"role": "user", "content": "the cat"}]
CITIES = ("Bern", "Rome")


@pytest.fixture(scope="module")
def server(tiny_pair: TinyPair) -> Iterator[TinyServer]:
    config = tiny_config(
        *tiny_pair, num_ctx=2048, num_conversations=2, chat_template=TEMPLATE.read_text("utf-8")
    )
    with running(config, ServerConfig("tiny")) as found:
        yield found


@pytest.fixture
def client(server: TinyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(server: TinyServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.address, api_key="none", max_retries=0) as made:
        yield made


def test_a_required_call_and_the_turn_after_it(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    found = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice=named, seed=1, max_tokens=300
    )
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in CITIES
    turns = [
        *MESSAGES,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sun"},
    ]
    again = client.chat.completions.create(
        model="tiny", messages=turns, tools=TOOLS, seed=1, max_tokens=5
    )
    assert again.usage is not None
    assert found.usage is not None
    assert again.usage.prompt_tokens > found.usage.prompt_tokens


def test_a_call_is_streamed_its_name_first(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=1,
        parallel_tool_calls=False, max_tokens=300,
    )  # fmt: skip
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=1,
        parallel_tool_calls=False, max_tokens=300, stream=True,
    )  # fmt: skip
    deltas, reasons = [], []
    for chunk in stream:
        deltas += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert reasons[-1] == "tool_calls"
    first, *others = [delta.function for delta in deltas]
    assert first is not None
    assert first.name == "weather"
    arguments = "".join(part.arguments or "" for part in others if part)
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert arguments == call.function.arguments


def test_tools_are_refused_by_name(server: TinyServer) -> None:
    for tools, choice, word in (
        ([{"type": "web"}], "auto", "tool 1"),
        (TOOLS, {"type": "function", "function": {"name": "clock"}}, "clock"),
        (TOOLS, "sometimes", "sometimes"),
    ):
        body = {"messages": MESSAGES, "tools": tools, "tool_choice": choice}
        answer = server.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert word in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "choice",
    [7, 0, True, [], ["weather"], {}, "", "weather", {"type": "function"}, {"name": "weather"},
     {"type": "function", "function": 7}, {"type": "function", "function": {"name": [1]}},
     {"type": "function", "function": {"name": "clock"}}, {"type": "tool"},
     {"type": "tool", "name": 7}, {"type": "tool", "name": "clock"}],
    ids=repr,
)  # fmt: skip
def test_a_choice_that_means_nothing_is_named(server: TinyServer, choice: Any) -> None:
    for path, body in (
        ("chat/completions", {"messages": MESSAGES, "tools": TOOLS}),
        ("responses", {"input": "the cat", "tools": [{"type": "function", **FUNCTION}]}),
        ("messages", {"messages": MESSAGES, "max_tokens": 2,
                      "tools": [{"name": "weather", "input_schema": SCHEMA}]}),
    ):  # fmt: skip
        answer = server.post(f"/v1/{path}", {**body, "tool_choice": choice})
        assert answer.status_code == 400, path
        assert answer.json()["error"]["message"].startswith("tool_choice"), path


def test_a_call_is_required_and_there_is_nothing_to_call(server: TinyServer) -> None:
    web: Any = {"type": "web_search"}
    for path, body in (
        ("chat/completions", {"messages": MESSAGES, "tool_choice": "required"}),
        ("responses", {"input": "the cat", "tools": [web], "tool_choice": "required"}),
        ("messages", {"messages": MESSAGES, "max_tokens": 2, "tool_choice": {"type": "any"}}),
    ):
        answer = server.post(f"/v1/{path}", body)
        assert answer.status_code == 400, path
        assert "no function is offered" in answer.json()["error"]["message"], path


def test_null_is_as_good_as_left_out(server: TinyServer) -> None:
    nulls = dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "stream", "n", "seed"))
    answer = server.post(
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 2, "response_format": {"type": None}, **nulls},
    )
    assert answer.status_code == 200, answer.text


def test_messages_with_a_tool(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    wanted: Any = {"type": "tool", "name": "weather"}
    found = claude.messages.create(
        model="tiny", messages=MESSAGES, tools=tools, tool_choice=wanted, max_tokens=300
    )  # fmt: skip
    assert found.stop_reason == "tool_use"
    (block,) = found.content
    assert block.type == "tool_use"
    assert block.input["city"] in CITIES
    result: Any = [{"type": "tool_result", "tool_use_id": block.id, "content": "sun"}]
    turns: Any = [
        *MESSAGES,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
        {"role": "user", "content": result},
    ]
    with claude.messages.stream(
        model="tiny", messages=turns, tools=tools, tool_choice=wanted, max_tokens=300
    ) as stream:
        last = stream.get_final_message()
    assert last.stop_reason == "tool_use"
    assert last.content[0].type == "tool_use"
    assert last.content[0].input["city"] in CITIES


def test_responses_with_a_tool(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "strict": True, **FUNCTION}, {"type": "web_search"}]
    asked: dict[str, Any] = {
        "model": "tiny",
        "instructions": "be a cat",
        "input": "the tree",
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "extra_body": {"seed": 1},
    }
    found = client.responses.create(**asked)
    assert found.status == "completed"
    (call,) = found.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in CITIES
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].arguments == call.arguments
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments
    turn: Any = [
        {"role": "user", "content": "the tree"},
        {"type": "function_call", "call_id": call.call_id, "name": "weather",
         "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "sun"},
    ]  # fmt: skip
    more = client.responses.create(model="tiny", input=turn, max_output_tokens=5)
    assert more.status in ("completed", "incomplete")


def test_ollama_gets_its_calls_whole(server: TinyServer) -> None:
    body = {
        "messages": MESSAGES,
        "tools": TOOLS,
        "options": {"seed": 1, "num_predict": 5},
        "stream": False,
    }
    answer = server.post("/api/chat", body).json()
    assert answer["done"] is True
    assert answer["message"]["role"] == "assistant"
