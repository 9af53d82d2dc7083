"""The official `openai` client, and requests by hand, against a server over tiny models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from dyspec_edge.engine import SamplingParams
from dyspec_edge.server.run import ServerConfig
from tests.engines import opened
from tests.server.conftest import StartServer, TinyServer

MESSAGES: Any = [{"role": "user", "content": "the tree is on"}]


@pytest.fixture
def client(server: TinyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def events(server: TinyServer, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of a stream's events."""
    with server.http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_text_is_the_engines(client: openai.OpenAI, server: TinyServer) -> None:
    with opened(server.config.model, server.config.draft) as engine:
        own = engine.generate(MESSAGES, sampling=SamplingParams(seed=7), max_tokens=30)
    found = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=7, max_completion_tokens=30
    )
    assert found.choices[0].message.content == own.text
    assert found.choices[0].finish_reason == own.finish_reason
    assert found.usage is not None
    assert found.usage.completion_tokens == own.stats.generated_tokens
    assert found.usage.prompt_tokens == own.stats.prompt_tokens


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=3, max_tokens=30, logprobs=True, top_logprobs=2
    )
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            seed=3,
            max_tokens=30,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    first, *middle, last = chunks
    assert first.choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == (
        whole.choices[0].message.content
    )
    assert middle[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    likely = [
        t for c in middle if c.choices[0].logprobs for t in c.choices[0].logprobs.content or ()
    ]
    assert whole.choices[0].logprobs is not None
    assert [t.token for t in likely] == [t.token for t in whole.choices[0].logprobs.content or ()]
    assert all(len(token.top_logprobs) == 2 for token in likely)


def test_completions_of_bare_text_and_of_tokens(client: openai.OpenAI, server: TinyServer) -> None:
    text = client.completions.create(
        model="tiny", prompt="the cat", seed=2, max_tokens=20, logprobs=1
    )
    ids = list(server.service.slots.prepare_raw("the cat").tokens)
    again = client.completions.create(model="tiny", prompt=ids, seed=2, max_tokens=20)
    assert text.choices[0].text == again.choices[0].text
    likely = text.choices[0].logprobs
    assert likely is not None
    assert likely.tokens is not None
    assert len(likely.tokens) == len(likely.token_logprobs or ()) == 20
    streamed = client.completions.create(
        model="tiny", prompt="the cat", seed=2, max_tokens=20, stream=True
    )
    assert "".join(c.choices[0].text for c in streamed) == text.choices[0].text


def test_a_last_message_of_the_assistant_is_gone_on_with(server: TinyServer) -> None:
    whole = server.text(max_tokens=20, temperature=0)
    begun = whole[: len(whole) // 2]
    turns = [*MESSAGES, {"role": "assistant", "content": begun}]
    asked = server.post("/apply-template", {"messages": MESSAGES}).json()["prompt"]
    assert server.post("/apply-template", {"messages": turns}).json()["prompt"] == asked + begun
    found = server.chat(messages=turns, max_tokens=20, temperature=0)
    prompt = server.service.tokenize(begun)
    assert found["usage"]["prompt_tokens"] == server.chat()["usage"]["prompt_tokens"] + len(prompt)
    raw = {"prompt": asked + begun, "temperature": 0, "max_tokens": 20}
    again = server.post("/v1/completions", raw).json()["choices"][0]["text"]
    assert found["choices"][0]["message"]["content"] == again


def test_a_tree_comes_with_each_step_if_asked_for(server: TinyServer) -> None:
    body = {"messages": MESSAGES, "seed": 1, "max_tokens": 30}
    options = {"include_usage": True, "include_tree": True}
    found = events(server, "/v1/chat/completions", {**body, "stream_options": options})
    steps = [event["step"] for event in found if "step" in event]
    assert [step["index"] for step in steps] == list(range(len(steps)))
    assert sum(len(step["emitted"]) for step in steps) == found[-1]["usage"]["completion_tokens"]
    for step in steps:
        nodes = step["nodes"]
        assert nodes[0]["parent"] == -1
        assert all(node["parent"] < at for at, node in enumerate(nodes))
        accepted = [node["text"] for node in nodes[1:] if node["accepted"]]
        assert accepted == [token["text"] for token in step["emitted"]][: len(accepted)]
        assert step["rows"] >= sum(node["checked"] for node in nodes)
    assert any(step["draft_passes"] > 0 for step in steps)
    assert not any("step" in event for event in events(server, "/v1/chat/completions", body))


def test_a_json_schema_is_kept(server: TinyServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = server.text(response_format=wanted, max_tokens=200)
    assert json.loads(found)["a"] in ("x", "y")
    unkept = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "a+"}}}
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "response_format": unkept})
    assert answer.status_code == 400
    assert "pattern" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("temperature", "hot", "temperature"),
        ("temperature", -1, "temperature"),
        ("messages", [], "messages"),
        ("messages", [{"role": "user"}], "content"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
        ("messages", [{"role": "user", "content": "word " * 2000}], "context"),
        ("response_format", {"type": "xml"}, "response_format"),
        ("response_format", {"type": "json_schema"}, "schema"),
        ("tools", [{"type": "function", "function": {"name": "f"}}], "tools"),
        ("logit_bias", {"999999": 1}, "999999"),
        ("n", 0, "n: "),
        ("n", 3000, "3000 replies"),
        ("grammar", "root ::= (", "grammar"),
        ("seed", -7, "seed"),
        ("speculation", "maybe", "speculation"),
    ],
)
def test_what_cannot_be_done_is_a_400_that_names_it(
    server: TinyServer, field: str, value: Any, word: str
) -> None:
    for stream in (False, True):
        body = {"messages": MESSAGES, "max_tokens": 3, "stream": stream, field: value}
        answer = server.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert word in error["message"]
        assert error["type"] == "invalid_request_error"
        assert set(error) >= {"message", "type", "param", "code"}


def test_unknown_fields_are_ignored(server: TinyServer) -> None:
    assert server.text(user="me", store=True, metadata={"a": "b"}) == server.text()


def test_other_methods_and_paths(server: TinyServer) -> None:
    assert server.http.get("/v1/chat/completions").status_code == 405
    assert server.http.get("/static/../../pyproject.toml").status_code == 404
    assert server.http.get("/..%2f..%2fpyproject.toml").status_code == 404
    assert server.post("/v1/embeddings", {"input": "a"}).status_code == 501
    assert server.http.post("/v1/chat/completions", content=b"{").status_code == 400
    assert server.http.post("/v1/chat/completions", content=b"\xff").status_code == 400
    assert server.http.post("/v1/chat/completions", content=b"[" * 100_000).status_code == 400


def test_speculation_can_be_switched_for_a_request(server: TinyServer) -> None:
    default = server.chat(max_tokens=40)
    assert default["timings"]["draft_n"] > 0
    assert default["timings"]["policy"] == "dyspec:8"
    for fields, policy in (
        ({"speculation": "off"}, "none"),
        ({"speculation": False}, "none"),
        ({"policy": "chain:3"}, "chain:3"),
        ({"policy": "dyspec:4", "speculation": "on"}, "dyspec:4"),
    ):
        found = server.chat(max_tokens=40, **fields)
        assert found["choices"][0]["message"] == default["choices"][0]["message"]
        assert found["timings"]["policy"] == policy
        assert (found["timings"]["draft_n"] > 0) == (policy != "none")
    assert server.chat(max_tokens=40)["timings"]["policy"] == "dyspec:8"
    residual = [server.chat(verify="residual", max_tokens=40) for _ in range(2)]
    assert residual[0]["choices"] == residual[1]["choices"]
    assert residual[0]["timings"]["verify"] == "residual"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"policy": "dyspec:64"}, "--policy dyspec:64"),
        ({"policy": "priced"}, "--policy priced"),
        ({"policy": "best"}, "best"),
        ({"verify": "never"}, "verify"),
        ({"verify": "residual", "grammar": 'root ::= "a"'}, "--verify match"),
    ],
)
def test_what_does_not_fit_what_was_loaded_names_the_flag(
    server: TinyServer, fields: dict[str, str], word: str
) -> None:
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5, **fields})
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]
    assert server.text() == server.text()


def test_a_policy_with_a_draft_where_none_was_loaded(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny"), draft=None, policy="none")
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "policy": "chain:2"})
    assert answer.status_code == 400
    assert "-md" in answer.json()["error"]["message"]
