"""`-md self`: the target's copy is made once, by a process that leaves nothing when it is ended."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dyspec_edge import Engine, EngineConfig, SamplingParams
from dyspec_edge.cli.main import cli
from dyspec_edge.errors import DownloadError, DyspecError, ModelFileError
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.load import self_draft
from dyspec_edge.load.self_draft import Recipe, ensure, make, place
from tests.conftest import TinyPair

EXACT: dict[str, Any] = {
    "num_threads": 1, "num_ctx": 256, "flash_attn": "off", "cache_type_k": "f32",
    "cache_type_v": "f32",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A maker that says a size, writes a little, and goes on until it is ended."""
    code = (
        "import sys, time, threading\n"
        "from pathlib import Path\n"
        "from dyspec_edge.llama import quantization as q\n"
        "def slow(model, out, kind, **_):\n"
        "    out.write_bytes(b'GGUF'); time.sleep(60)\n"
        "q.size_of_copy, q.quantize = lambda *_: 8, slow\n"
        "q._main(*sys.argv[1:])\n"
    )
    real = subprocess.Popen

    def start(command: list[str], **settings: Any) -> subprocess.Popen[str]:
        return real([command[0], "-c", code, *command[3:]], **settings)

    monkeypatch.setattr(subprocess, "Popen", start)


def parts(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.part"))


def test_the_copy_is_smaller_and_made_once(tiny_pair: TinyPair, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    path = ensure(tiny_pair.target, lambda label, done: seen.append((label, done)))
    assert path.parent == tmp_path / "cache" / "self"
    whole, copy = inspect_file(tiny_pair.target), inspect_file(path)
    assert copy.weights_bytes < 0.7 * whole.weights_bytes
    assert copy.tokens == whole.tokens
    assert all(0 <= done <= 1 for _label, done in seen)
    before = path.stat().st_mtime_ns
    assert ensure(tiny_pair.target) == path
    assert path.stat().st_mtime_ns == before
    assert not parts(tmp_path)


def test_the_key_is_content_and_recipe(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place(tiny_pair.target)
    moved = tmp_path / tiny_pair.target.name
    shutil.copy(tiny_pair.target, moved)
    assert place(moved) == first
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    moved.write_bytes(data)
    assert place(moved) != first
    monkeypatch.setattr(self_draft, "RECIPE", replace(self_draft.RECIPE, dropped=(1,)))
    assert place(tiny_pair.target) != first


def test_layers_can_be_left_out(tiny_pair: TinyPair, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    make(tiny_pair.target, out, Recipe("Q3_K_S", (1,)))
    assert inspect_file(out).num_layers == (inspect_file(tiny_pair.target).num_layers or 0) - 1


def test_the_text_is_the_target_s_own(tiny_pair: TinyPair) -> None:
    texts = []
    for draft, policy in (("none", "none"), ("self", "chain:3")):
        config = EngineConfig(tiny_pair.target, Path(draft), policy=policy, **EXACT)
        with Engine.load(config) as engine:
            sampling = SamplingParams(temperature=1.0, seed=3)
            reply = engine.generate("the tree", sampling=sampling, max_tokens=24)
            texts.append(reply.text)
    assert texts[0] == texts[1]
    assert reply.stats.accepted_tokens > 0


def test_the_commands_share_the_copy(tiny_pair: TinyPair, cache: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, list(words))
        assert result.exit_code == 0, result.output
        return result.stdout

    made = run("draft", "self", "-m", str(tiny_pair.target))
    (path,) = (cache / "self").iterdir()
    assert str(path) in made
    before = path.stat().st_mtime_ns
    words = ("-md", "self", "-t", "1", "-c", "256", "-n", "4", "--temp", "0", "the tree")
    run("complete", "-m", str(tiny_pair.target), *words)
    assert [path.stat().st_mtime_ns] == [p.stat().st_mtime_ns for p in path.parent.iterdir()]
    assert path.stat().st_mtime_ns == before
    other = CliRunner().invoke(cli, ["draft", "self", "-m", str(tiny_pair.target), "--drop", "1"])
    assert other.exit_code == 2
    assert "-o" in other.output


def test_what_is_no_target_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelFileError):
        ensure(broken)


def test_llama_cpp_s_refusal_is_one_line(tiny_pair: TinyPair, tmp_path: Path) -> None:
    """A folder that is not there."""
    with pytest.raises(ModelFileError) as error:
        make(tiny_pair.target, tmp_path / "nowhere" / "out.gguf", Recipe())
    assert "\n" not in str(error.value)
    assert not parts(tmp_path)


@pytest.mark.usefixtures("slow")
def test_an_interrupt_leaves_nothing(tiny_pair: TinyPair, tmp_path: Path) -> None:
    def stop(_label: str, done: float) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tiny_pair.target, stop)
    assert not parts(tmp_path)
    assert not place(tiny_pair.target).exists()


def test_a_killed_parent_takes_the_maker_along(tiny_pair: TinyPair, tmp_path: Path) -> None:
    """Its stdin ends with it; whoever is in llama.cpp then cannot be asked."""
    out = tmp_path / "out.part"
    code = (
        "import sys, time\n"
        "from dyspec_edge.llama import quantization as q\n"
        "def slow(model, out, kind, **_):\n"
        "    out.write_bytes(b'GGUF'); time.sleep(60)\n"
        "q.size_of_copy, q.quantize = lambda *_: 8, slow\n"
        "q._main(*sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, str(tiny_pair.target), str(out), "Q2_K", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)  # the terminal's, which is for the parent
        time.sleep(0.1)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 1
    assert not out.exists()


def test_no_space_is_said_before_anything_is_written(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(DownloadError, match="not enough space"):
        ensure(tiny_pair.target)
    assert not parts(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
def test_a_disk_that_fills_up_leaves_nothing(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp does not notice: what it wrote is looked at."""
    real = subprocess.Popen

    def start(command: list[str], **settings: Any) -> subprocess.Popen[str]:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

        return real(command, preexec_fn=limit, **settings)

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(DyspecError) as error:
        ensure(tiny_pair.target)
    assert "\n" not in str(error.value)
    assert not parts(tmp_path)
    assert not place(tiny_pair.target).exists()


def test_parts_of_processes_that_were_killed_are_swept(tiny_pair: TinyPair, cache: Path) -> None:
    directory = cache / "self"
    directory.mkdir(parents=True)
    old, new = directory / "a.gguf.1.part", directory / "b.gguf.2.part"
    for part in (old, new):
        part.write_bytes(b"GGUF")
    os.utime(old, (1, 1))
    ensure(tiny_pair.target)
    assert parts(cache) == [new.name]
