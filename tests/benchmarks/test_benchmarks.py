"""The benchmark programs on generated models: they run, and their last lines are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.race import take_turns
from benchmarks.workbench import Engines
from tests.conftest import TinyPair

PROMPTS = ("writing", "writing", "code_completion")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"id": f"p/{i}", "category": category, "turns": [f"the cat sat on mat {i}"]}
        for i, category in enumerate(PROMPTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def run(pair: TinyPair, prompts: Path, command: str, *options: str, tokens: int = 12) -> Any:
    """The JSON document of one command."""
    models = ["-m", str(pair.target), "-md", str(pair.draft), "-t", "1", "-c", "512"]
    common = ["--prompts", str(prompts), "--tokens", str(tokens)]
    result = CliRunner().invoke(main, [command, *models, *common, *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_overhead_has_all_parts(tiny_pair: TinyPair, prompts: Path) -> None:
    lengths = ("--lengths", "40", "--rounds", "1", "--policy", "dyspec:8")
    found = run(tiny_pair, prompts, "overhead", *lengths)
    assert [cell["chain"] for cell in found["cells"]] == ["T = 0", "T = 0.8, defaults"]
    for cell in found["cells"]:
        seconds = cell["seconds"]
        assert 0 < seconds["python"] < seconds["step"]
        assert 0 < seconds["orchestration"] < seconds["step"]


def test_plain_decoding_writes_what_a_bare_loop_does(tiny_pair: TinyPair, prompts: Path) -> None:
    found = run(tiny_pair, prompts, "plain")
    assert json.dumps(found).count("true") >= 1
    assert "false" not in json.dumps(found)


def test_a_race_is_even_in_tokens(tiny_pair: TinyPair, prompts: Path) -> None:
    found = run(tiny_pair, prompts, "race", "--policy", "chain:3", tokens=30)
    speedups = found["speedups"]
    assert {name: mean["pairs"] for name, mean in speedups["groups"].items()} == {
        "prose": 2,
        "code": 1,
    }
    assert 0.05 < speedups["mean_of_pairs"]["value"] < 20


def test_near_ties_of_f32_are_none(tiny_pair: TinyPair, prompts: Path) -> None:
    found = run(tiny_pair, prompts, "near-ties", "--category", "writing", "--each", "1")
    assert {policy["flips"] for policy in found["policies"].values()} == {0}


def test_whoever_has_written_less_goes_next() -> None:
    order = []

    def side(name: str, steps: list[int]) -> Iterator[list[int]]:
        for count in steps:
            order.append(name)
            yield [7] * count

    sides = {"a": side("a", [1, 1, 1, 1, 1, 1]), "b": side("b", [1, 3, 1])}
    found = take_turns(sides, 6)
    assert "".join(order) == "ababaabaa"
    assert [count for count, _ in found["b"].steps] == [1, 3, 1]
    assert found["a"].tokens == [7] * 6


def test_both_ways_to_candidates_are_timed(tiny_pair: TinyPair, prompts: Path) -> None:
    found = run(tiny_pair, prompts, "device", tokens=3)
    assert {len(times) for cell in found["seconds"].values() for times in cell.values()} == {3}


def test_a_finished_run_is_not_done_again(
    tiny_pair: TinyPair, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ("-o", str(tmp_path / "journal"))
    first = run(tiny_pair, prompts, "race", "--policy", "chain:3", *kept)
    monkeypatch.setattr(Engines, "get", lambda *_: pytest.fail("run again"))
    assert run(tiny_pair, prompts, "race", "--policy", "chain:3", *kept) == first
