"""Turns, the queue, cached prefixes, and clients that leave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dyspec_edge.server import run
from dyspec_edge.server.run import ServerConfig
from tests.server.conftest import StartServer, TinyServer

CHAT = "/v1/chat/completions"


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "seed": 1, **fields}


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if condition():
            return True
        time.sleep(0.005)
    return False


def num_passes(server: TinyServer) -> int:
    """Passes of the target in all conversations."""
    return sum(slot.conversation.target.num_passes for slot in server.service.slots.all)


def test_many_clients_get_the_answers_of_one(server: TinyServer) -> None:
    prompts = [f"the cat sat on {i}" for i in range(24)]
    alone = {prompt: server.text(prompt, max_tokens=30) for prompt in prompts}
    with ThreadPoolExecutor(24) as pool:
        together = pool.map(lambda prompt: server.text(prompt, max_tokens=30), prompts)
        assert dict(zip(prompts, together, strict=True)) == alone
    assert len(set(alone.values())) > 12


def test_a_schema_is_read_while_another_reply_is_under_way(
    start_server: StartServer, held: threading.Event
) -> None:
    server = start_server(ServerConfig("tiny"), num_conversations=1)
    with server.http.stream("POST", CHAT, json=body("a story", stream=True)) as answer:
        next(answer.iter_lines())
        refused = server.post(CHAT, body("a title", json_schema={"not": {}}, stream=True))
        assert refused.status_code == 400
        assert "`not`" in refused.json()["error"]["message"]
        held.set()
    assert server.text(json_schema={"enum": ["red"]}, max_tokens=30) == '"red"'


@pytest.mark.usefixtures("slow_steps")
def test_a_short_reply_does_not_wait_for_a_long_one(server: TinyServer) -> None:
    order: list[str] = []

    def ask(name: str, tokens: int) -> None:
        server.text(name, max_tokens=tokens, ignore_eos=True)
        order.append(name)

    long = threading.Thread(target=ask, args=("a long story", 200))
    long.start()
    assert eventually(lambda: server.service.scheduler.num_running == 1)
    ask("a title", 3)
    long.join()
    assert order == ["a title", "a long story"]


def test_the_next_turn_reads_only_its_new_tokens_whatever_came_between(
    start_server: StartServer,
) -> None:
    server = start_server(ServerConfig("tiny"), num_conversations=3)
    turns: list[dict[str, str]] = [{"role": "system", "content": "be a good cat, sit on the mat"}]
    for other in ("another chat", "and one more"):  # no slot is empty then
        server.text(f"{other} about trees", max_tokens=20, ignore_eos=True)
    before = 0
    for question in ("where is the cat", "and the tree", "why"):
        turns.append({"role": "user", "content": question})
        answer = server.chat(messages=turns, max_tokens=25, ignore_eos=True)
        usage = answer["usage"]
        # Everything up to the end of the last reply but its last token, which is the root.
        assert usage["prompt_tokens_details"]["cached_tokens"] >= before - 1
        before = usage["total_tokens"]
        turns.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        for title in ("make a title for this", "make tags"):
            server.text(f"{title}: {question}", max_tokens=5)


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_passes(server: TinyServer, stream: bool) -> None:
    story = body("a story", max_tokens=400, ignore_eos=True, stream=stream)
    before = num_passes(server)
    server.post(CHAT, story)
    of_whole = num_passes(server) - before
    assert of_whole > 40
    before += of_whole
    if stream:
        with server.http.stream("POST", CHAT, json=story) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
    else:
        with pytest.raises(httpx.TimeoutException):
            server.post(CHAT, story, timeout=0.1)
    assert eventually(lambda: server.service.scheduler.num_running == 0)
    passes = num_passes(server)
    time.sleep(0.2)
    assert num_passes(server) == passes
    assert passes - before < of_whole
    assert server.text() == server.text()


@pytest.mark.usefixtures("slow_steps")
def test_a_full_queue_says_so_and_when_to_come_again(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "QUEUE_FACTOR", 1)
    server = start_server(ServerConfig("tiny"), num_conversations=1)
    with ThreadPoolExecutor(6) as pool:
        long = body("a story", max_tokens=60, ignore_eos=True)
        answers = list(pool.map(lambda _: server.post(CHAT, long), range(6)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 4
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert refused[0].json()["error"]["code"] == "queue_full"
    texts = [a.json()["choices"][0]["message"]["content"] for a in answers if a not in refused]
    assert len(set(texts)) == 1


@pytest.mark.usefixtures("slow_steps")
def test_a_request_that_takes_too_long_ends(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny", timeout=0.3))
    answer = server.post(CHAT, body("a story", max_tokens=400, ignore_eos=True))
    assert answer.status_code == 504
    assert "--timeout" in answer.json()["error"]["message"]


@pytest.mark.usefixtures("slow_steps")
def test_the_end_of_the_server_ends_streams_properly(
    start_server: StartServer,
) -> None:
    server = start_server(ServerConfig("tiny"))
    long = body("a story", max_tokens=450, ignore_eos=True, stream=True)
    with server.http.stream("POST", CHAT, json=long) as answer:
        lines = (line[6:] for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        server.service.scheduler.close(grace=0.1)
        assert server.post(CHAT, body("b")).status_code == 503
        *_, error, done = lines
    assert json.loads(error)["error"]["type"] == "unavailable_error"
    assert done == "[DONE]"


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the passes were, "read" a part of a prompt or "step", while reading is slow."""
    from dyspec_edge.decode.cache import Cache
    from dyspec_edge.decode.loop import Conversation

    found: list[str] = []
    prefill, step = Cache.prefill, Conversation._step

    def reading(self: Cache, tokens: Any, *, on_progress: Any = None, **options: Any) -> int:
        def report(done: int, total: int) -> None:
            time.sleep(0.02)
            found.append("read")
            if on_progress is not None:
                on_progress(done, total)

        return prefill(self, tokens, on_progress=report, **options)

    def stepping(self: Conversation, *arguments: Any) -> Any:
        found.append("step")
        return step(self, *arguments)

    monkeypatch.setattr(Cache, "prefill", reading)
    monkeypatch.setattr(Conversation, "_step", stepping)
    return found


def test_others_go_on_while_a_long_prompt_is_read(
    start_server: StartServer, order: list[str]
) -> None:
    server = start_server(ServerConfig("tiny"), num_ctx=8192)
    long, short = "the cat sat on the mat " * 500, "a title"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.text, long, max_tokens=12)
        assert eventually(lambda: order.count("read") > 3)
        second = pool.submit(server.text, short, max_tokens=12)
        together = second.result(), first.result()
    first_step = order.index("step")
    assert order[first_step:].count("read") > 3
    assert together == (server.text(short, max_tokens=12), server.text(long, max_tokens=12))


def test_a_client_that_leaves_ends_the_reading(start_server: StartServer, order: list[str]) -> None:
    server = start_server(ServerConfig("tiny"), num_ctx=8192)
    server.text("the cat", max_tokens=1)
    order.clear()
    with pytest.raises(httpx.TimeoutException):
        server.post(CHAT, body("the cat sat on the mat " * 500), timeout=0.1)
    assert eventually(lambda: server.service.scheduler.num_running == 0, 2.0)
    parts = len(order)
    time.sleep(0.2)
    assert len(order) == parts
    assert "step" not in order
    assert server.text("the cat", max_tokens=5)
