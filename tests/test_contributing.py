"""CONTRIBUTING.md is right: its files exist, and a prompt walks through the functions it names."""

from __future__ import annotations

import ast
import re
import sys
import threading
from pathlib import Path
from types import FrameType

from click.testing import CliRunner

from dyspec_edge.cli import main
from tests.conftest import TinyPair

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOPS = re.findall(r"^\| (\d+) \| `([\w./]+)` \| `(\w+)` \|", TEXT, re.MULTILINE)


def defines(path: Path, name: str) -> bool:
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return bool(re.search(rf"^\w[\w *]*\b{name}\(", source, re.MULTILINE))
    nodes = ast.walk(ast.parse(source))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in nodes)


def test_the_walk_has_at_most_ten_hops_of_functions_that_exist() -> None:
    assert [int(number) for number, _, _ in HOPS] == list(range(1, len(HOPS) + 1))
    assert 5 < len(HOPS) <= 10
    missing = [(file, name) for _, file, name in HOPS if not defines(ROOT / file, name)]
    assert not missing


def test_files_and_folders_exist() -> None:
    paths = re.findall(r"`((?:dyspec_edge|native|tests)/[\w./]+)`", TEXT)
    assert len(paths) > len(HOPS)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_prompt_walks_that_way(tiny_pair: TinyPair) -> None:
    called: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            hop = (frame.f_code.co_filename, frame.f_code.co_name)
            if hop in wanted and hop not in called:
                called.append(hop)

    wanted = [(str(ROOT / file), name) for _, file, name in HOPS if file.endswith(".py")]
    args = ["chat", "-m", str(tiny_pair.target), "-md", str(tiny_pair.draft), "-n", "8"]
    args += ["--policy", "dyspec:8", "-c", "256", "-t", "1"]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        result = CliRunner().invoke(main.cli, args, input="the tree is\n")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert result.exit_code == 0, result.output
    assert called == wanted
