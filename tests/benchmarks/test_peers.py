"""The bench against llama.cpp's programs: what they print, the search, and going on later."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from click.testing import CliRunner, Result

from benchmarks.peers import build, command
from benchmarks.peers.contest import halves
from benchmarks.peers.engines import Ours, PromptLookup
from benchmarks.peers.programs import (
    OneShot,
    Outcome,
    Server,
    Task,
    parse_one_shot,
)
from benchmarks.peers.rivals import PLAIN
from benchmarks.peers.settings import Axis, Settings, num_trials, search, words
from benchmarks.workbench import Engines, Setup
from dyspec_edge.errors import DyspecError
from tests import fake_llama
from tests.conftest import TinyPair

N_MAX = Axis("n-max", ("--spec-draft-n-max",), (4, 2, 8, 16))
P_MIN = Axis("p-min", ("--spec-draft-p-min",), (0.75, 0.0, 0.5, 0.9))
TASK = Task((5, 6, 7), "tell me more\n", "tell me more\n", [], 4)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program as llama.cpp's."""
    program = tmp_path / "llama-fake"
    source = Path(fake_llama.__file__).read_text(encoding="utf-8")
    program.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    return program


def calls(fake: Path) -> list[str]:
    return (fake.parent / "calls").read_text(encoding="utf-8").splitlines()


# The search.


def test_search_goes_through_the_axes_and_back() -> None:
    """p-min decides which n-max is best, so n-max is tried again after it."""
    table = {(4, 0.75): 3, (2, 0.75): 4, (2, 0.0): 1, (2, 0.9): 5, (8, 0.9): 7, (4, 0.9): 6}
    asked = []

    def speed(settings: Settings) -> float:
        asked.append(dict(settings))
        return table.get((int(settings["n-max"]), float(settings["p-min"])), 0)

    assert search((N_MAX, P_MIN, N_MAX), speed) == {"n-max": 8, "p-min": 0.9}
    assert len(asked) == num_trials((N_MAX, P_MIN, N_MAX)) == 12
    assert asked[0] == {"n-max": 4, "p-min": 0.75}
    assert search((N_MAX, P_MIN), speed) == {"n-max": 2, "p-min": 0.9}


def test_search_without_axes_asks_nothing() -> None:
    assert search((), lambda _: pytest.fail("asked")) == {}


def test_an_axis_gives_its_value_to_all_its_flags() -> None:
    axis = Axis("size", ("--a-size", "--b-size"), (4,))
    assert words((axis, axis), {"size": 4, "other": 1}) == ["--a-size", "4", "--b-size", "4"]


# One-shot programs.

# As printed by those that come with llama-cpp-python 0.3.36.
SIMPLE_LOG = """\
0.01.804.071 I cmn          init: llama threadpool init, n_threads = 1
0.01.924.914 I common_speculative_init_result: loading draft model 'draft.gguf'
0.16.646.131 I encoded    3 tokens in    9.593 seconds, speed:   17.409 t/s
0.16.646.153 I decoded   28 tokens in    4.156 seconds, speed:    6.737 t/s
0.16.646.176 I n_draft   = 4
0.16.646.187 I n_predict = 28
0.16.646.198 I n_drafted = 22
0.16.646.221 I n_accept  = 21
0.16.646.234 I accept    = 95.455%
0.16.646.257 I draft:

0.16.646.332 I target:

0.16.646.352 I common_perf_print:    sampling time =      16.03 ms
0.16.646.394 I common_perf_print: prompt eval time =   12254.47 ms /   196 tokens (   62.52 ms per token,    15.99 tokens per second)
"""  # noqa: E501


def test_a_log_is_read() -> None:
    output = "\n\ntell me more\n  <tail>\n\n\n\n\n"
    task = replace(TASK, num_tokens=28)
    outcome = parse_one_shot("x", output, SIMPLE_LOG, task, num_free=1)
    assert outcome == Outcome(None, "  <tail>\n", False, 27, 4.156, 22, 21)
    assert parse_one_shot("x", output, SIMPLE_LOG, replace(task, num_tokens=29), num_free=0).is_over


def test_a_log_without_figures_is_no_reply() -> None:
    with pytest.raises(DyspecError, match="x: no figure for tokens accepted; its last line: a"):
        parse_one_shot(
            "x", "", SIMPLE_LOG.replace("n_accept", "n_except") + "a\n", TASK, num_free=0
        )


def test_the_search_finds_what_a_program_is_fastest_at(fake: Path) -> None:
    peer = OneShot("fake", fake, ["-t", "1"], (N_MAX, P_MIN, N_MAX), num_free=0)

    def speed(settings: Settings) -> float:
        outcome = peer.run(TASK, settings)
        return outcome.timed_tokens / outcome.seconds

    assert search(peer.axes, speed) == {"n-max": 8, "p-min": 0.5}
    assert all("--temp 0" in call and "--no-escape" in call for call in calls(fake))
    assert "--spec-draft-n-max 16 --spec-draft-p-min 0.75" in calls(fake)[3]


def test_one_shot_gives_prompt_and_limit_as_the_programs_take_them(fake: Path) -> None:
    """One newline of the file is lost, and they stop a token late."""
    outcome = OneShot("fake", fake, [], (), num_free=1).run(TASK, {})
    assert outcome == Outcome(None, " one" * 4, False, 3, 1.0, 9, 6)


def test_one_shot_that_fails_gives_its_last_line(fake: Path) -> None:
    peer = OneShot("fake", fake, ["-m", "broken.gguf"], (), num_free=0)
    with pytest.raises(DyspecError, match=r"fake: status 1; .*failed to load model 'broken\.gguf'"):
        peer.run(TASK, {})


def test_another_prompt_is_noticed(fake: Path) -> None:
    peer = OneShot("fake", fake, [], (), num_free=0)
    with pytest.raises(DyspecError, match="read another prompt: 3 tokens, not 4"):
        peer.run(replace(TASK, tokens=(5, 6, 7, 8)), {})
    with pytest.raises(DyspecError, match="read another prompt"):
        peer.run(replace(TASK, shown="<s>tell me more\n"), {})


# The server.


def test_server_is_started_asked_and_ended(fake: Path) -> None:
    outcome = Server("fake", fake, ["-t", "1"], (N_MAX,)).run(TASK, {"n-max": 16})
    assert outcome == Outcome((7,) * 4, " one" * 4, False, 3, 2.0, 9, 6)
    assert "--spec-draft-n-max 16" in calls(fake)[0]


def test_server_that_does_not_start_gives_its_last_line(fake: Path) -> None:
    with pytest.raises(DyspecError, match=r"failed to load model 'broken\.gguf'"):
        Server("fake", fake, ["-m", "broken.gguf"], ()).run(TASK, {})


# The build.


def test_programs_for_other_features_are_refused(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = llama_cpp.llama_print_system_info().decode().strip()
    monkeypatch.setenv("FAKE_FEATURES", f"{ours} ")
    assert build.kernels(fake) == ours
    monkeypatch.setenv("FAKE_FEATURES", f"{ours} AMX_INT8 = 1 |")
    with pytest.raises(DyspecError, match=r"AMX_INT8 = 1 \|, llama-cpp-python for"):
        build.kernels(fake)


def test_another_version_is_not_built(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "PKG-INFO").write_text("Name: llama_cpp_python\nVersion: 0.3.35\n")
    with pytest.raises(DyspecError, match="could not be built; the lines above say why"):
        build.programs(tmp_path / "build", tmp_path)
    assert "is not the unpacked source package of llama-cpp-python" in capfd.readouterr().err


# The whole command, on tiny models and a fake rival.


class Rival:
    """Repeats what it was told to, at a speed that its setting decides."""

    def __init__(self, name: str, reply: Sequence[int], axes: Sequence[Axis] = ()) -> None:
        self.name = name
        self.axes = axes
        self.reply = reply
        self.runs: list[Settings] = []

    def run(self, task: Task, settings: Settings) -> Outcome:
        self.runs.append(settings)
        reply = tuple(self.reply[: task.num_tokens])
        seconds = {4: 2.0, 2: 1.0}[int(settings["n-max"])] if self.axes else 1.0
        return Outcome(reply, "", False, len(reply), seconds, 4, 2)


class Interrupted(Exception):
    """Somebody pressed a key."""


def invoke(
    pair: TinyPair, rivals: list[Any], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Result:
    """The command with two prompts of one category: one for the search, one measured."""
    prompts = directory / "prompts.jsonl"
    lines = [{"id": i, "category": "toy", "turns": [f"the {i}"]} for i in ("root", "leaf")]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(build, "programs", lambda *_: {build.SERVER: Path("server")})
    monkeypatch.setattr(build, "kernels", lambda _: "CPU : X = 1")
    monkeypatch.setattr(command, "rivals", lambda *_, **_repacks: rivals)
    files = ["-m", str(pair.target), "-md", str(pair.draft), "--prompts", str(prompts)]
    words = [*files, "-t", "1", "-c", "256", "--tokens", "6", "--category", "toy"]
    words += ["--policy", "chain:2", "--trial-tokens", "3", "-o", str(directory / "journal")]
    return CliRunner().invoke(command.peers, words)


@pytest.fixture
def plain(tiny_pair: TinyPair, tmp_path: Path) -> Any:
    """Says what plain decoding says."""
    peer = Ours("none", Setup(*tiny_pair, 1, 256, tmp_path, 6))
    peer.name = PLAIN
    return peer


def test_everybody_runs_and_texts_are_compared(
    tiny_pair: TinyPair, plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = Rival("liar", [300] * 6, [Axis("n-max", (), (4, 2))])
    result = invoke(tiny_pair, [plain, liar], tmp_path, monkeypatch)
    assert result.exception is None
    assert liar.runs == [{"n-max": 4}, {"n-max": 2}, {"n-max": 2}]
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["prompts"] == {"search": ["root"], "measured": ["leaf"]}
    cells = document["groups"]["toy"]
    assert list(cells) == ["dyspec-edge, none", "dyspec-edge, chain:2", PLAIN, "liar"]
    assert cells["liar"]["settings"] == {"n-max": 2}
    assert cells["liar"]["tokens_per_second"] == 6.0
    assert cells["liar"]["gaps"][0] > 0.25
    assert [cells[name]["gaps"] for name in list(cells)[:3]] == [[None]] * 3
    assert cells[PLAIN]["against_plain"] == 1.0
    assert cells["dyspec-edge, chain:2"]["accepted"] > 0
    assert "**1 of 1 part" in result.stdout
    assert [row["policy"] for row in document["contest"]] == list(cells)[:2]
    for row in document["contest"]:
        fastest = max(PLAIN, "liar", key=lambda name: cells[name]["against_plain"])
        assert row["best_peer"] == fastest
        mine, other = (cells[name]["against_plain"] for name in (row["policy"], fastest))
        assert row["ratio"] == pytest.approx(mine / other)


def test_an_interrupted_run_goes_on_where_it_was(
    tiny_pair: TinyPair, plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = [Axis("n-max", (), (4, 2))]
    stopping = Rival("rival", [300] * 6, axes)

    def stop(task: Task, settings: Settings) -> Outcome:
        if len(stopping.runs) == 2:
            raise Interrupted
        return Rival.run(stopping, task, settings)

    monkeypatch.setattr(stopping, "run", stop)
    result = invoke(tiny_pair, [plain, stopping], tmp_path, monkeypatch)
    assert isinstance(result.exception, Interrupted)
    going_on = Rival("rival", [300] * 6, axes)
    whole = invoke(tiny_pair, [plain, going_on], tmp_path, monkeypatch)
    assert going_on.runs == [{"n-max": 2}]
    monkeypatch.setattr(going_on, "run", lambda *_: pytest.fail("run again"))
    again = invoke(tiny_pair, [plain, going_on], tmp_path, monkeypatch)
    assert again.stdout == whole.stdout


def test_one_prompt_of_a_category_is_not_enough(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "category": "toy", "turns": ["x"]}\n', encoding="utf-8")
    with pytest.raises(Exception, match="two are needed"):
        halves(prompts, ("toy",), 2)


def test_prompt_lookup_on_a_tiny_model_says_what_plain_decoding_says(
    tiny_pair: TinyPair, plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(*tiny_pair, 1, 256, tmp_path, 6)
    text = "the root of the tree is in the leaf of the tree"
    with closing(Engines()) as engines:
        engine = engines.get(setup.config("none"))
        tokens = engine.prepare(text).tokens
    task = Task(tokens, "", "", [{"role": "user", "content": text}], 6)
    settings: Settings = {"num_pred_tokens": 4, "max_ngram_size": 2}
    lookup = PromptLookup(setup).run(task, settings)
    assert lookup.tokens is not None
    assert lookup.tokens == plain.run(task, {}).tokens
    assert lookup.drafted > 0
    assert 0 <= lookup.accepted <= min(lookup.drafted, 5)
    assert lookup.timed_tokens == 5  # without the first
    end = lookup.tokens[4]
    assert end not in lookup.tokens[:4]
    monkeypatch.setattr(llama_cpp, "llama_vocab_is_eog", lambda _, token: token == end)
    ended = PromptLookup(setup).run(task, settings)
    assert (ended.tokens, ended.is_over) == (lookup.tokens[:4], True)
    assert ended.timed_tokens == 4  # with the end token


def test_a_prompt_of_more_than_512_tokens_is_looked_up(tiny_pair: TinyPair, tmp_path: Path) -> None:
    setup = Setup(tiny_pair.target, None, 1, 1024, tmp_path, 4)
    task = Task(tuple([5, 6, 7, 8] * 150), "", "", [], 4)
    found = PromptLookup(setup).run(task, {"num_pred_tokens": 4, "max_ngram_size": 2})
    assert found.timed_tokens >= 1


def test_categories_of_a_group_are_halved_one_by_one(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    names = ("coding", "coding", "qa", "coding", "code_edit", "code_edit", "qa")
    lines = [{"id": str(i), "category": c, "turns": ["x"]} for i, c in enumerate(names)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    both = halves(prompts, ("coding", "qa", "code_edit"), 3)
    shown = [{group: [p.id for p in half] for group, half in part.items()} for part in both]
    assert shown == [{"code": ["0", "4"], "qa": ["2"]}, {"code": ["1", "3", "5"], "qa": ["6"]}]
