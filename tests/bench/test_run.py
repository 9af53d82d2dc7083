"""`dyspec-edge bench run`: turns, lines, interruptions, bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dyspec_edge.bench.journal import Journal, read_lines
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.bench.schedule import Lane, turns
from dyspec_edge.bench.stage import Confidence
from dyspec_edge.cli import main
from dyspec_edge.decode import cost
from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.loop import Step
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import DyspecError
from tests.conftest import TinyPair
from tests.schemas import validate

Bench = Callable[..., Result]
Lines = list[dict[str, Any]]

PROGRAM = "import sys; from dyspec_edge.cli.main import main; sys.argv[0] = 'dyspec-edge'; main()"
PROMPTS = (
    ("a/1", "coding", "the tree"),
    ("a/2", "qa", "the leaf is on"),
    ("a/3", "coding", "the and of to in is it the and of to in"),
    ("a/4", "whatever", "root"),
)
EXACT = ("-t", "1", "-c", "512", "-fa", "off", "-ctk", "f32", "-ctv", "f32")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": i, "category": c, "turns": [t, "more"]}) for i, c, t in PROMPTS]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs.jsonl"


@pytest.fixture
def run(tiny_pair: TinyPair, prompts: Path, out: Path) -> Bench:
    """`run(*args)`: bench run on the tiny pair; what is said again overrides."""

    def invoke(*args: str) -> Result:
        files = ["-m", str(tiny_pair.target), "-md", str(tiny_pair.draft)]
        common = [*files, *EXACT, "--prompts", str(prompts), "--out", str(out), "-n", "12"]
        return CliRunner().invoke(main.cli, ["bench", "run", *common, *args])

    return invoke


def policies(*names: str) -> list[str]:
    return [word for name in names for word in ("--policy", name)]


def test_every_policy_answers_every_prompt_in_every_round(run: Bench, out: Path) -> None:
    result = run(
        *policies("none", "chain:3", "specinfer:2x2", "sequoia:auto", "dyspec:8", "priced"),
        "--rounds", "2",
        "--each", "1", "--temp", "0", "--temp", "0.7", "--verify", "match", "--verify", "residual",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = read_lines(out)
    # none and priced once, the others under both verifiers
    assert len(lines) == 2 * 3 * 2 * (1 + 2 + 2 + 2 + 2 + 1)
    for line in lines:
        validate(line, "line")
        stats, asked = line["result"]["stats"], line["run"]
        assert stats["policy"] == asked["policy"]
        assert stats["verify"] == asked["verify"]
        assert stats["seed"] == asked["sampling"]["seed"] == asked["round"]
        assert stats["temperature"] == asked["sampling"]["temperature"]
        assert stats["cached_tokens"] == 0
        assert line["result"]["request_seconds"] > stats["decode_seconds"]
        counts = line["result"]["confidence"]
        assert sum(counts["accepted"]) == stats["accepted_tokens"] or asked["policy"] == "priced"
        assert sum(counts["drafted"]) <= stats["draft_tokens"]
    texts: dict[Any, set[str]] = {}
    for line in lines:
        if line["run"]["verify"] == "match":
            key = (line["run"]["prompt"], json.dumps(line["run"]["sampling"]))
            texts.setdefault(key, set()).add(line["result"]["tokens_sha256"])
    assert len(texts) == 12
    assert {len(found) for found in texts.values()} == {1}, "one text, whatever the policy"
    document = json.loads(result.stdout.splitlines()[-1])
    validate(document, "report")
    assert (document["runs"], document["new_runs"]) == (len(lines), len(lines))
    assert [s["conditions"]["sampling"]["temperature"] for s in document["sections"]] == [0.0, 0.7]
    groups = {g for lane in document["sections"][0]["lanes"] for g in lane["speedup"]["groups"]}
    assert groups == {"code", "qa", "whatever"}


def test_the_same_command_again_does_nothing(run: Bench, out: Path) -> None:
    first = run(*policies("none", "chain:2"))
    before = out.read_bytes()
    second = run(*policies("none", "chain:2"))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert out.read_bytes() == before
    documents = [json.loads(result.stdout.splitlines()[-1]) for result in (first, second)]
    assert [document["new_runs"] for document in documents] == [8, 0]
    assert documents[0]["sections"] == documents[1]["sections"]


def test_more_rounds_and_policies_use_what_is_there(run: Bench, out: Path) -> None:
    run(*policies("none"), "--each", "1")
    before = out.read_bytes()
    result = run(*policies("none", "chain:2"), "--each", "1", "--rounds", "2")
    assert json.loads(result.stdout.splitlines()[-1])["new_runs"] == 3 * 2 * 2 - 3
    assert out.read_bytes().startswith(before)
    run(*policies("none"), "--each", "1", "-n", "13")  # another length is another run
    assert len(read_lines(out)) == 12 + 3


def test_an_unfinished_line_is_dropped_and_its_run_done_again(run: Bench, out: Path) -> None:
    run(*policies("none", "chain:2"))
    whole = out.read_bytes()
    out.write_bytes(whole[:-40])
    kept = read_lines(out)
    assert len(kept) == 7
    result = run(*policies("none", "chain:2"))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["new_runs"] == 1
    lines = read_lines(out)
    assert lines[:7] == kept
    assert lines[7]["run"] == json.loads(whole.splitlines()[-1])["run"]


def test_an_interruption_loses_nothing(tiny_pair: TinyPair, prompts: Path, out: Path) -> None:
    args = ["bench", "run", "-m", str(tiny_pair.target), "-md", str(tiny_pair.draft), *EXACT,
            "--prompts", str(prompts), "--out", str(out), "-n", "8", "--rounds", "10",
            *policies("none", "chain:2")]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not out.exists() or out.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert stdout == b""
    kept = read_lines(out)
    assert 5 <= len(kept) < 80
    assert f"{len(kept)} of 80 runs are in {out}; the same command does the rest" in str(stderr)
    result = CliRunner().invoke(main.cli, args)
    assert result.exit_code == 0, result.stderr
    lines = read_lines(out)
    assert lines[: len(kept)] == kept
    assert len({json.dumps(line["run"], sort_keys=True) for line in lines}) == len(lines) == 80


def test_what_priced_has_learned_outlives_an_interruption(run: Bench, out: Path) -> None:
    def acceptances(*args: str) -> list[list[float]]:
        assert run(*policies("priced"), "--category", "coding", *args).exit_code == 0
        return [line["result"]["learned"]["acceptances"] for line in read_lines(out)]

    acceptances("--each", "1")
    line = read_lines(out)[0]
    line["result"]["learned"]["acceptances"] = [0.1]
    out.write_text(json.dumps(line) + "\n")
    assert acceptances()[1][0] == 0.1
    line["run"]["fresh"] = True
    out.write_text(json.dumps(line) + "\n")
    assert 0.1 not in acceptances("--fresh")[1]


def test_passes_of_priced_have_the_sizes_that_were_measured(
    run: Bench, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))
    sizes = (1, 7, 30, 64)
    target = CostCurve(sizes, (1.0, 1.01, 1.02, 1.1), padded=True)
    draft = CostCurve((1, 9, 24), (0.005, 0.005, 0.006), padded=True)

    def measure(
        _cache: object, wanted: Sequence[int], *_report: object, **_how: object
    ) -> CostCurve:
        return draft if wanted == cost.DRAFT_SIZES else target

    monkeypatch.setattr("dyspec_edge.load.calibration.measure_curve", measure)
    assert run(*policies("priced"), "-n", "30").exit_code == 0
    lines = read_lines(out)
    assert len(lines) == 4
    num_rows = num_wanted = 0
    for line in lines:
        stats = line["result"]["stats"]
        steps = enumerate(stats["tree_size_histogram"])
        padded = sum(n * min(s for s in sizes if s > drafted) for drafted, n in steps)
        assert stats["target_rows"] == padded
        num_rows += padded
        num_wanted += stats["draft_tokens"] + stats["steps"]
    assert num_rows > num_wanted, "the made-up prices buy trees, at least until real ones are seen"


def test_without_a_draft_there_is_plain_decoding_and_lookup(
    tiny_pair: TinyPair, prompts: Path, out: Path
) -> None:
    common = ["bench", "run", "-m", str(tiny_pair.target), *EXACT, "--prompts", str(prompts),
              "--out", str(out), "-n", "8", "--category", "qa"]  # fmt: skip
    result = CliRunner().invoke(main.cli, [*common, *policies("none", "priced")])
    assert result.exit_code == 0, result.stderr
    assert {line["run"]["models"]["draft"] for line in read_lines(out)} == {None}
    result = CliRunner().invoke(main.cli, [*common, *policies("none", "chain:2")])
    assert result.exit_code == 2
    assert "policy 'chain:2' cannot run: no draft model; name one with -md" in result.stderr


def test_sequoia_goes_by_what_was_measured(
    run: Bench, tiny_pair: TinyPair, prompts: Path, out: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))
    lanes = [*policies("sequoia:4", "sequoia:auto"), "--each", "1"]

    def bases(path: Path) -> list[str]:
        assert run(*lanes, "--out", str(path)).exit_code == 0
        return [line["result"]["basis"] for line in read_lines(path)]

    assert all("typical acceptance rates" in basis for basis in bases(out))
    args = ["bench", "fit-sequoia", "-m", str(tiny_pair.target), "-md", str(tiny_pair.draft),
            *EXACT, "--prompts", str(prompts), "-n", "20", "--temp", "0", "--temp", "0.7",
            "--verify", "match", "--verify", "residual"]  # fmt: skip
    result = CliRunner().invoke(main.cli, args)
    assert result.exit_code == 0, result.stderr
    fits = json.loads(result.stdout.splitlines()[-1])["fits"]
    assert [(fit["verify"], fit["temperature"]) for fit in fits] == [
        ("match", 0.0), ("match", 0.7), ("residual", 0.0), ("residual", 0.7),
    ]  # fmt: skip
    for fit in fits:
        assert 0.3 < fit["rates"][0] <= sum(fit["rates"]) < 1 + 1e-9
        assert f"| {fit['verify']} | {fit['temperature']:g} | {fit['num_steps']} |" in result.stdout
    again = bases(tmp_path / "again.jsonl")
    assert all("acceptance rates measured at temperature 0, 0.7" in basis for basis in again)


def test_a_text_file_is_one_prompt(run: Bench, out: Path, tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("the tree is on the leaf\n")
    assert run(*policies("none"), "--prompts", str(text)).exit_code == 0
    (line,) = read_lines(out)
    assert (line["run"]["prompt"], line["run"]["group"]) == ("story", "text")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--policy", "chain:0"], 2, "policy 'chain:0': '0' is not a number from 1 to 1024"),
        (["--category", "poetry"], 2, "no prompt of the category poetry, but coding, qa, whatever"),
        (["--skip", "9"], 2, "holds 2 prompts of the category coding; --skip 9 leaves none"),
        (["--rounds", "0"], 2, "0 is not 1 or more"),
        (["--prompts", "nowhere.jsonl"], 1, "cannot read the prompts 'nowhere.jsonl': no such"),
        (["--out", "nowhere/runs.jsonl"], 1, "cannot use 'nowhere/runs.jsonl': no such file"),
        (["-m", "nowhere.gguf"], 1, "nowhere.gguf"),
        (["-c", "256", "-n", "250"], 2, "prompt a/1 and its reply need"),
    ],
)
def test_bad_input_is_one_line(run: Bench, args: list[str], code: int, message: str) -> None:
    result = run("--policy", "none", *args)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_recurrent_target_is_compared(tiny_recurrent: Path, prompts: Path, out: Path) -> None:
    args = ["bench", "run", "-m", str(tiny_recurrent), "-t", "1", "-c", "256", "-n", "4",
            "--prompts", str(prompts), "--out", str(out)]  # fmt: skip
    result = CliRunner().invoke(main.cli, [*args, *policies("none", "priced")])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json\n", "line 1: no prompt with id, category and turns"),
        ('{"id": "1", "category": "x", "turns": []}\n', "line 1: no prompt"),
        ('{"id": "1", "category": "x", "turns": [7]}\n', "a part of it is no text"),
        ('{"id": "1", "category": "x", "turns": ["a"]}\n' * 2, "two prompts have the same id"),
        ("", "holds no prompt"),
    ],
)
def test_prompts_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(DyspecError, match=message):
        choose(path, (), None)


def test_prompts_by_category(prompts: Path) -> None:
    def ids(*args: Any) -> list[str]:
        return [prompt.id for prompt in choose(prompts, *args)]

    assert ids((), None) == ["a/1", "a/3", "a/2", "a/4"]
    assert ids(("qa", "coding"), None) == ["a/2", "a/1", "a/3"]
    assert ids(("coding",), 1) == ["a/1"]
    assert ids(("coding",), 1, 1) == ["a/3"]


# The order of runs


def test_every_lane_comes_first_equally_often() -> None:
    prompts = [Prompt(str(i), "qa", "x") for i in range(3)]
    planned = turns(prompts, ("none", "chain:1", "chain:2"), ("match",), (0.0,), 2)
    assert len(planned) == 18
    units = [planned[i : i + 3] for i in range(0, 18, 3)]
    assert [unit[0].lane.policy for unit in units] == [
        "none",
        "chain:1",
        "chain:2",
        "chain:1",
        "chain:2",
        "none",
    ]
    for unit in units:
        assert {turn.lane.policy for turn in unit} == {"none", "chain:1", "chain:2"}
        assert len({(turn.prompt.id, turn.round) for turn in unit}) == 1
        assert [turn.order for turn in unit] == [0, 1, 2]
    assert [unit[0].round for unit in units] == [0, 0, 0, 1, 1, 1]


def test_none_and_priced_run_once_under_match() -> None:
    planned = turns(
        [Prompt("1", "qa", "x")], ("none", "priced", "chain:1"), ("residual", "match"), (0.5,), 1
    )
    assert [turn.lane for turn in planned] == [
        Lane("none", "match", 0.5),
        Lane("priced", "match", 0.5),
        Lane("chain:1", "residual", 0.5),
        Lane("chain:1", "match", 0.5),
    ]


# The journal


def test_a_journal_keeps_and_finds(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    assert journal.get({"a": 1}) is None
    assert journal.add({"a": 1, "b": (2,)}, {"x": (3, 4)}) == {"x": [3, 4]}
    again = Journal(path)
    assert again.get({"b": [2], "a": 1}) == {"x": [3, 4]}
    assert again.get({"a": 1}) is None
    unkept = Journal(None)
    unkept.add({"a": 1}, {"x": 1})
    assert unkept.get({"a": 1}) == {"x": 1}


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"run": 1, "result": {}}\n', "{}\n{}\n"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(DyspecError, match="line 1: not a finished run of a benchmark"):
        Journal(path)
    assert path.read_text() == text


def test_a_journal_that_was_cut_within_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text('{"run": {"a"')
    assert read_lines(path) == []
    journal = Journal(path)
    journal.add({"a": 1}, {"x": 1})
    assert read_lines(path) == [{"run": {"a": 1}, "result": {"x": 1}}]


# The draft's probability against acceptance


def test_confidence_counts_children_of_accepted_nodes() -> None:
    tree = TokenTree(8, 4)
    tree.reset(9)
    a = tree.add(0, 10, 0.65)  # accepted
    b = tree.add(0, 11, 0.15)
    c = tree.add(a, 12, 0.95)  # wrong, below an accepted one
    d = tree.add(b, 13, 0.95)  # below a wrong one
    e = tree.add(a, 14, 0.05)  # not checked by the target
    f = tree.add(a, 15, 1.0)  # right, though it ends the text as the bonus token
    counts = Confidence()
    nodes = (0, a, b, c, d, f)
    counts.add(tree, Step((10, 15), 5, 2, (0, a), 0.1, False, nodes))
    assert e not in nodes
    found = counts.as_dict()
    assert found["drafted"] == [0, 1, 0, 0, 0, 0, 1, 0, 0, 2]
    assert found["accepted"] == [0, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    counts.add(tree, Step((11,), 0, 0, (0,), 0.1, True, (0,)))
    assert counts.as_dict() == found
    assert np.sum(found["drafted"]) == 4
