"""32 clients for two minutes, a third of them leaving: -m long."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx
import psutil
import pytest

from dyspec_edge.server.run import ServerConfig
from tests.server.conftest import StartServer, TinyServer
from tests.server.test_scheduler import CHAT, eventually, num_passes

CLIENTS, SECONDS, WARM_UP = 32, 120.0, 30.0
PROMPTS = tuple(f"the cat sat on {i}" for i in range(40))


def client(server: TinyServer, seed: int, ends: float, alone: dict[str, str], found: Any) -> None:
    rng = random.Random(seed)
    with httpx.Client(base_url=server.address, timeout=60.0, trust_env=False) as http:
        while time.monotonic() < ends:
            prompt = rng.choice(PROMPTS)
            messages = [{"role": "user", "content": prompt}]
            body = {"messages": messages, "seed": 1, "max_tokens": 30, "stream": True}
            if rng.random() < 1 / 3:
                with http.stream("POST", CHAT, json={**body, "max_tokens": 300}) as answer:
                    for _ in zip(answer.iter_lines(), range(rng.randint(1, 12)), strict=False):
                        pass
                found["left"] += 1
                continue
            answer = http.post(CHAT, json={**body, "stream": False})
            if answer.status_code == 429:
                found["refused"] += 1
                time.sleep(0.05)
                continue
            text = answer.json()["choices"][0]["message"]["content"]
            found["answers"] += 1
            found["wrong"] += text != alone[prompt]


@pytest.mark.long
def test_memory_stays_flat_and_no_answer_is_mixed_up(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny"), num_conversations=4)
    alone = {prompt: server.text(prompt, max_tokens=30) for prompt in PROMPTS}
    found = dict.fromkeys(("left", "refused", "answers", "wrong"), 0)
    ends = time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=client, args=(server, seed, ends, alone, found))
        for seed in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    process = psutil.Process()
    time.sleep(WARM_UP)
    before = process.memory_info().rss
    for thread in threads:
        thread.join()
    after = process.memory_info().rss
    assert eventually(lambda: server.service.scheduler.num_running == 0)
    passes = num_passes(server)
    time.sleep(0.5)
    assert num_passes(server) == passes
    print(found, f"memory {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")  # noqa: T201
    assert found["wrong"] == 0
    assert found["answers"] > 100
    assert found["left"] > 50
    assert after <= 1.02 * before
    assert server.text(PROMPTS[0], max_tokens=30) == alone[PROMPTS[0]]
