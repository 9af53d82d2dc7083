"""Devices of other machines: what is said of servers that cannot be used, and texts over two.

The last tests run where llama.cpp has its client (CMAKE_ARGS="-DGGML_RPC=on") and RPC_SERVER names
its ggml-rpc-server.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dyspec_edge.engine import SamplingParams
from dyspec_edge.errors import DeviceError
from dyspec_edge.llama import gpu_devices, rpc
from tests.conftest import TinyPair
from tests.engines import opened

PROMPT = "the tree is on"
GREEDY = SamplingParams(temperature=0)
SERVER = os.environ.get("RPC_SERVER")

Answering = Callable[[bytes | None], str]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Servers that answer anything by some bytes, None being silence; their endpoints."""
    with ExitStack() as stack:

        def serve(answer: bytes | None) -> str:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def one() -> None:
                client, _ = listening.accept()
                stack.callback(client.close)
                with suppress(OSError):  # whoever has seen enough may be gone
                    client.recv(100)
                    if answer is not None:
                        client.sendall(answer)
                        client.shutdown(socket.SHUT_WR)

            thread = threading.Thread(target=one, daemon=True)
            thread.start()
            return f"127.0.0.1:{listening.getsockname()[1]}"

        yield serve


def hello(major: int, minor: int) -> bytes:
    return (28).to_bytes(8, "little") + bytes([major, minor, 0]) + bytes(25)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (hello(6, 3), r"speaks version 6\.3 of the protocol, this llama\.cpp 7\.0"),
        (hello(7, 1), r"speaks version 7\.1"),
        (b"HTTP/1.1 400 Bad Request\r\n" * 4, "is no rpc-server of this llama.cpp"),
        (b"", "is no rpc-server of this llama.cpp"),
        (None, "does not answer; it serves one program at a time"),
    ],
)
def test_servers_that_cannot_be_used(
    answer: bytes | None, said: str, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp would end the process at each."""
    monkeypatch.setattr(rpc, "_registry", lambda: 1)
    monkeypatch.setattr(rpc, "TIMEOUT", 0.3)
    endpoint = answering(answer)
    with pytest.raises(DeviceError, match=said) as raised:
        rpc.connect(endpoint)
    assert endpoint in str(raised.value)


@pytest.mark.parametrize("endpoint", ["", "here", "here:", ":1", "here:x", "here:0", "here:65536"])
def test_what_is_no_server(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_registry", lambda: 1)
    with pytest.raises(DeviceError, match="a server is HOST:PORT"):
        rpc.connect(endpoint)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_registry", lambda: 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DeviceError, match=f"no rpc-server at 127.0.0.1:{port} .*refused"):
        rpc.connect(f"127.0.0.1:{port}")


@pytest.mark.skipif(rpc.is_available(), reason="this llama.cpp has the client")
def test_a_build_without_the_client(tiny_pair: TinyPair) -> None:
    with (
        pytest.raises(DeviceError, match=r"built without RPC.*-DGGML_RPC=on"),
        opened(*tiny_pair, rpc=("127.0.0.1:50052",)),
    ):
        pass


@pytest.fixture
def servers() -> Iterator[tuple[list[subprocess.Popen[bytes]], tuple[str, ...]]]:
    """Two servers of one thread each, and their endpoints."""
    if SERVER is None or not rpc.is_available():
        pytest.skip("needs llama.cpp with RPC and its ggml-rpc-server in RPC_SERVER")
    started, endpoints = [], []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        command = [SERVER, "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        endpoints.append(f"127.0.0.1:{port}")
        _wait_for(port)
    yield started, tuple(endpoints)
    for server in started:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("policy", ["none", "dyspec:8", "chain:3", "priced"])
def test_texts_are_those_of_this_machine(
    policy: str, tiny_pair: TinyPair, servers: tuple[object, tuple[str, ...]]
) -> None:
    with opened(*tiny_pair, policy="none") as engine:
        plain = engine.generate(PROMPT, sampling=GREEDY, max_tokens=60).text
    endpoints = servers[1]
    with opened(*tiny_pair, policy=policy, rpc=endpoints) as engine:
        notices = " ".join(engine.notices)
        reply = engine.generate(PROMPT, sampling=GREEDY, max_tokens=60)
        assert reply.text == plain
        assert reply.stats.draft_tokens > 0 or policy in ("none", "priced")
    assert f"{endpoints[0]}, {endpoints[1]}: target layers all" in notices
    assert not {device.description for device in gpu_devices()} & set(endpoints)
    with opened(*tiny_pair, policy=policy) as engine:  # in the same process, and not over there
        assert engine.generate(PROMPT, sampling=GREEDY, max_tokens=60).text == plain


def test_a_server_that_goes_away_ends_the_program_in_one_line(
    tiny_pair: TinyPair, servers: tuple[list[subprocess.Popen[bytes]], tuple[str, ...]]
) -> None:
    started, endpoints = servers
    code = (
        "import sys\nfrom dyspec_edge import Engine, EngineConfig\n"
        "engine = Engine.load(EngineConfig(sys.argv[1], sys.argv[2], rpc=tuple(sys.argv[3:])))\n"
        "for chunk in engine.stream('the tree', max_tokens=-1):\n    print('x', flush=True)\n"
    )
    command = [sys.executable, "-c", code, *map(str, tiny_pair), *endpoints]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=Path.cwd()) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"x\n"
        started[1].kill()
        _, complaint = program.communicate(timeout=60)
    assert program.returncode == 1
    assert complaint.decode() == (
        "Error: an rpc-server went away, and a part of the model with it; start both programs "
        "again\n"
    )
