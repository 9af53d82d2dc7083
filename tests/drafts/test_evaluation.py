"""`dyspec-edge draft evaluate`: what is said of drafts is what their runs and prices come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dyspec_edge.bench.journal import read_lines
from dyspec_edge.cli.main import cli
from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.prices import Prices
from dyspec_edge.drafts import evaluation
from dyspec_edge.drafts.evaluation import Runs, Verdict, best, best_chain, break_even, judge
from dyspec_edge.errors import DyspecError
from tests import tiny
from tests.conftest import TinyPair
from tests.drafts.trimming import trimmed

FLAT = CostCurve((1, 64), (1.0, 1.0))
DEAR = CostCurve((1, 64), (1.0, 64.0))
EXACT = ("-t", "1", "-c", "512", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
PROMPTS = (
    ("a", "coding", "the tree"),
    ("b", "qa", "the leaf is on"),
    ("c", "coding", "root and leaf"),
    ("d", "qa", "it was for you"),
)

Evaluate = Callable[..., Result]


def verdict(draft: str | None, measured: float) -> Verdict:
    path = None if draft is None else Path(draft)
    return Verdict(path, {}, {}, None, 0, 1.0, measured, None, None)


@pytest.fixture
def evaluate(tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """`evaluate(draft, ..., more=[...])` of the tiny target."""
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"id": i, "category": c, "turns": [t]}) + "\n" for i, c, t in PROMPTS)
    )

    def invoke(
        *drafts: Path, more: tuple[str, ...] = (), target: Path = tiny_pair.target
    ) -> Result:
        files = ["-m", str(target), *(w for d in drafts for w in ("-md", str(d)))]
        words = [*files, *EXACT, "--prompts", str(prompts), "-n", "24", *more]
        return CliRunner().invoke(cli, ["draft", "evaluate", *words])

    return invoke


def test_drafts_are_judged_by_their_runs(
    tiny_pair: TinyPair, tiny_equal: TinyPair, evaluate: Evaluate, tmp_path: Path
) -> None:
    cut = trimmed(tiny_pair.draft, tmp_path / "cut.gguf")
    result = evaluate(tiny_equal.draft, cut, more=("--json",))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    perfect, part, copies = document["drafts"]
    assert [perfect["draft"], part["draft"]] == [str(tiny_equal.draft), str(cut)]
    assert perfect["acceptance"] == {"coding": 1.0, "qa": 1.0}
    assert 0 < part["acceptance"]["qa"] < 1
    assert (copies["draft"], copies["acceptance"], copies["predicted"]) == (None, {}, None)
    for row in document["drafts"]:
        assert row["low"] is None or row["low"] <= row["measured"] <= row["high"]
        if row["draft"] is not None:
            assert row["prediction_error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    runs = tmp_path / "cache" / "evaluations.jsonl"
    lines = read_lines(runs)
    assert len(lines) == len(PROMPTS) * (3 + 3 + 2)
    texts = {(line["run"]["prompt"], line["result"]["tokens_sha256"]) for line in lines}
    assert len(texts) == len(PROMPTS), "one text, whatever the draft"
    again = evaluate(tiny_equal.draft, cut)
    assert again.exit_code == 0
    assert len(read_lines(runs)) == len(lines), "nothing is done twice"
    assert again.stdout.splitlines()[-1].startswith("use ")
    assert "copies only" in again.stdout


def test_the_head_in_the_file_is_judged_like_any_draft(
    tiny_headed: Callable[..., TinyPair], evaluate: Evaluate
) -> None:
    """What is said of copies alone is measured without it."""
    path = tiny_headed("glm4moe", layer_gain=0.0).target
    result = evaluate(Path("mtp"), more=("--json",), target=path)
    assert result.exit_code == 0, result.output
    head, copies = json.loads(result.stdout.splitlines()[-1])["drafts"]
    assert head["draft"] == "mtp"
    assert min(head["acceptance"].values()) > 0.8
    assert copies["draft"] is None
    assert copies["acceptance"] == {}


def test_a_draft_that_does_not_fit_is_refused_before_anything_runs(
    tiny_pair: TinyPair, evaluate: Evaluate, tmp_path: Path
) -> None:
    other = tiny.write_model(tmp_path / "other.gguf", vocabulary=tiny.OTHER_VOCABULARY)
    result = evaluate(tiny_pair.draft, other)
    assert result.exit_code == 1
    assert "vocabulary differs" in result.output
    assert not (tmp_path / "cache" / "evaluations.jsonl").exists()
    headless = evaluate(Path("mtp"))
    assert headless.exit_code == 2
    assert "target.gguf has no multi-token-prediction head" in headless.output
    none = evaluate()
    assert none.exit_code == 2
    assert "-md" in none.output


def test_break_even_and_chain_follow_from_prices() -> None:
    # One guess costs half a token's time and the check nothing more: (1 + a) / 1.5 > 1.01.
    half = Prices(FLAT, CostCurve((1, 128), (0.5, 0.5)))
    assert break_even(half.speedup) == 0.52
    assert best_chain(half, 0.4) == 0
    assert best_chain(half, 0.6) == 1
    assert best_chain(half, 0.9) == 3  # (1 + .9 + .81 + .729) / 2.5 = 1.376; 2: 1.355; 4: 1.365
    never = Prices(DEAR, CostCurve((1, 128), (0.5, 0.5)))
    assert break_even(never.speedup) is None
    assert best_chain(never, 0.98) == 0
    assert best_chain(Prices(FLAT), 0.9) == 0


def test_the_fastest_is_chosen_and_none_where_nothing_gains() -> None:
    chosen = best([verdict("a", 1.2), verdict("b", 1.4), verdict(None, 1.1)])
    assert chosen is not None
    assert chosen.draft == Path("b")
    assert best([verdict("a", 0.98), verdict(None, 1.001)]) is None
    copies = verdict(None, 1.195)
    assert best([verdict("a", 1.2), copies]) is copies, "a draft takes memory"


def line(
    policy: str, group: str, speed: float, *, prompt: str = "", accepted: int = 0, drafted: int = 0
) -> dict[str, Any]:
    stats = {
        "tokens_per_second": speed, "accepted_tokens": accepted, "draft_tokens": drafted,
        "steps": 5, "target_seconds": 5 / speed,
    }  # fmt: skip
    run = {"policy": policy, "prompt": prompt or group, "category": group, "group": group}
    return {"run": run, "result": {"stats": stats}}


def test_one_disturbed_run_changes_nothing() -> None:
    """A plain run that another program slowed down, and a priced one."""
    prices = Prices(FLAT, CostCurve((1, 128), (0.5, 0.7)))
    quiet = [
        line(policy, "x", speed, prompt=prompt)
        for prompt in "abc"
        for policy, speed in (("none", 1.0), ("priced", 1.2))
    ]
    disturbed = [
        line("none", "x", 0.3, prompt="a"), line("priced", "x", 0.2, prompt="b"),
        *(found for found in quiet if found["run"] not in (
            {"policy": "none", "prompt": "a", "category": "x", "group": "x"},
            {"policy": "priced", "prompt": "b", "category": "x", "group": "x"},
        )),
    ]  # fmt: skip
    first, second = judge(
        [Runs(Path("d"), disturbed, prices), Runs(None, quiet, Prices(prices.target))]
    )
    assert first.measured == pytest.approx(1.2)
    assert second.measured == pytest.approx(1.2)
    assert (first.num_left_out, second.num_left_out) == (1, 0)
    assert first.low == first.high == pytest.approx(1.2)


def test_a_plain_run_is_the_base_of_every_draft() -> None:
    """Each stands beside runs of its own; the median of all is what speeds are compared with."""
    prices = Prices(FLAT)
    beside = [
        Runs(Path(name), [line("none", "x", plain), line("priced", "x", 1.2)], prices)
        for name, plain in (("a", 1.0), ("b", 0.7), ("c", 1.1))
    ]
    assert [v.measured for v in judge(beside)] == pytest.approx([1.2] * 3)


def test_runs_without_tokens_are_no_measure() -> None:
    empty = [line("none", "x", 0.01), line("priced", "x", 0.01)]
    for found in empty:
        found["result"]["stats"]["tokens_per_second"] = 0.0
    with pytest.raises(DyspecError, match=r"-n"):
        judge([Runs(None, empty, Prices(FLAT))])


def test_a_prediction_is_the_mean_over_groups_and_its_error_what_was_measured() -> None:
    prices = Prices(FLAT, CostCurve((1, 8, 128), (0.5, 0.6, 0.7)))
    runs = [
        line(policy, group, speed, accepted=accepted, drafted=10)
        for group, accepted in (("x", 9), ("y", 1))
        for policy, speed in (("none", 1.0), ("chain:1", 1.0), ("priced", 1.44))
    ]
    (found,) = judge([Runs(Path("d"), runs, prices)])
    assert found.acceptance == {"x": 0.9, "y": 0.1}
    assert found.predicted == pytest.approx((prices.speedup(0.9) * 1.0) ** 0.5)
    assert found.measured == pytest.approx(1.44)
    assert found.low is None
    assert found.error == pytest.approx((found.predicted or 0) / 1.44 - 1)
    assert found.draft_seconds == {1: 0.5, 8: 0.6, 128: 0.7}
    short = Prices(FLAT, CostCurve((1, 15), (0.5, 1.9)))
    (found,) = judge([Runs(Path("d"), runs, short)])
    assert found.draft_seconds == pytest.approx({1: 0.5, 8: 1.2, 15: 1.9})
    assert evaluation.GUESS == "chain:1"


def test_where_copies_gain_more_than_a_draft_they_are_what_is_predicted() -> None:
    flat = Prices(FLAT, CostCurve((1, 128), (0.5, 0.5)))
    drafted = [
        line(policy, group, 1.0, accepted=accepted, drafted=10)
        for group, accepted in (("x", 9), ("y", 1))
        for policy in ("none", "chain:1", "priced")
    ]
    copied = [line(p, g, s) for g in "xy" for p, s in (("none", 1.0), ("priced", 1.2))]
    found, copies = judge([Runs(Path("d"), drafted, flat), Runs(None, copied, Prices(FLAT))])
    assert copies.predicted is None
    assert found.predicted == pytest.approx((flat.speedup(0.9) * 1.2) ** 0.5)
