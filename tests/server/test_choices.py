"""Several replies in one answer: `n`, and lists of prompts."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import httpx
import pytest

from dyspec_edge.server import run
from dyspec_edge.server.run import ServerConfig
from tests.server.conftest import StartServer, TinyServer
from tests.server.test_openai import MESSAGES, events
from tests.server.test_scheduler import CHAT, eventually, num_passes

COMPLETION = "/v1/completions"
PROMPTS = ["the cat", "a tree is on the hill"]


def complete(server: TinyServer, prompt: Any, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 20, "seed": 5, **fields}
    answer = server.post(COMPLETION, body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_each_choice_of_a_chat_is_what_its_seed_gives_alone(server: TinyServer) -> None:
    alone = [server.chat(seed=seed) for seed in (7, 8, 9)]
    found = server.chat(seed=7, n=3)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert texts == [one["choices"][0]["message"]["content"] for one in alone]
    assert len(set(texts)) > 1
    used = [one["usage"] for one in alone]
    assert found["usage"]["prompt_tokens"] == used[0]["prompt_tokens"]
    assert found["usage"]["completion_tokens"] == sum(one["completion_tokens"] for one in used)


def test_the_choices_of_a_stream_carry_their_index(server: TinyServer) -> None:
    whole = server.chat(seed=7, n=3, logprobs=True)
    body = {"messages": MESSAGES, "seed": 7, "max_tokens": 20, "n": 3, "logprobs": True}
    *chunks, last = events(server, CHAT, {**body, "stream_options": {"include_usage": True}})
    texts, reasons = defaultdict[int, str](str), dict[int, str]()
    likely = defaultdict[int, list[Any]](list)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index, delta = choice["index"], choice["delta"]
        texts[index] += delta.get("content") or ""
        likely[index] += (choice["logprobs"] or {}).get("content", ())
        if choice["finish_reason"]:
            assert index not in reasons
            reasons[index] = choice["finish_reason"]
            assert chunk["timings"]["seed"] == 7 + index
    for choice in whole["choices"]:
        index = choice["index"]
        assert texts[index] == choice["message"]["content"]
        assert reasons[index] == choice["finish_reason"]
        assert [one["id"] for one in likely[index]] == [
            one["id"] for one in choice["logprobs"]["content"]
        ]
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_list_of_prompts_has_n_choices_for_each(server: TinyServer, as_ids: bool) -> None:
    ids = [list(server.service.slots.prepare_raw(prompt).tokens) for prompt in PROMPTS]
    alone = [complete(server, prompt, seed=seed) for prompt in PROMPTS for seed in (5, 6)]
    texts = [one["choices"][0]["text"] for one in alone]
    given = ids if as_ids else PROMPTS
    found = complete(server, given, n=2, logprobs=1)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in found["choices"]] == texts
    for choice in found["choices"]:
        assert choice["logprobs"]["text_offset"][0] == 0
    assert found["usage"]["prompt_tokens"] == sum(map(len, ids))
    body = {"prompt": given, "max_tokens": 20, "seed": 5, "n": 2}
    *chunks, last = events(server, COMPLETION, {**body, "stream_options": {"include_usage": True}})
    streamed = defaultdict[int, str](str)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
    assert [streamed[index] for index in range(4)] == texts
    assert last["usage"]["total_tokens"] == found["usage"]["total_tokens"]


def test_without_a_seed_the_choices_differ(server: TinyServer) -> None:
    found = complete(server, "the cat", seed=None, n=4, temperature=1.5)
    assert len({choice["text"] for choice in found["choices"]}) > 1


def test_a_list_with_one_prompt_is_that_prompt(server: TinyServer) -> None:
    assert complete(server, PROMPTS[:1])["choices"] == complete(server, PROMPTS[0])["choices"]


@pytest.mark.usefixtures("slow_steps")
def test_a_client_that_leaves_ends_all_its_choices(server: TinyServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "n": 5}
    with pytest.raises(httpx.TimeoutException):
        server.post(CHAT, body, timeout=0.2)
    scheduler = server.service.scheduler
    assert eventually(lambda: scheduler.num_running == 0)
    passes = num_passes(server)
    time.sleep(0.2)
    assert (scheduler.num_running, num_passes(server)) == (0, passes)


def test_more_replies_than_the_server_can_hold_are_refused(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "QUEUE_FACTOR", 1)
    server = start_server(ServerConfig("tiny"), num_conversations=2)
    assert len(server.chat(n=4)["choices"]) == 4
    for path, body in (
        (CHAT, {"messages": MESSAGES, "n": 5}),
        (COMPLETION, {"prompt": 3 * PROMPTS}),
        (COMPLETION, {"prompt": PROMPTS, "n": 10**15}),
    ):
        answer = server.post(path, body)
        assert answer.status_code == 400
        assert "takes 4 at most (--parallel)" in answer.json()["error"]["message"]


def test_all_choices_wait_in_the_queue_or_none(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    monkeypatch.setattr(run, "QUEUE_FACTOR", 1)
    server = start_server(ServerConfig("tiny"), num_conversations=1)
    body = {"messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", CHAT, json=body) as answer:
        next(answer.iter_lines())
        refused = server.post(CHAT, {"messages": MESSAGES, "n": 2})
        assert refused.status_code == 429
        held.set()
        assert server.text(max_tokens=2)
    assert eventually(lambda: server.service.scheduler.num_running == 0)
