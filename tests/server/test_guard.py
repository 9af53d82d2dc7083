"""Who is let in: keys, names of hosts, pages elsewhere, sizes, slowness."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dyspec_edge.llama import Model
from dyspec_edge.server import connection, guard
from dyspec_edge.server.guard import Rules
from dyspec_edge.server.run import ServerConfig
from tests.server.conftest import StartServer, TinyServer
from tests.server.test_scheduler import eventually

BODY = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 3}
CHAT = "/v1/chat/completions"


def connected(server: TinyServer) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_without_the_key_only_the_page_and_the_health(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny", Rules(keys=("secret", "other"))))
    for path in ("/", "/health"):
        assert server.http.get(path).status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "secret"},
        {"X-Api-Key": "secre"},
        {"Authorization": "Basic secret"},
        {"Authorization": "Bearer secret secret"},
    ):
        for answer in (
            server.post(CHAT, BODY, headers=headers),
            server.http.get("/v1/models", headers=headers),
            server.http.get("/nowhere", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert "secret" not in answer.text
    assert server.post(CHAT, BODY, headers={"Authorization": "Bearer other"}).status_code == 200
    assert server.http.get("/v1/models", headers={"X-Api-Key": "secret"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:1", 200),
        ("app.localhost", 200),
        ("rebound.example", 403),
        ("127.0.0.1.example", 403),
        ("localhost.example:80", 403),
        ("", 403),
    ],
)
def test_on_loopback_only_its_names_are_answered(
    server: TinyServer, host: str, status: int
) -> None:
    assert server.http.get("/health", headers={"Host": host}).status_code == status


def test_pages_of_other_origins_may_not_ask(server: TinyServer) -> None:
    own = {"Origin": server.address}
    assert server.post(CHAT, BODY, headers=own).status_code == 200
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        answer = server.post(CHAT, BODY, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_cors_is_open_for_named_origins(start_server: StartServer) -> None:
    origin = "http://app.example"
    server = start_server(ServerConfig("tiny", Rules(keys=("k",), origins=(origin,))))
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answer = server.http.request("OPTIONS", CHAT, headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
    answer = server.post(CHAT, BODY, headers={"Origin": origin, "X-Api-Key": "k"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert server.post(CHAT, BODY, headers={"Origin": "http://b.example"}).status_code == 403


def test_large_bodies_are_refused_before_they_are_read(start_server: StartServer) -> None:
    server = start_server(ServerConfig("tiny", Rules(max_body=1000)))
    assert server.http.post(CHAT, content=b" " * 1001).status_code == 413

    def pieces() -> Iterator[bytes]:
        yield from (b" " * 600, b" " * 600)

    assert server.http.post(CHAT, content=pieces()).status_code == 413
    assert server.post(CHAT, BODY).status_code == 200


def test_slow_bodies_are_refused(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    with connected(server) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        client.sendall(head.encode() + b"{")
        started = time.monotonic()
        assert client.recv(100).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("after_an_answer", [False, True])
def test_slow_heads_are_cut_off(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, after_an_answer: bool
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.4)
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with connected(server) as client:
        if after_an_answer:
            client.sendall(head + b"\r\n")
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += client.recv(1000)
        started = time.monotonic()
        for byte in head:
            if select.select([client], [], [], 0.05)[0]:
                break
            client.sendall(bytes([byte]))
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
        assert client.recv(1000) == b""
        assert time.monotonic() - started < 5


def test_connections_without_a_word_are_cut_off(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with connected(server) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.usefixtures("slow_steps")
def test_a_long_reply_is_not_cut_off(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    story = {**BODY, "max_tokens": 200, "ignore_eos": True}
    with httpx.Client(base_url=server.address, timeout=30.0, trust_env=False) as client:
        answers = [client.post(CHAT, json=story) for _ in range(2)]
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [200, 200]


def test_the_log_shows_what_was_asked_only_if_it_may(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="dyspec_edge.server")
    secret = {**BODY, "user": "grüne Blätter\n\x1b[31m"}
    for log_content in (False, True):
        caplog.clear()
        server = start_server(ServerConfig("tiny", log_content=log_content))
        server.http.post(CHAT, content=json.dumps(secret, ensure_ascii=False).encode())
        assert eventually(lambda: len(caplog.records) == 1)
        line = caplog.records[0].getMessage()
        assert line.isprintable()
        assert CHAT in line
        assert ("the cat" in line) is ("grüne Blätter" in line) is log_content


def test_every_answer_has_the_headers_of_a_careful_server(server: TinyServer) -> None:
    page = server.http.get("/")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    for answer in (page, server.http.get("/nowhere"), server.post(CHAT, BODY)):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"


LONG = {"max_tokens": 1, "n_predict": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "long"}], **LONG}),
        ("/v1/completions", {"prompt": "long", **LONG}),
        ("/completion", {"prompt": "long", **LONG}),
        ("/tokenize", {"content": "long"}),
        ("/api/generate", {"prompt": "long", "raw": True, "options": {"num_predict": 1}}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "long"}]}),
    ],
)
def test_a_text_that_takes_long_to_tokenize_holds_nobody_up(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    begun, may_go_on, tokenize = threading.Event(), threading.Event(), Model.tokenize

    def slow(self: Model, text: str, **options: Any) -> list[int]:
        if "long" in text:
            begun.set()
            may_go_on.wait(10)
        return tokenize(self, text, **options)

    monkeypatch.setattr(Model, "tokenize", slow)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, path, body)
        try:
            assert begun.wait(10)
            assert server.http.get("/health", timeout=2).status_code == 200
        finally:
            may_go_on.set()
        assert asked.result().status_code == 200
