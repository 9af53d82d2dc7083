"""32 clients for two minutes, a third of them leaving: -m long.

LOAD_SECONDS=30 makes it shorter.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import llama_cpp
import numpy as np
import psutil
import pytest

from dyspec_edge.engine import EngineConfig
from dyspec_edge.files import catalog, fetch
from dyspec_edge.server.run import ServerConfig
from tests.engines import tiny_config
from tests.server.conftest import StartServer, TinyServer, running
from tests.server.test_scheduler import CHAT, eventually, num_passes

CLIENTS, SECONDS = 32, float(os.environ.get("LOAD_SECONDS", "120"))
WARM_UP = SECONDS / 4
TIE = 0.8
"""Between two tokens of which a model of 4 bits may choose either: the difference of their logits
changes by so much with the cells that a text gets (benchmarks/results/requests.md)."""


Likely = list[dict[str, Any]]
"""The `content` of a reply's `logprobs`, with the two most likely tokens each."""


def margin(likely: Likely, text: str) -> float:
    """How much less likely the other token was where a text leaves a reply; inf if nowhere."""
    written = ""
    for one in likely:
        written += one["token"]
        if not text.startswith(written):
            first, second = (other["logprob"] for other in one["top_logprobs"])
            return float(first - second)
    return float("inf")


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        first: seconds to the first text of streams that were begun.
        others: margins of answers that are not what a single client gets.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


ANIMALS = ("cat", "horse", "whale", "ant", "owl", "snake", "bear", "frog", "swan", "tiger")


class Clients:
    """Clients that ask at the same time.

    Args:
        fields: of requests.
        long: tokens of a reply whose client leaves before its end.
    """

    def __init__(
        self, server: TinyServer, prompts: Sequence[str], *, long: int, **fields: Any
    ) -> None:
        self.server, self.prompts, self.long = server, prompts, long
        self.fields = {"seed": 1, "max_tokens": 30, **fields}
        self.seen = Seen()
        self.alone = {prompt: self._ask_alone(prompt) for prompt in prompts}

    def _body(self, prompt: str, **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": prompt}], **self.fields, **fields}

    def _ask_alone(self, prompt: str) -> tuple[str, Likely]:
        answer = self.server.post(CHAT, self._body(prompt, logprobs=True, top_logprobs=2))
        (choice,) = answer.json()["choices"]
        return choice["message"]["content"], choice["logprobs"]["content"]

    def run(self, seed: int, ends: float) -> None:
        rng = random.Random(seed)
        with httpx.Client(base_url=self.server.address, timeout=300.0, trust_env=False) as http:
            while time.monotonic() < ends:
                if rng.random() < 1 / 3:
                    self._leave(http, rng)
                else:
                    self._stay(http, rng.choice(self.prompts))

    def _leave(self, http: httpx.Client, rng: random.Random) -> None:
        body = self._body(rng.choice(self.prompts), max_tokens=self.long, stream=True)
        with http.stream("POST", CHAT, json=body) as answer:
            for _ in zip(answer.iter_lines(), range(rng.randint(1, 12)), strict=False):
                pass
        self.seen.counts["left"] += 1

    def _stay(self, http: httpx.Client, prompt: str) -> None:
        started, text = time.monotonic(), ""
        with http.stream("POST", CHAT, json=self._body(prompt, stream=True)) as answer:
            if answer.status_code == 429:
                self.seen.counts["refused"] += 1
                time.sleep(0.05)
                return
            for delta in deltas(answer):
                if not text and delta:
                    self.seen.first.append(time.monotonic() - started)
                text += delta
        self.seen.counts["answers"] += 1
        if text != self.alone[prompt][0]:
            self.seen.others.append(margin(self.alone[prompt][1], text))

    def ask_for(self, seconds: float, warm_up: float) -> tuple[int, int]:
        """Ask for so long; bytes of memory after the warm-up and at the end."""
        ends = time.monotonic() + seconds
        threads = [threading.Thread(target=self.run, args=(seed, ends)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        process = psutil.Process()
        time.sleep(warm_up)
        before = process.memory_info().rss
        for thread in threads:
            thread.join()
        return before, process.memory_info().rss


def deltas(answer: httpx.Response) -> Iterator[str]:
    """The texts of a chat's stream."""
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            yield choice["delta"].get("content") or ""


def check(clients: Clients, before: int, after: int) -> None:
    """Memory is flat, nothing is stuck, nobody got another one's answer."""
    server, seen = clients.server, clients.seen
    assert eventually(lambda: server.service.scheduler.num_running == 0)
    passes = num_passes(server)
    time.sleep(0.5)
    assert num_passes(server) == passes
    p50, p95 = np.quantile(seen.first, [0.5, 0.95])
    print(  # noqa: T201
        f"{dict(seen.counts)}, {len(seen.others)} of them not a single client's text (margin "
        f"{max(seen.others, default=0.0):.3f}); first text "
        f"p50 {p50:.2f} s, p95 {p95:.2f} s; memory {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB"
    )
    assert after <= 1.02 * before
    assert seen.counts["left"] > seen.counts["answers"] / 4


@pytest.mark.long
def test_memory_stays_flat_and_no_answer_is_mixed_up(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny"), num_conversations=4)
    clients = Clients(server, [f"the cat sat on {i}" for i in range(40)], long=300)
    before, after = clients.ask_for(SECONDS, WARM_UP)
    check(clients, before, after)
    assert clients.seen.others == []
    assert clients.seen.counts["answers"] > SECONDS


@pytest.fixture(scope="module")
def float_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's weights as numbers of 32 bits: before a product with them nothing is rounded."""
    path = tmp_path_factory.mktemp("load") / "smollm2-f32.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    model = str(fetch.ensure(catalog.load()["smollm2"].target)).encode()
    assert not llama_cpp.llama_model_quantize(model, str(path).encode(), ctypes.byref(params))
    return path


@pytest.mark.long
@pytest.mark.model
def test_a_real_model_that_rounds_nothing_gives_what_a_single_client_gets(
    float_weights: Path,
) -> None:
    """Each prompt is long enough to be kept in memory when another one takes its slot."""
    config = tiny_config(float_weights, float_weights, num_threads=2, num_conversations=3)
    with running(config, ServerConfig("smollm2", cache_ram=256 << 20)) as server:
        prompts = [f"{130 * f'{name} '}: tell me about it." for name in ANIMALS[:6]]
        server.http.timeout = 300.0
        clients = Clients(server, prompts, long=100, temperature=0)
        clients.ask_for(SECONDS, WARM_UP)
        assert len(server.service.slots.kept) > 0
    assert clients.seen.others == []
    assert clients.seen.counts["answers"] > 10


@pytest.mark.long
@pytest.mark.model
def test_the_same_over_a_real_model() -> None:
    path = fetch.ensure(catalog.load()["smollm2"].target)
    config = EngineConfig(
        path, path, policy="dyspec:8", num_ctx=1024, num_threads=2, num_conversations=4
    )
    with running(config, ServerConfig("smollm2", cache_ram=32 << 20)) as server:
        prompts = [f"Tell me about the {name}." for name in ANIMALS]
        clients = Clients(server, prompts, long=200, temperature=0)
        before, after = clients.ask_for(SECONDS, WARM_UP)
        check(clients, before, after)
    assert max(clients.seen.others, default=0.0) < TIE
    assert clients.seen.counts["answers"] > 20
