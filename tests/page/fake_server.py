"""A server that knows the page's part of the API and answers from a script."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dyspec_edge
from tests.example_steps import Step, example_steps

PAGE = Path(dyspec_edge.__file__).parent / "server" / "static" / "index.html"


@dataclass
class Reply:
    """What the server answers to the next completions.

    `broken_after` ends the connection after so many steps; `error_after` sends an error event.
    """

    text: str
    thoughts: str = ""
    pause: float = 0.0
    status: int = 200
    retry_after: str | None = None
    broken_after: int | None = None
    error_after: int | None = None
    finish_reason: str = "stop"
    trees: bool = True


@dataclass
class Script:
    """The reply, the key that is asked for, and what came in."""

    reply: Reply
    key: str | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client has gone before its reply was complete."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: object) -> None:  # noqa: ARG002 - quiet
        return

    def _send(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, status: int, answer: object, **headers: str) -> None:
        self._send(status, "application/json", json.dumps(answer).encode(), **headers)

    def _authorized(self) -> bool:
        key = self.server.script.key
        if key is None or self.headers["Authorization"] == f"Bearer {key}":
            return True
        self._json(401, {"error": {"message": "invalid API key", "type": "authentication_error"}})
        return False

    def do_GET(self) -> None:
        if self.path == "/":
            self._send(200, "text/html; charset=utf-8", PAGE.read_bytes())
        elif not self._authorized():
            return
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "qwen2.5-coder-1.5b"}]})
        elif self.path == "/props":
            self._json(200, {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 1})
        else:
            self._json(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._authorized():
            return
        self.server.script.requests.append(body)
        reply = self.server.script.reply
        if reply.status != 200:
            headers = {} if reply.retry_after is None else {"Retry_After": reply.retry_after}
            self._json(reply.status, {"error": {"message": "4 requests are waiting"}}, **headers)
            return
        try:
            self._stream(reply)
        except (BrokenPipeError, ConnectionResetError):
            self.server.script.left.set()

    def _event(self, chunk: object) -> None:
        text = chunk if isinstance(chunk, str) else json.dumps(chunk)
        self.wfile.write(f"data: {text}\n\n".encode())

    def _chunk(
        self, delta: dict[str, str], *, reason: str | None = None, step: Step | None = None
    ) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"object": "chat.completion.chunk", "choices": [choice]}
        self._event(chunk if step is None else chunk | {"step": step})

    def _step_chunk(self, step: Step, *, trees: bool) -> None:
        text = "".join(token["text"] for token in step["emitted"])
        self._chunk({"content": text}, step=step if trees else None)

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._chunk({"role": "assistant"})
        if reply.thoughts:
            self._chunk({"reasoning_content": reply.thoughts})
        steps = example_steps(reply.text)
        for step in steps:
            if step["index"] == reply.broken_after:
                return
            if step["index"] == reply.error_after:
                self._event({"error": {"message": "the target's pass failed"}})
                return
            self._step_chunk(step, trees=reply.trees)
            time.sleep(reply.pause)
        self._chunk({}, reason=reply.finish_reason)
        tokens = sum(len(step["emitted"]) for step in steps)
        usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": tokens + 12}
        self._event({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        self._event("[DONE]")


class FakeServer(ThreadingHTTPServer):
    """Serves on a free port of this machine until `shutdown`."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"
