"""Other servers over the same file: the same text, ends, counts and log-probabilities at T = 0.

CONTRIBUTING.md says how to run it.  A request is compared in whole and streamed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from dyspec_edge.files import catalog, fetch
from dyspec_edge.server import run
from dyspec_edge.server.run import ServerConfig
from tests import tiny
from tests.engines import tiny_config
from tests.server.conftest import running
from tests.server.test_load import TIE, margin

pytestmark = pytest.mark.peers

LLAMA_SERVER = os.environ.get("LLAMA_SERVER", "")
PEER_PYTHON = os.environ.get("LLAMA_CPP_PYTHON", "")
CLOSE = 1e-3
"""Of log-probabilities."""

HELLO = [{"role": "user", "content": "the tree is on"}]
TURNS = [
    {"role": "system", "content": "the leaf"},
    *HELLO,
    {"role": "assistant", "content": "in it"},
    {"role": "user", "content": "that was for you"},
]


class Reply(NamedTuple):
    """What is compared."""

    text: str
    reason: str
    usage: tuple[int, int] | None
    logprobs: list[float]
    top: list[list[float]]


@dataclass
class Peer:
    """A server that is asked."""

    name: str
    http: httpx.Client

    def ask(self, path: str, body: dict[str, Any], *, stream: bool) -> Reply:
        """The reply to a request, read as clients of its protocol do."""
        if stream and path.startswith("/v1/"):
            body = {**body, "stream_options": {"include_usage": True}}
        answer = self.http.post(path, json={**body, "stream": stream})
        assert answer.status_code == 200, (self.name, answer.text)
        if not stream:
            parts = [answer.json()]
        else:
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            parts = [json.loads(line) for line in lines if line != "[DONE]"]
        return _native(parts) if path == "/completion" else _openai(parts)


def _openai(parts: list[dict[str, Any]]) -> Reply:
    text, reason, usage = "", "", None
    likely: list[Any] = []
    logprobs: list[float] = []
    top: list[list[float]] = []
    for part in parts:
        if part.get("usage"):
            usage = part["usage"]["prompt_tokens"], part["usage"]["completion_tokens"]
        for choice in part["choices"]:
            message = choice.get("message") or choice.get("delta") or {}
            text += choice.get("text") or message.get("content") or ""
            reason = choice["finish_reason"] or reason
            found = choice.get("logprobs") or {}
            if found.get("content"):
                likely += found["content"]
            elif found.get("tokens"):
                logprobs += found["token_logprobs"]
                top += [sorted(some.values(), reverse=True) for some in found["top_logprobs"]]
    logprobs += [one["logprob"] for one in likely]
    top += [[other["logprob"] for other in one["top_logprobs"]] for one in likely]
    return Reply(text, reason, usage, logprobs, top)


def _native(parts: list[dict[str, Any]]) -> Reply:
    last = parts[-1]
    likely = [one for part in parts for one in part.get("completion_probabilities", ())]
    return Reply(
        "".join(part["content"] for part in parts),
        last["stop_type"] + last["stopping_word"],
        (last["tokens_evaluated"], last["tokens_predicted"]),
        [one["logprob"] for one in likely],
        [[other["logprob"] for other in one["top_logprobs"]] for one in likely],
    )


@contextmanager
def started(name: str, command: Callable[[int], list[str]], ready: str) -> Iterator[Peer]:
    """Another program's server, until the block ends."""
    with run.listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False
        ) as client:
            for _ in range(300):
                assert process.poll() is None, f"{name} ended: {command(port)}"
                try:
                    if client.get(ready).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.2)
            yield Peer(name, client)
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def target(tiny_dir: Path) -> Path:
    """Its template writes the beginning-of-text token: llama-cpp-python adds none to a chat."""
    template = "{{ bos_token }}" + tiny.CHATML
    return tiny.write_model(tiny_dir / "peers.gguf", chat_template=template)


@pytest.fixture(scope="module")
def ours(target: Path, tiny_dir: Path) -> Iterator[Peer]:
    draft = tiny.write_model(tiny_dir / "peers-draft.gguf", noise=0.05)
    config = tiny_config(target, draft, num_ctx=1024, num_conversations=2)
    with running(config, ServerConfig("tiny")) as found:
        yield Peer("dyspec-edge", found.http)


def llama_server_over(target: Path) -> AbstractContextManager[Peer]:
    if not LLAMA_SERVER:
        pytest.skip("LLAMA_SERVER names no llama-server")
    options = (
        "-fa off -ctk f32 -ctv f32 -t 1 -c 1024 -np 1 -ngl 0 --no-warmup "
        "--host 127.0.0.1 --alias tiny"
    )

    def command(port: int) -> list[str]:
        return [LLAMA_SERVER, "-m", str(target), *options.split(), "--port", str(port)]

    return started("llama-server", command, "/health")


def llama_cpp_python_over(target: Path) -> AbstractContextManager[Peer]:
    if not PEER_PYTHON:
        pytest.skip("LLAMA_CPP_PYTHON names no Python with llama-cpp-python[server]")
    options = (
        "--n_ctx 1024 --n_threads 1 --n_threads_batch 1 --type_k 0 --type_v 0 "
        "--logits_all true --host 127.0.0.1 --model_alias tiny"
    )

    def command(port: int) -> list[str]:
        module = [PEER_PYTHON, "-m", "llama_cpp.server", "--model", str(target)]
        return [*module, *options.split(), "--port", str(port)]

    return started("llama-cpp-python", command, "/v1/models")


@pytest.fixture(scope="module")
def llama_server(target: Path) -> Iterator[Peer]:
    with llama_server_over(target) as found:
        yield found


@pytest.fixture(scope="module")
def llama_cpp_python(target: Path) -> Iterator[Peer]:
    with llama_cpp_python_over(target) as found:
        yield found


CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": HELLO, "max_tokens": 24}),
    "chat turns": (CHAT, {"messages": TURNS, "max_tokens": 24}),
    "chat logprobs": (
        CHAT,
        {"messages": HELLO, "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
    ),
    "chat one token": (CHAT, {"messages": HELLO, "max_tokens": 1}),
    "completion": (COMPLETION, {"prompt": "the cat", "max_tokens": 24}),
    "completion logprobs": (COMPLETION, {"prompt": "the cat", "max_tokens": 12, "logprobs": 3}),
    "completion control tokens": (
        COMPLETION,
        {
            "prompt": "<|im_start|>user\nthe leaf<|im_end|>\n<|im_start|>assistant\n",
            "max_tokens": 9,
        },
    ),
}
NATIVE: dict[str, dict[str, Any]] = {
    "whole": {"prompt": "the cat", "n_predict": 24},
    "logprobs": {"prompt": "the cat", "n_predict": 12, "n_probs": 3},
    "ids": {"prompt": [1, 20, 21, 22], "n_predict": 12},
}


def check(ours: Peer, peer: Peer, path: str, body: dict[str, Any], *, usage: bool = True) -> Reply:
    # llama-cpp-python's server has a penalty by default.
    body = {"temperature": 0, "model": "tiny", "repeat_penalty": 1.0, **body}
    for stream in (False, True):
        own = ours.ask(path, body, stream=stream)
        other = peer.ask(path, body, stream=stream)
        where = f"{peer.name} {path} stream={stream}"
        assert own.text == other.text, where
        assert own.reason == other.reason, where
        if usage and other.usage is not None:
            assert own.usage == other.usage, where
        assert own.logprobs == pytest.approx(other.logprobs, abs=CLOSE), where
        assert len(own.top) == len(other.top), where
        for mine, theirs in zip(own.top, other.top, strict=True):
            assert mine == pytest.approx(theirs, abs=CLOSE), where
    return own


@pytest.mark.parametrize("name", REQUESTS)
def test_as_llama_server(ours: Peer, llama_server: Peer, name: str) -> None:
    path, body = REQUESTS[name]
    check(ours, llama_server, path, body)


@pytest.mark.parametrize("name", REQUESTS)
def test_as_llama_cpp_python(ours: Peer, llama_cpp_python: Peer, name: str) -> None:
    path, body = REQUESTS[name]
    check(ours, llama_cpp_python, path, body)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_reply_that_ends_by_itself(
    ours: Peer, llama_server: Peer, llama_cpp_python: Peer, path: str
) -> None:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "the cat"}
    ends = {**body, "logit_bias": {"2": 100}}
    assert check(ours, llama_cpp_python, path, ends).usage == (26 if path == CHAT else 8, 0)
    # It counts the token that ends the reply.
    check(ours, llama_server, path, ends, usage=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_is_gone_on_with(ours: Peer, llama_server: Peer, stream: bool) -> None:
    body = {"messages": TURNS[:-1], "max_tokens": 24, "temperature": 0, "model": "tiny"}
    own = ours.ask(CHAT, body, stream=stream)
    other = llama_server.ask(CHAT, body, stream=stream)
    # It repeats what was begun.
    assert own == other._replace(text=other.text.removeprefix("in it"))


@pytest.mark.parametrize("name", NATIVE)
def test_the_native_protocol(ours: Peer, llama_server: Peer, name: str) -> None:
    check(ours, llama_server, "/completion", NATIVE[name])


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/completion"])
def test_stop_strings(ours: Peer, llama_server: Peer, llama_cpp_python: Peer, path: str) -> None:
    body: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "the cat"}
    body |= {"max_tokens": 24}
    text = check(ours, llama_server, path, body).text
    for stop in ([text[5:7]], [text[9:14], "never"], [text[:1]]):
        check(ours, llama_server, path, {**body, "stop": stop})
        if path != "/completion":
            # It counts only the tokens whose text is shown.
            check(ours, llama_cpp_python, path, {**body, "stop": stop}, usage=False)


QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about a tree.",
    "Count from one to twenty.",
    "Explain what a compiler does.",
    "List five fruits and their colours.",
)


@pytest.mark.model
@pytest.mark.parametrize("over", [llama_server_over, llama_cpp_python_over])
@pytest.mark.parametrize("policy", ["none", "dyspec:8"])
def test_a_real_model(over: Callable[[Path], AbstractContextManager[Peer]], policy: str) -> None:
    """The same text, or another from where two tokens were nearly as likely."""
    path = fetch.ensure(catalog.load()["smollm2"].target)
    config = tiny_config(path, None if policy == "none" else path, policy=policy)
    fields = {"temperature": 0, "repeat_penalty": 1.0, "max_tokens": 60, "model": "tiny"}
    margins = []
    with over(path) as peer, running(config, ServerConfig("tiny")) as server:
        for question in QUESTIONS:
            body = {"messages": [{"role": "user", "content": question}], **fields}
            own = Peer("dyspec-edge", server.http).ask(CHAT, body, stream=False)
            other = peer.ask(CHAT, body, stream=False)
            # Not the counts: llama-server counts the token that ends a reply.
            if (own.text, own.reason) != (other.text, other.reason):
                found = server.chat(question, **fields, logprobs=True, top_logprobs=2)
                likely = found["choices"][0]["logprobs"]["content"]
                margins.append(margin(likely, other.text))
    print(f"{over.__name__}, {policy}: {margins} of {len(QUESTIONS)}")  # noqa: T201
    assert len(margins) < 3
    assert max(margins, default=0.0) < TIE
