"""Targets with recurrent states, and a head, served: texts, turns, clients that leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dyspec_edge.load.config import HEAD
from dyspec_edge.server.run import ServerConfig
from tests.conftest import TinyPair
from tests.engines import tiny_config
from tests.server.conftest import TinyServer, running
from tests.server.test_kept import talk
from tests.server.test_scheduler import eventually

SETTINGS = ServerConfig("tiny", cache_ram=0)
KINDS = ["qwen35 and its head", "lfm2 and a draft", "jamba and a draft"]


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest,
    tiny_headed: Callable[..., TinyPair],
    tiny_hybrid: Callable[..., TinyPair],
) -> TinyPair:
    if request.param == "qwen35 and its head":
        return TinyPair(tiny_headed("qwen35").target, HEAD)
    return tiny_hybrid(request.param.split()[0])


def served(model: Path, draft: Path | None, policy: str) -> Iterator[TinyServer]:
    config = tiny_config(model, draft, policy=policy, num_ctx=2048, num_conversations=3)
    with running(config, SETTINGS) as found:
        yield found


@pytest.fixture(scope="module")
def drafting(pair: TinyPair) -> Iterator[TinyServer]:
    yield from served(*pair, "chain:4")


@pytest.fixture(scope="module")
def plain(pair: TinyPair) -> Iterator[TinyServer]:
    yield from served(pair.target, None, "none")


@pytest.mark.parametrize("policy", ["chain:4", "dyspec:4", "none"])
def test_texts_are_plain_decodings(drafting: TinyServer, plain: TinyServer, policy: str) -> None:
    drafted = accepted = 0
    for seed, temperature in ((1, 0.0), (2, 0.7), (3, 1.0), (4, 1.0)):
        options: dict[str, Any] = {
            "seed": seed,
            "temperature": temperature,
            "max_tokens": 40,
            "ignore_eos": True,
        }
        found = drafting.chat(policy=policy, **options)
        assert found["choices"][0]["message"]["content"] == plain.text(**options)
        drafted += found["timings"]["draft_n"]
        accepted += found["timings"]["draft_n_accepted"]
    assert (0 < accepted < drafted) == (policy != "none")


def test_chats_in_turns_read_only_what_is_new(drafting: TinyServer, plain: TinyServer) -> None:
    """Each from its own state, with what the others did in between."""
    texts, cached = talk(drafting)
    wanted, _ = talk(plain)
    assert texts == wanted
    assert min(cached) > 128


def is_busy(server: TinyServer) -> bool:
    return any(slot["is_processing"] for slot in server.http.get("/slots").json())


@pytest.mark.usefixtures("slow_steps")
def test_a_client_that_leaves_in_mid_stream(drafting: TinyServer, plain: TinyServer) -> None:
    """Its passes end, and the state that they have left behind is no part of another text."""
    body = {"messages": [{"role": "user", "content": 9 * "the cat sat on the mat "}]}
    options: dict[str, Any] = {"seed": 5, "max_tokens": 30, "ignore_eos": True, **body}
    for num_events in (1, 3, 6):
        long = {**options, "stream": True, "max_tokens": 1500}
        with drafting.http.stream("POST", "/v1/chat/completions", json=long) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
            assert all("choices" in next(lines) for _ in range(num_events))
        assert eventually(lambda: not is_busy(drafting), seconds=5), "the reply went on"
        found = drafting.chat(**options)
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 50
        assert found["choices"][0]["message"]["content"] == plain.text(**options)
