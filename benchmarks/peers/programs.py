"""llama.cpp's programs: how they are started, and how they tell what they did.

Every run is a process of its own, so that nothing is left over from the one before.  Tokens whose
pass lies outside the time that a program prints are not counted against that time.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.peers.settings import Axis, Settings, words
from dyspec_edge.errors import DyspecError

START_SECONDS = 600
"""How long a server may take to load its models."""

_END = "\n\n\n\n"


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt as everybody gets it.

    Attributes:
        tokens: its ids, the chat template applied.
        text: what llama.cpp cuts into exactly these ids.
        shown: what the ids look like one by one, special ones included.
        messages: what our engine makes them of.
        num_tokens: of the reply; a program may overshoot by one draft.
    """

    tokens: tuple[int, ...]
    text: str
    shown: str
    messages: list[dict[str, str]]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        tokens: ids of the reply, or None where only its text is known.
        text: the reply.
        is_over: whether an end token ended it.
        timed_tokens, seconds: tokens whose passes fell into `seconds`, an end token as well as any
            other; the prompt apart.
        drafted, accepted: tokens.
    """

    tokens: tuple[int, ...] | None
    text: str
    is_over: bool
    timed_tokens: int
    seconds: float
    drafted: int
    accepted: int


class Peer(Protocol):
    """Somebody who generates."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def axes(self) -> Sequence[Axis]:
        """The settings to search, in this order."""

    def run(self, task: Task, settings: Settings) -> Outcome:
        """One reply.

        Raises:
            DyspecError: the program fails, or read another prompt.
        """


@dataclass(frozen=True, slots=True)
class OneShot:
    """A program that reads a prompt from a file, and prints the reply and its figures.

    Attributes:
        flags: what it always gets.
        num_free: tokens of the reply that it draws from the prompt's own pass, outside its time.
    """

    name: str
    program: Path
    flags: Sequence[str]
    axes: Sequence[Axis]
    num_free: int

    def run(self, task: Task, settings: Settings) -> Outcome:
        """One process."""
        fixed = [str(self.program), *self.flags, "--temp", "0", "--top-k", "1", "--no-escape"]
        with tempfile.TemporaryDirectory() as directory:
            prompt = Path(directory) / "prompt.txt"
            # The programs take one newline off the end.
            prompt.write_bytes(task.text.encode() + b"\n")
            # They stop only when there are more tokens than asked for.
            limit = ["-n", str(task.num_tokens - 1)]
            command = [*fixed, *words(self.axes, settings), *limit, "-f", str(prompt)]
            done = subprocess.run(command, capture_output=True, check=False)
        output, log = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        if done.returncode:
            raise _failure(self.name, f"status {done.returncode}", log)
        return parse_one_shot(self.name, output, log, task, num_free=self.num_free)


def parse_one_shot(name: str, output: str, log: str, task: Task, *, num_free: int) -> Outcome:
    """What a one-shot program's stdout and stderr tell.

    Raises:
        DyspecError: figures are missing, or the prompt is not the one that was given.
    """
    figures = {}
    for figure, pattern in {
        "read": r"encoded +(\d+) tokens",
        "generated": r"decoded +(\d+) tokens",
        "seconds": r"decoded +\d+ tokens in +([\d.]+) seconds",
        "drafted": r"n_drafted += (\d+)",
        "accepted": r"n_accept += (\d+)",
    }.items():
        match = re.search(pattern, log)
        if match is None:
            raise _failure(name, f"no figure for tokens {figure}", log)
        figures[figure] = float(match[1])
    before = f"\n\n{task.shown}"
    if not output.startswith(before) or figures["read"] != len(task.tokens):
        raise DyspecError(
            f"{name} read another prompt: {figures['read']:.0f} tokens, not {len(task.tokens)}"
        )
    return Outcome(
        tokens=None,
        text=output.removeprefix(before).removesuffix(_END),
        is_over=figures["generated"] < task.num_tokens,
        timed_tokens=int(figures["generated"]) - num_free,
        seconds=figures["seconds"],
        drafted=int(figures["drafted"]),
        accepted=int(figures["accepted"]),
    )


@dataclass(frozen=True, slots=True)
class Server:
    """llama-server: a process for each reply, asked over HTTP with token ids."""

    name: str
    program: Path
    flags: Sequence[str]
    axes: Sequence[Axis]

    def run(self, task: Task, settings: Settings) -> Outcome:
        """One process, one request."""
        fixed = [str(self.program), *self.flags, "-np", "1", "--no-ui", "--cache-ram", "0"]
        request = {
            "prompt": task.tokens,
            "n_predict": task.num_tokens,
            "temperature": 0,
            "top_k": 1,
            "cache_prompt": False,
            "return_tokens": True,
        }
        with _serving(self.name, [*fixed, *words(self.axes, settings)]) as address:
            body = json.dumps(request).encode()
            headers = {"Content-Type": "application/json"}
            post = urllib.request.Request(f"{address}/completion", body, headers)
            with urllib.request.urlopen(post) as response:
                reply = json.load(response)
        timings, num_read = reply["timings"], reply["tokens_evaluated"]
        if num_read != len(task.tokens):
            raise DyspecError(
                f"{self.name} read another prompt: {num_read} tokens, not {len(task.tokens)}"
            )
        return Outcome(
            tokens=tuple(reply["tokens"]),
            text=reply["content"],
            is_over=reply["stop_type"] == "eos",
            timed_tokens=timings["predicted_n"] - 1,  # the first comes with the prompt
            seconds=timings["predicted_ms"] / 1e3,
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
        )


@contextmanager
def _serving(name: str, command: Sequence[str]) -> Iterator[str]:
    """The address of a server that has loaded its models."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    with tempfile.TemporaryFile() as log:
        whole = [*command, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(whole, stdout=log, stderr=log)
        try:
            while not _is_ready(address):
                if process.poll() is not None:
                    log.seek(0)
                    text = log.read().decode("utf-8", "replace")
                    raise _failure(name, f"status {process.returncode}", text)
                if time.monotonic() > deadline:
                    raise DyspecError(f"{name} has not loaded after {START_SECONDS} s")
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health"):
            return True
    except urllib.error.URLError:  # not listening yet, or still loading
        return False


def _failure(name: str, what: str, log: str) -> DyspecError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return DyspecError(f"{name}: {what}; its last line: {lines[-1] if lines else '(none)'}")
