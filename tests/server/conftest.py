"""A server over tiny models on a free port, as `dyspec-edge serve` runs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import httpx
import pytest
import uvicorn

from dyspec_edge.decode.loop import Conversation
from dyspec_edge.engine import EngineConfig
from dyspec_edge.files import catalog, fetch
from dyspec_edge.load.loading import load
from dyspec_edge.server import run
from dyspec_edge.server.run import ServerConfig
from dyspec_edge.server.service import Service
from tests.conftest import TinyPair
from tests.engines import tiny_config


@dataclass
class TinyServer:
    """A server that runs."""

    address: str
    service: Service
    config: EngineConfig
    http: httpx.Client = field(repr=False)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def chat(self, text: str = "the tree is on", **fields: Any) -> dict[str, Any]:
        """The answer to one user message."""
        body = {"messages": [{"role": "user", "content": text}], "seed": 1, "max_tokens": 20}
        answer = self.post("/v1/chat/completions", {**body, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def text(self, text: str = "the tree is on", **fields: Any) -> str:
        found: str = self.chat(text, **fields)["choices"][0]["message"]["content"]
        return found


@contextmanager
def running(config: EngineConfig, settings: ServerConfig) -> Iterator[TinyServer]:
    """A server in a thread, until the block ends."""
    with ExitStack() as stack:
        bound = stack.enter_context(closing(run.listen("127.0.0.1", 0)))
        service = stack.enter_context(run.opened(load(config), settings))
        servers: list[uvicorn.Server] = []
        thread = threading.Thread(target=run.serve, args=(service, settings, bound, servers.append))
        thread.start()
        address = run.address_of(bound)
        with httpx.Client(base_url=address, timeout=30.0, trust_env=False) as client:
            try:
                yield TinyServer(address, service, config, client)
            finally:
                client.close()
                servers[0].should_exit = True
                thread.join()


@pytest.fixture(scope="session")
def server(tiny_pair: TinyPair) -> Iterator[TinyServer]:
    """Three conversations of 512 tokens, exact arithmetic, `dyspec:8`."""
    config = tiny_config(*tiny_pair, num_ctx=512, num_conversations=3)
    with running(config, ServerConfig("tiny")) as found:
        yield found


@pytest.fixture(scope="module")
def real_server() -> Iterator[TinyServer]:
    """SmolLM2 that drafts for itself."""
    path = fetch.ensure(catalog.load()["smollm2"].target)
    config = EngineConfig(path, path, policy="dyspec:8", num_ctx=2048, num_threads=1)
    with running(config, ServerConfig("smollm2")) as found:
        found.http.timeout = 600.0
        yield found


StartServer = Callable[..., TinyServer]


@pytest.fixture
def start_server(tiny_pair: TinyPair) -> Iterator[StartServer]:
    """`start_server(settings, **config)`: another server, until the test ends."""
    with ExitStack() as stack:

        def start(settings: ServerConfig, **changes: Any) -> TinyServer:
            values = {"num_ctx": 512, "num_conversations": 2, **changes}
            config = replace(tiny_config(*tiny_pair), **values)
            return stack.enter_context(running(config, settings))

        yield start


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take so long that others come in between."""
    step = Conversation._step

    def slow(self: Conversation, *arguments: Any) -> Any:
        time.sleep(0.02)
        return step(self, *arguments)

    monkeypatch.setattr(Conversation, "_step", slow)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """All steps but the first wait until this is set."""
    step, number, go_on = Conversation._step, count(), threading.Event()

    def waiting(self: Conversation, *arguments: Any) -> Any:
        assert next(number) == 0 or go_on.wait(30)
        return step(self, *arguments)

    monkeypatch.setattr(Conversation, "_step", waiting)
    return go_on
