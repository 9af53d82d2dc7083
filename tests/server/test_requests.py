"""What editors and web UIs really send, answered in the shape that they read.

requests/*.json says where each was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dyspec_edge.server.run import ServerConfig
from dyspec_edge.server.service import Limits
from tests.conftest import TinyPair
from tests.engines import tiny_config
from tests.server.conftest import TinyServer, running

REQUESTS = sorted((Path(__file__).parent / "requests").glob("*.json"))
TEMPLATE = Path(__file__).parents[1] / "text" / "templates" / "qwen2.5.jinja"


@pytest.fixture(scope="module")
def server(tiny_pair: TinyPair) -> Iterator[TinyServer]:
    """With a template that knows tools; replies end after 16 tokens, whatever is asked for."""
    config = tiny_config(
        *tiny_pair, num_ctx=1024, num_conversations=2, chat_template=TEMPLATE.read_text("utf-8")
    )
    with running(config, ServerConfig("tiny", limits=Limits(max_tokens=16))) as found:
        yield found


def events(answer: httpx.Response) -> list[Any]:
    """The data of a stream's events."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n") if line]
    assert all(line.startswith(("data: ", ":")) for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def models(answer: httpx.Response, _body: Any) -> None:
    found = answer.json()
    assert found["object"] == "list"
    assert [model["id"] for model in found["data"]] == ["tiny"]


def chat(answer: httpx.Response, _body: Any) -> None:
    found = answer.json()
    (choice,) = found["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def chat_stream(answer: httpx.Response, body: Any) -> None:
    assert answer.text.endswith("data: [DONE]\n\n")
    found = events(answer)
    wants_usage = bool(body.get("stream_options"))
    chunks, ends = (found[:-1], found[-1:]) if wants_usage else (found, [])
    for end in ends:
        assert end["choices"] == []
        assert end["usage"]["completion_tokens"] > 0
    deltas = []
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["id"] == found[0]["id"]
        (choice,) = chunk["choices"]
        assert choice["index"] == 0
        deltas.append(choice["delta"])
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] in ("stop", "length")
    assert not any(reasons[:-1])


def completion(answer: httpx.Response, _body: Any) -> None:
    found = answer.json()
    assert found["object"] == "text_completion"
    assert isinstance(found["id"], str)
    assert isinstance(found["created"], int)
    (choice,) = found["choices"]
    assert choice["text"]


def completion_stream(answer: httpx.Response, _body: Any) -> None:
    found = events(answer)
    assert "".join(event["choices"][0]["text"] for event in found)
    assert found[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def native_stream(answer: httpx.Response, _body: Any) -> None:
    found = events(answer)
    assert "".join(event["content"] for event in found)
    assert [event["stop"] for event in found] == [False] * (len(found) - 1) + [True]


READERS: dict[str, Callable[[httpx.Response, Any], None]] = {
    "models": models,
    "chat": chat,
    "chat stream": chat_stream,
    "completion": completion,
    "completion stream": completion_stream,
    "native stream": native_stream,
}


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_a_client_gets_what_it_reads(server: TinyServer, path: Path) -> None:
    request = json.loads(path.read_text("utf-8"))
    assert request["source"]
    answer = server.http.request(
        request["method"], request["path"], headers=request["headers"], json=request.get("body")
    )
    assert answer.status_code == 200, answer.text
    READERS[request["reads"]](answer, request.get("body"))
