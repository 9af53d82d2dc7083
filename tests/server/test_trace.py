from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dyspec_edge.cli.main import cli
from dyspec_edge.errors import DyspecError
from dyspec_edge.server.trace import write_trace
from tests.conftest import TinyPair
from tests.example_steps import example_steps

NASTY = "</script><script>alert(1)</script><!-- \u2028\u2029 \ud800 {{script}} \\u003c 木 &amp; '\""


def document(prompt: str) -> dict[str, object]:
    return {
        "prompt": prompt,
        "model": "tiny",
        "settings": {"temperature": 0.0},
        "steps": example_steps("One step and another."),
        "timings": {"predicted_n": 6},
    }


def embedded(page: str) -> str:
    found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_page_holds_the_document(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    write_trace(document("Count."), path)
    assert json.loads(embedded(path.read_text(encoding="utf-8"))) == document("Count.")


def test_no_text_gets_out_of_its_script(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    write_trace(document("plain"), path)
    plain = path.read_text(encoding="utf-8")
    write_trace(document(NASTY), path)
    nasty = path.read_text(encoding="utf-8")
    assert json.loads(embedded(nasty))["prompt"] == NASTY
    assert nasty.lower().count("<script") == plain.lower().count("<script")
    assert nasty.count("<!--") == plain.count("<!--")
    assert "\u2028" not in nasty.replace(plain, "")
    assert embedded(nasty).isascii()


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    write_trace(document("Count."), path)
    page = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "connect-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []


def test_an_infinite_figure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_trace({"timings": {"seconds": float("inf")}}, tmp_path / "trace.html")


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DyspecError, match=r"cannot write the trace .*missing.*no such file"):
        write_trace(document("Count."), tmp_path / "missing" / "trace.html")


def test_the_command_writes_the_trees_of_a_reply(tmp_path: Path, tiny_pair: TinyPair) -> None:
    path = tmp_path / "trace.html"
    models = ["-m", str(tiny_pair.target), "-md", str(tiny_pair.draft), "-t", "1", "-c", "512"]
    options = ["--policy", "dyspec:8", "--seed", "1", "-n", "24", "-o", str(path)]
    result = CliRunner().invoke(cli, ["trace", *models, *options, "the tree is on"])
    assert result.exit_code == 0, result.output
    found = json.loads(embedded(path.read_text(encoding="utf-8")))
    assert found["prompt"] == "the tree is on"
    assert [step["index"] for step in found["steps"]] == list(range(len(found["steps"])))
    assert sum(len(step["emitted"]) for step in found["steps"]) >= 24
    assert any(len(step["nodes"]) > 1 for step in found["steps"])
    assert found["timings"]["predicted_n"] == 24
    assert found["settings"]["seed"] == 1
