"""Curves that are kept, and the words for them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import DRAFT_SIZES, TARGET_SIZES, CostCurve
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.load.calibration import ACCEPTANCES, Calibration, Calibrator, Shelf, file_key
from tests.decode.test_priced import ENDS, EXPERTS, F16, Q4, STREAMED

KEY = {"file": "a.gguf", "threads": 2}


class SteadyCache:
    """Passes of fixed prices; counts them."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve, self.factor, self.num_passes = curve, 1.0, 0

    def time_pass(self, num_rows: int) -> float:
        self.num_passes += 1
        return 0.1 * self.factor * self.curve.at(num_rows)


def as_cache(cache: SteadyCache) -> Cache:
    return cast(Cache, cache)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "deep" / "curves")


def files(shelf: Shelf) -> list[Path]:
    return sorted(shelf._directory.iterdir())


def test_documents_are_kept_by_key(shelf: Shelf) -> None:
    assert shelf.load(KEY) is None
    shelf.save(KEY, [1, 2])
    shelf.save({**KEY, "threads": 4}, [3])
    assert shelf.load(KEY) == [1, 2]
    shelf.save(KEY, [5])
    assert shelf.load(KEY) == [5]
    assert len(files(shelf)) == 2, "no scraps"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"value": 1}', '{"key": {}, "value": 1}'])
def test_what_cannot_be_read_is_not_there(shelf: Shelf, text: str) -> None:
    shelf.save(KEY, 1)
    files(shelf)[0].write_text(text)
    assert shelf.load(KEY) is None
    files(shelf)[0].write_bytes(b"\xff\xfe\x00")
    assert shelf.load(KEY) is None


def test_a_disk_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shelf = Shelf(tmp_path / "file" / "curves")
    shelf.save(KEY, 1)
    assert shelf.load(KEY) is None
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir()
        (tmp_path / "closed").chmod(stat.S_IRUSR | stat.S_IXUSR)
        Shelf(tmp_path / "closed").save(KEY, 1)


def test_a_key_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    first = file_key(path, threads=2)
    assert first == file_key(path, threads=2)
    assert first != file_key(path, threads=3)
    path.write_bytes(b"three")
    assert first != file_key(path, threads=2)


def test_curves_are_measured_once(shelf: Shelf) -> None:
    target, draft = SteadyCache(F16[0]), SteadyCache(F16[1])
    calibrator = Calibrator(shelf, KEY, {**KEY, "file": "b.gguf"})
    done: list[float] = []
    first = calibrator.calibrate(as_cache(target), as_cache(draft), done.append)
    assert first.measured
    assert (first.target.sizes, first.draft and first.draft.sizes) == (TARGET_SIZES, DRAFT_SIZES)
    assert done == sorted(done)
    assert done[-1] == pytest.approx(1.0)
    spent = target.num_passes
    target.factor = 1.25  # a slower day
    again = calibrator.calibrate(as_cache(target), as_cache(draft))
    assert not again.measured
    assert target.num_passes - spent < 6
    assert again.target.seconds == pytest.approx(first.target.scaled(1.25).seconds)
    target.factor = 3.0  # another machine, or another memory
    assert calibrator.calibrate(as_cache(target), None).measured
    afresh = Calibrator(shelf, KEY, None, afresh=True)
    assert afresh.calibrate(as_cache(target), None).measured


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"sizes": [1, 2]},
        {"sizes": [1, 2], "seconds": [0.1]},
        {"sizes": [2, 1], "seconds": [0.1, 0.2]},
        {"sizes": [1, 2], "seconds": [0.1, -0.2]},
        {"sizes": [1, 2], "seconds": [0.1, "x"]},
        {"sizes": [], "seconds": []},
    ],
)
def test_a_foreign_curve_is_measured_again(shelf: Shelf, value: Any) -> None:
    shelf.save(KEY, value)
    found = Calibrator(shelf, KEY, None).calibrate(as_cache(SteadyCache(F16[0])), None)
    assert found.measured
    assert found.target.sizes == TARGET_SIZES


def test_what_was_learned_belongs_to_the_pair(shelf: Shelf) -> None:
    policy, other = PricedPolicy(ENDS), PricedPolicy(ENDS)
    for each in (policy, other):
        each.set_prices(*F16)
    policy.acceptance, policy.seconds = 0.6, 1.0
    Calibrator(shelf, KEY, KEY).remember(policy)
    Calibrator(shelf, KEY, None).recall(other)
    assert other.acceptance == 0.8
    Calibrator(shelf, KEY, KEY, afresh=True).recall(other)
    assert other.acceptance == 0.8
    Calibrator(shelf, KEY, KEY).recall(other)
    assert other.acceptance == 0.6
    files(shelf)[0].write_text(files(shelf)[0].read_text().replace("0.6", "7.5"))
    Calibrator(shelf, KEY, KEY).recall(other)
    assert other.acceptance == 0.6


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        (Q4, "compute-bound: a draft model will not pay, prompt lookup will"),
        (F16, "memory-bound: a draft model will pay"),
        (STREAMED, "rows are nearly free: a draft model will pay, large trees too"),
        (EXPERTS, "compute-bound: a draft model will pay"),
    ],
)
def test_plain_words(prices: tuple[CostCurve, CostCurve], words: str) -> None:
    found = Calibration(*prices, measured=True)
    assert words in found.verdict
    assert found.verdict.startswith("this target on this machine is ")
    alone = Calibration(prices[0], None, measured=True)
    assert alone.verdict.endswith("prompt lookup will pay")
    assert alone.as_dict()["draft_speedup"] is None


def test_predictions_rise_with_acceptance() -> None:
    found = Calibration(*F16, measured=False).as_dict()
    assert list(found["draft_speedup"]) == [str(a) for a in ACCEPTANCES]
    for kind in ("draft_speedup", "copy_speedup"):
        speeds = list(found[kind].values())
        assert speeds == sorted(speeds)
        assert speeds[0] >= 1.0
    assert found["copy_speedup"]["0.9"] > found["draft_speedup"]["0.9"]
    assert found["target_seconds"]["4"] == 1.4
