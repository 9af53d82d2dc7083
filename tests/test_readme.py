"""Every command and program of README.md works as typed, downloads and make targets excepted."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests import tiny
from tests.conftest import TinyPair

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LINES = [line.removeprefix("$ ") for _, text in BLOCKS for line in text.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("dyspec-edge ")]
SHORT = (["bench", "run"], ["bench", "fit-sequoia"])
FETCHES = ("--pair", "pull")
RUN = "import sys; from dyspec_edge.cli.main import main; sys.argv[0] = 'dyspec-edge'; main()"


@pytest.fixture
def desk(tmp_path: Path, tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the README names."""
    shutil.copy(tiny_pair.target, tmp_path / "target.gguf")
    shutil.copy(tiny_pair.draft, tmp_path / "draft.gguf")
    prompt = {"id": "1", "category": "qa", "turns": ["the tree"]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(prompt) + "\n")
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run(arguments: list[str], desk: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=desk,
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


SERVERS = [c for c in COMMANDS if c.startswith("dyspec-edge serve")]


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c not in SERVERS and not any(word in c for word in FETCHES)],
)
def test_command_works_as_typed(command: str, desk: Path) -> None:
    commands = [command]
    if command.startswith("dyspec-edge bench report"):  # of runs that were done before
        commands.insert(0, next(c for c in COMMANDS if c.startswith("dyspec-edge bench run")))
    for one in commands:
        arguments = shlex.split(one, comments=True)[1:]
        if arguments[0] in ("chat", "complete", "trace") or arguments[:2] in SHORT:
            arguments += ["-n", "16"]
        if arguments[:2] == ["draft", "trim"]:
            arguments[-1] = "300"  # the tiny draft has no more than 411 tokens
        result = run(["-c", RUN, *arguments], desk, typed="Hello\n")
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to end it with")
@pytest.mark.parametrize("command", [c for c in SERVERS if "--pair" not in c])
def test_server_serves_until_it_is_told_to_end(command: str, desk: Path) -> None:
    arguments = [sys.executable, "-c", RUN, *shlex.split(command, comments=True)[1:], "--port", "0"]
    with subprocess.Popen(arguments, cwd=desk, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if line.startswith("listening on "))
        with urlopen(f"{line.split()[2]}/v1/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "target"
        server.terminate()
        assert server.wait(30) == 0


def test_readme_shows_each_command_of_the_program() -> None:
    from dyspec_edge.cli.main import cli

    shown = {shlex.split(command, comments=True)[1] for command in COMMANDS}
    assert shown == set(cli.commands)


@pytest.mark.parametrize("example", [text for language, text in BLOCKS if language == "python"])
def test_python_example_works_as_typed(desk: Path, example: str) -> None:
    template = (ROOT / "tests/text/templates/qwen2.5.jinja").read_text(encoding="utf-8")
    tiny.write_model(desk / "target.gguf", chat_template=template)  # it knows tools
    result = run(["-c", example], desk)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_files_of_the_file_map_exist() -> None:
    (listing,) = [text for _, text in BLOCKS if "what people type" in text]
    names = re.findall(r"\b[a-z_]+\.(?:py|toml|md)\b|\b[a-z]+/", listing)
    rooms = [path for path in (ROOT / "dyspec_edge").iterdir() if path.is_dir()]
    places = [ROOT, ROOT / "dyspec_edge", *rooms, ROOT / "models", ROOT / "benchmarks"]
    missing = [name for name in names if not any((p / name).exists() for p in places)]
    assert names
    assert not missing
