"""`dyspec-edge calibrate` on tiny models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dyspec_edge.cli import main
from dyspec_edge.decode.cost import DRAFT_SIZES, TARGET_SIZES
from tests.conftest import TinyPair

Run = Callable[..., Result]


@pytest.fixture
def run(empty_home: Path) -> Run:
    assert empty_home.exists()

    def invoke(*args: str) -> Result:
        return CliRunner().invoke(main.cli, ["calibrate", "-c", "256", "-t", "1", *args])

    return invoke


def test_tables_and_a_verdict(run: Run, tiny_pair: TinyPair) -> None:
    result = run("-m", str(tiny_pair.target), "-md", str(tiny_pair.draft))
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["rows", "target", "pass", "of", "one", "row", "draft", "pass"]
    sizes = [int(line.split()[0]) for line in lines[1 : lines.index("")]]
    assert set(sizes) <= set(TARGET_SIZES)
    assert sizes[0] == 1
    assert "1.00x" in lines[1]
    assert lines[lines.index("") + 1].split()[-4:] == ["0.5", "0.7", "0.8", "0.9"]
    assert "tokens drafted by the draft model" in result.stdout
    assert "tokens copied from the text" in result.stdout
    assert lines[-1].startswith("this target on this machine is ")


def test_one_json_document(run: Run, tiny_pair: TinyPair) -> None:
    result = run("-m", str(tiny_pair.target), "-md", str(tiny_pair.draft), "--json")
    document = json.loads(result.stdout)
    assert set(map(int, document["target_seconds"])) <= set(TARGET_SIZES)
    assert set(map(int, document["draft_seconds"])) <= set(DRAFT_SIZES)
    assert document["target_seconds"]["1"] > 0 < document["draft_seconds"]["1"]
    assert document["measured"] is True
    assert document["verdict"]
    alone = json.loads(run("-m", str(tiny_pair.target), "--json").stdout)
    assert alone["draft_seconds"] is None


def test_curves_are_kept_for_the_next_load(run: Run, tiny_target: Path, empty_home: Path) -> None:
    assert run("-m", str(tiny_target), "--json").exit_code == 0
    kept = list((empty_home / "cache" / "curves").iterdir())
    assert len(kept) == 1, "the curve; nothing was learned"


@pytest.mark.parametrize("name", ["curves.png", "curves.svg"])
def test_a_plot(run: Run, tiny_pair: TinyPair, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    result = run("-m", str(tiny_pair.target), "-md", str(tiny_pair.draft), "--plot", str(path))
    assert result.exit_code == 0, result.stderr
    start = path.read_bytes()[:300]
    assert (
        start.startswith(b"\x89PNG")
        if name.endswith("png")
        else b"<svg" in start or b"<?xml" in start
    )


def test_a_plot_that_cannot_be_drawn_is_said_first(
    run: Run, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, message in (
        ("curves.gif", "must end in .png or .svg"),
        ("nowhere/curves.png", "there is no directory"),
    ):
        result = run("-m", str(tiny_target), "--plot", str(tmp_path / name))
        assert result.exit_code == 2
        assert message in result.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("-m", str(tiny_target), "--plot", str(tmp_path / "curves.png"))
    assert result.exit_code == 2
    assert "pip install 'dyspec-edge[plots]'" in result.stderr


def test_a_state_that_is_copied_has_curves(run: Run, tiny_recurrent: Path) -> None:
    result = run("-m", str(tiny_recurrent))
    assert result.exit_code == 0
    assert "target" in result.stdout
