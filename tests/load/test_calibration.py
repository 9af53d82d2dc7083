"""Curves that are measured once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import DRAFT_SIZES, TARGET_SIZES, CostCurve
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.load.calibration import Calibrator, file_key
from dyspec_edge.load.disk_cache import DiskCache
from tests.decode.test_priced import ENDS, F16
from tests.decoding import live_prices

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
def kept(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "deep" / "curves")


def files(kept: DiskCache) -> list[Path]:
    return sorted(kept._directory.iterdir())


def test_a_key_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    first = file_key(path, threads=2)
    assert first == file_key(path, threads=2)
    assert first != file_key(path, threads=3)
    path.write_bytes(b"three")
    assert first != file_key(path, threads=2)


def test_curves_are_measured_once(kept: DiskCache) -> None:
    target, draft = SteadyCache(F16[0]), SteadyCache(F16[1])
    calibrator = Calibrator(kept, KEY, {**KEY, "file": "b.gguf"})
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
    afresh = Calibrator(kept, KEY, None, afresh=True)
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
def test_a_foreign_curve_is_measured_again(kept: DiskCache, value: Any) -> None:
    kept.save(KEY, value)
    found = Calibrator(kept, KEY, None).calibrate(as_cache(SteadyCache(F16[0])), None)
    assert found.measured
    assert found.target.sizes == TARGET_SIZES


def test_what_was_learned_belongs_to_the_pair(kept: DiskCache) -> None:
    policy, other = PricedPolicy(ENDS), PricedPolicy(ENDS)
    for each in (policy, other):
        each.set_prices(live_prices(*F16))
    policy.acceptance = 0.6
    Calibrator(kept, KEY, KEY).remember(policy)
    Calibrator(kept, KEY, None).recall(other)
    assert other.acceptance == 0.8
    Calibrator(kept, KEY, KEY, afresh=True).recall(other)
    assert other.acceptance == 0.8
    Calibrator(kept, KEY, KEY).recall(other)
    assert other.acceptance == 0.6
    files(kept)[0].write_text(files(kept)[0].read_text().replace("0.6", "7.5"))
    Calibrator(kept, KEY, KEY).recall(other)
    assert other.acceptance == 0.6
