"""Anthropic's, Ollama's and the Responses protocol say what OpenAI's chat says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.conftest import TinyServer

MESSAGES: Any = [{"role": "user", "content": "the tree is on"}]
SEED = {"seed": 1}


@pytest.fixture
def text(server: TinyServer) -> str:
    """What OpenAI's chat says to 20 tokens."""
    return server.text()


@pytest.fixture
def client(server: TinyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(server: TinyServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.address, api_key="none", max_retries=0) as made:
        yield made


def test_messages(claude: anthropic.Anthropic, text: str) -> None:
    found = claude.messages.create(model="tiny", messages=MESSAGES, max_tokens=20, extra_body=SEED)
    assert found.content[0].type == "text"
    assert found.content[0].text == text
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == 20
    with claude.messages.stream(
        model="tiny", messages=MESSAGES, max_tokens=20, extra_body=SEED
    ) as stream:
        assert "".join(stream.text_stream) == text
        last = stream.get_final_message()
    assert last.stop_reason == found.stop_reason
    assert last.usage.output_tokens == 20
    used = last.usage.input_tokens + (last.usage.cache_read_input_tokens or 0)
    counted = claude.messages.count_tokens(model="tiny", messages=MESSAGES)
    assert counted.input_tokens == used


def test_messages_with_a_system_text_parts_and_a_stop(
    claude: anthropic.Anthropic, server: TinyServer
) -> None:
    parts: Any = [{"type": "text", "text": "the tree"}, {"type": "text", "text": " is on"}]
    asked: Any = {
        "model": "tiny",
        "system": [{"type": "text", "text": "be a cat", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 20,
        "extra_body": SEED,
    }
    system = [{"role": "system", "content": "be a cat"}]
    whole = server.text(messages=[*system, *MESSAGES])
    assert claude.messages.create(**asked).content[0].text == whole
    found = claude.messages.create(**asked, stop_sequences=[whole[5:8]])
    assert found.stop_reason == "stop_sequence"
    assert found.stop_sequence == whole[5:8]
    assert found.content[0].text == whole[: whole.index(whole[5:8])]


def test_responses(client: openai.OpenAI, text: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_output_tokens": 20, "extra_body": SEED}
    found = client.responses.create(input="the tree is on", **asked)
    assert found.output_text == text
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "the tree is on"}]}]
    with client.responses.stream(input=parts, **asked) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(input="a", previous_response_id="resp_1", **asked)


def test_ollama(server: TinyServer, text: str) -> None:
    options = {"seed": 1, "num_predict": 20}
    chat = {"model": "tiny", "messages": MESSAGES, "options": options}
    generate = {"model": "tiny", "prompt": "the tree is on", "options": options}
    found = server.post("/api/chat", {**chat, "stream": False}).json()
    assert found["message"]["content"] == text
    assert found["done_reason"] == "length"
    assert found["eval_count"] == 20
    lines = [json.loads(line) for line in server.post("/api/chat", chat).text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == text
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    lines = [json.loads(line) for line in server.post("/api/generate", generate).text.splitlines()]
    assert "".join(line["response"] for line in lines) == text
    schema = {"enum": ["Bern", "Rome"]}
    chosen = server.post("/api/chat", {**chat, "format": schema, "stream": False}).json()
    assert json.loads(chosen["message"]["content"]) in ("Bern", "Rome")
    (model,) = server.http.get("/api/tags").json()["models"]
    assert model["name"] == "tiny"
    assert server.http.get("/api/version").status_code == 200


def test_the_asynchronous_clients(server: TinyServer, text: str) -> None:
    async def ask() -> tuple[str, str]:
        url = f"{server.address}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=server.address, api_key="none") as claude,
        ):
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, seed=1, max_tokens=20, stream=True
            )
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
            message = await claude.messages.create(
                model="tiny", messages=MESSAGES, max_tokens=20, extra_body=SEED
            )
            assert message.content[0].type == "text"
            return "".join(streamed), message.content[0].text

    assert asyncio.run(ask()) == (text, text)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": MESSAGES}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}],
                          "max_tokens": 1}),
        ("/v1/messages", {"messages": "a", "max_tokens": 1}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "a"}]}),
        ("/v1/responses", {"input": 3}),
        ("/api/chat", {"messages": []}),
        ("/api/generate", {"prompt": "a", "format": "xml"}),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_a_400(server: TinyServer, path: str, body: Any) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
