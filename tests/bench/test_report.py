"""`dyspec-edge bench report`: its numbers against numbers worked out by hand; its plots."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dyspec_edge.bench.summary import Pair, compare, summarise
from dyspec_edge.cli import main
from tests.schemas import validate

Line = dict[str, Any]

GROUPS = {"coding": "code", "code_edit": "code", "qa": "qa"}
PARTS = ("target", "draft", "rows", "sampling", "overhead")


def a_line(
    policy: str,
    prompt: str,
    rate: float,
    *,
    category: str = "coding",
    number: int = 0,
    verify: str = "match",
    steps: int = 10,
    reading: float = 1.0,
    text: str = "0",
    **changes: Any,
) -> Line:
    """A run of 20 tokens at `rate` tokens a second, after `reading` seconds with the prompt."""
    drafted = 0 if policy == "none" else 40
    stats = {
        "seed": number, "policy": policy, "verify": verify, "temperature": 0.0,
        "prompt_tokens": 9, "generated_tokens": 20, "draft_tokens": drafted,
        "accepted_tokens": 20 - steps, "steps": steps, "block_efficiency": 20 / steps,
        "accept_length_histogram": [steps - 5, 5], "tokens_per_second": rate,
        "prefill_seconds": reading, "decode_seconds": 20 / rate, "draft_passes": drafted // 2,
        **{f"{part}_seconds": 20 / rate / 5 for part in PARTS},
    }  # fmt: skip
    return {
        "run": {
            "models": {"target": "a" * 64, "draft": "b" * 64},
            "settings": {"num_threads": 2, "num_ctx": None, "draft_temperature": None},
            "tokens": 20, "fresh": False, "prompt": prompt, "category": category,
            "group": GROUPS[category], "prompt_sha256": "c" * 64, "policy": policy,
            "verify": verify, "round": number, "sampling": {"temperature": 0.0, "seed": number},
            **changes,
        },
        "result": {
            "stats": stats, "finish_reason": "length", "tokens_sha256": text * 64,
            "request_seconds": 20 / rate + reading,
            "confidence": {"drafted": [0] * 8 + [20, 20], "accepted": [0] * 8 + [5, 15]},
            "learned": None, "basis": "T(1) 100 ms" if policy == "priced" else None, "order": 0,
            "load": 1.0, "at": "2026-01-02T03:04:05+0000", "machine": "a machine", "threads": 2,
            "versions": "1", "models": {"t.gguf": "a" * 64}, "commit": None, "command": "bench run",
        },
    }  # fmt: skip


LINES = [
    a_line("none", "p1", 10.0, steps=20),
    a_line("none", "p2", 20.0, steps=20),
    a_line("none", "p3", 10.0, category="qa", steps=20),
    a_line("none", "p3", 10.0, category="qa", steps=20, number=1),
    a_line("chain:4", "p1", 15.0, steps=8),
    a_line("chain:4", "p2", 40.0, steps=5),
    a_line("chain:4", "p3", 5.0, category="qa", steps=10, text="1"),
    a_line("chain:4", "p3", 5.0, category="qa", steps=10, number=1),
    a_line("chain:2", "p1", 12.0),
    a_line("chain:2", "p2", 24.0),
    a_line("chain:2", "p3", 8.0, category="qa"),
    a_line("chain:2", "p3", 9.0, category="qa", number=1),
    a_line("priced", "p1", 18.0),
    a_line("priced", "p2", 40.0),
    a_line("priced", "p3", 10.0, category="qa"),
    a_line("priced", "p3", 10.0, category="qa", number=1),
    a_line("dyspec:8", "p1", 5.0, verify="residual", reading=3.0),
]


@pytest.fixture
def lines() -> list[Line]:
    for line in LINES:
        validate(line, "line")
    return copy.deepcopy(LINES)


def written(tmp_path: Path, lines: list[Line], name: str = "runs.jsonl") -> str:
    path = tmp_path / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def report(*args: str) -> Result:
    return CliRunner().invoke(main.cli, ["bench", "report", *args])


def lane(section: Mapping[str, Any], name: str) -> Any:
    (found,) = [lane for lane in section["lanes"] if lane["name"] == name]
    return found


def test_speedups_by_hand(lines: list[Line]) -> None:
    (section,) = summarise(lines)
    chain = lane(section, "chain:4")["speedup"]
    # 15 / 10 and 40 / 20; 5 / 10 twice
    assert chain["groups"]["code"]["value"] == pytest.approx(math.sqrt(1.5 * 2))
    assert chain["groups"]["code"]["low"] == pytest.approx(1.5)
    assert chain["groups"]["code"]["high"] == pytest.approx(2)
    assert chain["groups"]["qa"] == pytest.approx(
        {"value": 0.5, "low": 0.5, "high": 0.5, "pairs": 2}
    )
    assert chain["categories"]["coding"]["value"] == pytest.approx(math.sqrt(3))
    assert chain["mean_of_groups"]["value"] == pytest.approx(math.sqrt(math.sqrt(3) * 0.5))
    assert chain["mean_of_pairs"]["value"] == pytest.approx((1.5 * 2 * 0.5 * 0.5) ** 0.25)
    assert chain["mean_of_groups"]["pairs"] == 4
    assert chain["mean_of_groups"]["low"] == pytest.approx(math.sqrt(1.5 * 0.5))
    assert chain["mean_of_groups"]["high"] == pytest.approx(math.sqrt(2 * 0.5))
    assert lane(section, "none")["speedup"]["mean_of_groups"]["value"] == 1.0


def test_the_whole_request_by_hand(lines: list[Line]) -> None:
    (section,) = summarise(lines)
    tree = lane(section, "dyspec:8 (residual)")
    # plain: 20 tokens in 2 + 1 s; the tree: in 4 + 3 s
    assert tree["request_speedup"]["groups"]["code"]["value"] == pytest.approx(3 / 7)
    assert tree["speedup"]["groups"]["code"] == pytest.approx(
        {"value": 0.5, "low": None, "high": None, "pairs": 1}, nan_ok=True
    )
    assert tree["speedup"]["mean_of_groups"]["low"] is None


def test_tokens_per_pass_by_hand(lines: list[Line]) -> None:
    (section,) = summarise(lines)
    chain = lane(section, "chain:4")
    # code: 27 accepted in 13 passes; qa: 20 in 20
    assert chain["block_efficiency"]["groups"] == pytest.approx({"code": 40 / 13, "qa": 2.0})
    assert chain["block_efficiency"]["mean_of_groups"] == pytest.approx((40 / 13 + 2) / 2)
    assert chain["accept_length"]["groups"] == pytest.approx({"code": 40 / 13 - 1, "qa": 1.0})
    assert chain["accept_length"]["mean_of_categories"] == pytest.approx((40 / 13 + 2) / 2 - 1)
    assert chain["drafted_per_step"] == pytest.approx(160 / 33)
    assert chain["draft_passes_per_step"] == pytest.approx(80 / 33)
    assert chain["tokens_per_second"] == pytest.approx(10.0)
    # (20/15 + 20/40 + 4 + 4) seconds for 80 tokens, a fifth of it in each part
    seconds = (20 / 15 + 0.5 + 8) / 80 / 5
    assert chain["seconds_per_token"] == pytest.approx(dict.fromkeys(PARTS, seconds))
    assert chain["accept_length_histogram"] == [33 - 20, 20]
    assert chain["confidence"] == {"drafted": [0] * 8 + [80, 80], "accepted": [0] * 8 + [20, 60]}
    assert chain["same_text_as_none"] == {"equal": 3, "of": 4}
    assert lane(section, "dyspec:8 (residual)")["same_text_as_none"] is None


def test_the_best_chain_is_chosen_in_each_group(lines: list[Line]) -> None:
    (section,) = summarise(lines)
    best = section["priced_over_best_chain"]
    # code: chain:4 has 1.73x, chain:2 1.2x; qa: 0.5x and sqrt(0.72)x
    assert {group: chain["name"] for group, chain in best["chains"].items()} == {
        "code": "chain:4",
        "qa": "chain:2",
    }
    assert best["chains"]["qa"]["speedup"] == pytest.approx(math.sqrt(0.72))
    assert best["groups"]["code"]["value"] == pytest.approx(math.sqrt(18 / 15 * 1))
    assert best["groups"]["qa"]["value"] == pytest.approx(math.sqrt(10 / 8 * 10 / 9))
    assert best["mean_of_groups"]["pairs"] == 4


def test_an_interval_widens_with_the_spread() -> None:
    def interval(*ratios: float) -> tuple[float, float, float]:
        mean = compare([Pair("g", "c", ratio) for ratio in ratios])["groups"]["g"]
        return mean["low"], mean["value"], mean["high"]

    assert interval(1, 4) == pytest.approx((1, 2, 4))
    narrow, wide = interval(*[1.9, 2.1] * 10), interval(*[1, 4] * 10)
    assert wide[0] < narrow[0] < narrow[1] < narrow[2] < wide[2]
    # The mean of 20 logs of 1 or 4 has a standard error of log(2) / sqrt(20).
    error = 1.96 * math.log(2) / math.sqrt(20)
    assert math.log(wide[2] / wide[1]) == pytest.approx(error, rel=0.15)


def test_groups_are_resampled_each_by_itself() -> None:
    pairs = [Pair(group, group, ratio) for group in "ab" for ratio in [1.0, 4.0] * 10]
    found = compare(pairs)
    error = 1.96 * math.log(2) / math.sqrt(40)
    mean = found["mean_of_groups"]
    assert math.log(mean["high"] / mean["value"]) == pytest.approx(error, rel=0.15)
    assert mean["low"] < found["mean_of_pairs"]["value"] < mean["high"]


def test_other_conditions_are_another_section(lines: list[Line], tmp_path: Path) -> None:
    warm = {"temperature": 0.6, "seed": 0}
    lines.append(a_line("none", "p1", 8.0, sampling=warm))
    lines.append(a_line("chain:4", "p1", 4.0, sampling=warm))
    elsewhere = a_line("chain:4", "p1", 99.0)
    elsewhere["result"]["machine"] = "another machine"
    files = [written(tmp_path, lines), written(tmp_path, [elsewhere], "more.jsonl")]
    result = report(*files)
    document = json.loads(result.stdout.splitlines()[-1])
    validate(document, "report")
    cold, warmed, other = document["sections"]
    assert lane(cold, "chain:4")["speedup"]["groups"]["code"]["pairs"] == 2
    assert lane(warmed, "chain:4")["speedup"]["mean_of_pairs"]["value"] == pytest.approx(0.5)
    assert lane(other, "chain:4")["speedup"] is None
    assert document["runs"] == len(lines) + 1
    assert result.stdout.count("## T = 0, ") == 2
    assert result.stdout.count("## T = 0.6, 20 tokens, 1 prompt, 1 round\n") == 1


def test_the_tables(lines: list[Line], tmp_path: Path) -> None:
    result = report(written(tmp_path, lines))
    assert result.exit_code == 0, result.stderr
    for row in (
        "## T = 0, 20 tokens, 3 prompts, 2 rounds",
        "| policy | code | qa | mean of groups | mean of pairs | pairs |",
        "| `chain:4` | 1.73x [1.50, 2.00] | 0.50x [0.50, 0.50] | 0.93x [0.87, 1.00] | "
        "0.93x [0.87, 1.00] | 4 |",
        "| `dyspec:8 (residual)` | 0.50x |  | 0.50x | 0.50x | 1 |",
        "| `chain:4` | 3.08 | 2.00 | **2.54** | 1.54 |",
        "| `chain:4` | 4 | 10.0 | 4.8 | 2.4 | 20% | 20% | 20% | 20% | 20% | 3 of 4 |",
        "| qa | `chain:2` | 0.85x | 1.18x [1.11, 1.25] |",
        "- machine: a machine",
        "- models: t.gguf `aaaaaaaaaaaa`",
        "- basis: T(1) 100 ms",
        "- load average: median 1.0, 1.0 to 1.0",
        "- what a policy learns is kept across runs",
    ):
        assert row in result.stdout.splitlines(), row


def test_an_empty_reply_has_no_speed(lines: list[Line], tmp_path: Path) -> None:
    stats = lines[4]["result"]["stats"]
    stats["generated_tokens"], stats["tokens_per_second"] = 0, 0.0
    (section,) = json.loads(report(written(tmp_path, lines)).stdout.splitlines()[-1])["sections"]
    assert lane(section, "chain:4")["speedup"]["groups"]["code"]["pairs"] == 1


def test_a_report_leaves_a_cut_file_as_it_is(lines: list[Line], tmp_path: Path) -> None:
    path = written(tmp_path, lines)
    data = Path(path).read_bytes()[:-9]
    Path(path).write_bytes(data)
    result = report(path)
    assert json.loads(result.stdout.splitlines()[-1])["runs"] == len(lines) - 1
    assert Path(path).read_bytes() == data


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots(lines: list[Line], tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "new" / "plots"
    result = report(written(tmp_path, lines), "--plots", str(target), "--format", suffix)
    assert result.exit_code == 0, result.stderr
    names = [
        "accept-length",
        "block-efficiency",
        "confidence",
        "speedup",
        "time-split",
        "tree-size",
    ]
    assert sorted(path.stem for path in target.iterdir()) == names
    document = json.loads(result.stdout.splitlines()[-1])
    assert sorted(document["plots"]) == sorted(map(str, target.iterdir()))
    for path in target.iterdir():
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
        assert len(data) > 5000


def test_plots_of_several_sections_are_numbered(lines: list[Line], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines.append(a_line("none", "p1", 8.0, tokens=21))
    result = report(written(tmp_path, lines), "--plots", str(tmp_path / "plots"))
    assert result.exit_code == 0, result.stderr
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"1-speedup.png", "2-speedup.png"} <= names
    assert len(names) == 12


def test_bad_input_is_one_line(
    lines: list[Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(code: int, message: str, *args: str) -> None:
        result = report(*args)
        assert result.exit_code == code
        assert message in result.stderr
        assert result.stderr.count("\n") == 1

    fails(1, "no such file", str(tmp_path / "nowhere.jsonl"))
    other = {"run": {"command": "noise"}, "result": {}}
    fails(
        1, "line 1: no run of 'dyspec-edge bench run': it has no policy", written(tmp_path, [other])
    )
    fails(2, "no finished run in", written(tmp_path, []))
    path = written(tmp_path, lines)
    fails(1, "cannot write plots to", path, "--plots", str(Path(path) / "plots"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    fails(2, "pip install 'dyspec-edge[plots]'", path, "--plots", str(tmp_path / "plots"))
