"""Conversations that lost their slot come back from memory, with both models' states."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dyspec_edge.decode import saved
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.engine import Completion, Engine, EngineConfig, Prompt, SamplingParams
from dyspec_edge.engine.kept import KeptSessions
from dyspec_edge.files import catalog, fetch
from dyspec_edge.server.run import ServerConfig
from tests.conftest import TinyPair
from tests.engines import opened
from tests.server.conftest import StartServer, TinyServer, running
from tests.tiny_architectures import HYBRIDS, Architecture

CHATS = ("the cat sat on the mat ", "a tree is on the hill ", "why is the leaf so green ")
Turns = list[dict[str, str]]


def asked(server: TinyServer, turns: Turns, question: str) -> tuple[str, int]:
    """The answer to a further question, which joins the turns, and what was in the cache."""
    turns.append({"role": "user", "content": question})
    answer = server.chat(messages=turns, max_tokens=25, ignore_eos=True)
    text = answer["choices"][0]["message"]["content"]
    turns.append({"role": "assistant", "content": text})
    return text, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def talk(server: TinyServer) -> tuple[list[str], list[int]]:
    """Three chats in turns, three questions each; the texts, and what was cached from turn 2 on."""
    texts, cached, chats = [], [], [Turns() for _ in CHATS]
    for number in range(3):
        for turns, start in zip(chats, CHATS, strict=True):
            text, num_cached = asked(server, turns, f"{number} " + 12 * start)
            texts.append(text)
            cached += [num_cached] if number else []
    return texts, cached


def test_chats_in_turns_over_one_slot_read_only_what_is_new(start_server: StartServer) -> None:
    without = start_server(ServerConfig("tiny", cache_ram=0), num_conversations=1, num_ctx=2048)
    wanted, cached_without = talk(without)
    server = start_server(
        ServerConfig("tiny", cache_ram=1 << 30), num_conversations=1, num_ctx=2048
    )
    texts, cached = talk(server)
    assert texts == wanted
    assert min(cached) > 128
    assert max(cached_without) < 64
    shown = server.http.get("/props").json()["cache_ram"]
    assert shown["conversations"] == 2  # the third is in the slot
    assert 0 < shown["used_bytes"] <= shown["limit_bytes"] == 1 << 30


def test_the_least_recently_used_goes_when_there_is_no_more_room(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny", cache_ram=0), num_conversations=1, num_ctx=2048)
    kept, session = KeptSessions(1 << 30), server.service.slots.all[0].session
    texts = []
    for chat in CHATS:
        server.text(30 * chat, max_tokens=1)
        texts.append(tuple(session.tokens))
        kept.keep(session)
    assert len(kept) == 3
    one = kept.num_bytes // 3
    small = KeptSessions(2 * one + one // 2)
    for chat in CHATS:
        server.text(30 * chat, max_tokens=1)
        small.keep(session)
        assert small.num_bytes <= small.limit
    assert len(small) == 2
    found = [small.find(text) for text in texts]
    assert [one is not None and one.num_shared for one in found] == [
        False,
        len(texts[1]),
        len(texts[2]),
    ]
    tiny = KeptSessions(one // 2)
    tiny.keep(session)
    assert (len(tiny), tiny.num_bytes) == (0, 0)


@pytest.fixture(params=["attention", *HYBRIDS])
def any_pair(
    request: pytest.FixtureRequest,
    tiny_pair: TinyPair,
    tiny_hybrid: Callable[[Architecture], TinyPair],
) -> TinyPair:
    return tiny_pair if request.param == "attention" else tiny_hybrid(request.param)


def test_a_text_that_is_put_back_goes_on_as_if_it_had_stayed(
    any_pair: TinyPair, request: pytest.FixtureRequest
) -> None:
    """Whatever else was read in between, and with what the draft had read."""
    is_attention = "attention" in request.node.name
    policy = "dyspec:8" if is_attention else "chain:4"
    warm = SamplingParams(seed=3, temperature=0.9)

    def reply(engine: Engine, prompt: Prompt) -> Completion:
        return engine.generate(prompt, sampling=warm, max_tokens=40)

    with opened(*any_pair, policy=policy) as engine:
        conversation = engine.conversation
        prompt = engine.prepare(5 * CHATS[0], raw=True)
        reply(engine, prompt)
        text, read = saved.save(conversation), tuple(conversation.target.tokens)
        assert text is not None
        assert text.target.tokens == read
        assert len(read) > len(prompt.tokens)
        reply(engine, engine.prepare(7 * CHATS[1], raw=True))
        assert saved.restore(conversation, text)
        drafter = conversation.drafter
        assert isinstance(drafter, ModelDrafter)
        assert text.draft is not None
        assert drafter.cache.tokens == list(text.draft.tokens)
        assert len(drafter.cache.tokens) > len(prompt.tokens)
        longer = replace(prompt, tokens=(*read, *engine.prepare(CHATS[2], raw=True).tokens[1:]))
        found = reply(engine, longer)
        assert found.stats.cached_tokens == len(read)
    with opened(*any_pair, policy=policy) as engine:
        assert reply(engine, longer).tokens == found.tokens


def timed(server: TinyServer, turns: Turns, question: str) -> tuple[int, float]:
    """Tokens that a further question left to read, and seconds to the first of the answer."""
    turns.append({"role": "user", "content": question})
    body = {"messages": turns, "max_tokens": 24, "temperature": 0, "stream": True}
    started, seconds, text = time.perf_counter(), 0.0, ""
    usage: dict[str, Any] = {}
    body["stream_options"] = {"include_usage": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            event = json.loads(line[6:]) if line.startswith("data: {") else {}
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
            seconds = seconds or (time.perf_counter() - started if text else 0.0)
            usage = event.get("usage") or usage
    turns.append({"role": "assistant", "content": text})
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], seconds


@pytest.mark.model
@pytest.mark.parametrize("pair", ["smollm2", "qwen2.5-coder"])
def test_two_chats_of_a_real_model_and_their_titles(pair: str) -> None:
    """From the caches, from memory, and read anew: `-s` shows the times."""
    files = catalog.load()[pair]
    target = fetch.ensure(files.target)
    draft = target if files.draft is None else fetch.ensure(files.draft)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    found: dict[str, list[int]] = {}
    for where, num_conversations, cache_ram in (
        ("from the caches", 4, 0),
        ("from memory", 1, 2 << 30),
        ("read anew", 1, 0),
    ):
        config = EngineConfig(
            target, draft, num_ctx=2048, num_threads=2, num_conversations=num_conversations
        )
        with running(config, ServerConfig(pair, cache_ram=cache_ram)) as server:
            server.http.timeout = 600.0
            chats = [[{"role": "system", "content": readme[at : at + 1600]}] for at in (0, 1600)]
            for number, question in enumerate(("What is this?", "Who needs it?", "And why?")):
                for turns in chats:
                    read, seconds = timed(server, turns, question)
                    print(  # noqa: T201
                        f"{pair}, {where}, question {number + 1}: {read} tokens read, "
                        f"{seconds:.2f} s to the first text"
                    )
                    found.setdefault(where, []).extend([read] if number else [])
                    server.text("Give this a title: " + question, max_tokens=6)
    assert max(found["from the caches"] + found["from memory"]) < 48 < min(found["read anew"])
