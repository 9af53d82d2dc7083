"""Curves that are measured once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import DRAFT_SIZES, TARGET_SIZES, CostCurve
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.prices import LivePrices
from dyspec_edge.load.calibration import Calibrator, file_key
from dyspec_edge.load.disk_cache import DiskCache
from tests.decode.test_priced import ENDS, F16, Q4
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
    assert target.num_passes > spent, "some sizes are looked at again"
    assert again.target.seconds == pytest.approx(first.target.scaled(1.25).seconds)
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
        {"sizes": [1, 2], "seconds": [0.1, 1e300], "padded": False},
        {"sizes": [1, 2], "seconds": [0.1, float("inf")], "padded": False},
        {"sizes": [1, float("inf")], "seconds": [0.1, 0.2], "padded": False},
        {"sizes": [1, 2], "seconds": [0.1, 0.2], "padded": False, "looks": float("inf")},
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
    policy.acceptance.remember([0.6])
    Calibrator(kept, KEY, KEY).remember(policy)
    Calibrator(kept, KEY, None).recall(other)
    assert other.acceptance.texts == []
    Calibrator(kept, KEY, KEY, afresh=True).recall(other)
    assert other.acceptance.texts == []
    Calibrator(kept, KEY, KEY).recall(other)
    assert other.acceptance.texts == [0.6]
    learned = next(file for file in files(kept) if '"learned"' in file.read_text())
    text = learned.read_text()
    for wrong in ("7.5", "Infinity", "NaN", "[]", "null"):
        learned.write_text(text.replace("0.6", wrong))
        Calibrator(kept, KEY, KEY).recall(other)
        assert other.acceptance.texts == [0.6]
    learned.write_text(text.replace('"num_replies": 1', '"num_replies": 1e999'))
    Calibrator(kept, KEY, KEY).recall(other)
    assert other.acceptance.texts == [0.6]


def test_what_was_learned_without_a_draft_is_kept_beside_the_rest(kept: DiskCache) -> None:
    with_draft, without = PricedPolicy(ENDS), PricedPolicy(ENDS)
    with_draft.set_prices(live_prices(*F16))
    without.set_prices(live_prices(*Q4))
    assert not without.uses_draft
    with_draft.acceptance.remember([0.6])
    without.copies.miss = 3.0
    for policy in (with_draft, without):
        Calibrator(kept, KEY, KEY).remember(policy)
    again = PricedPolicy(ENDS)
    again.set_prices(live_prices(*F16))
    Calibrator(kept, KEY, KEY).recall(again)
    assert again.acceptance.texts == [0.6]
    again.set_prices(live_prices(*Q4))
    Calibrator(kept, KEY, KEY).recall(again)
    assert again.copies.miss == 3.0


def test_what_use_has_taught_about_prices_is_there_at_the_next_load(kept: DiskCache) -> None:
    cache = SteadyCache(F16[0])
    prices = LivePrices(Calibrator(kept, KEY, None).calibrate(as_cache(cache), None))
    policy = PricedPolicy(ENDS)
    policy.set_prices(prices)
    for _ in range(30):
        prices.target.observe(1, 0.1)
        prices.target.observe(48, 0.1 * F16[0].at(32))
    Calibrator(kept, KEY, None).remember(policy)
    again = Calibrator(kept, KEY, None).calibrate(as_cache(SteadyCache(F16[0])), None)
    assert again.target.at(48) == pytest.approx(0.1 * F16[0].at(32), rel=0.05)


def test_company_between_both_models_is_noticed_and_no_reason_to_close_a_draft(
    kept: DiskCache,
) -> None:
    """A draft that was timed while another program ran looks as dear as the target."""
    target, draft = SteadyCache(F16[0]), SteadyCache(F16[1].scaled(6.0))
    target.factor = 3.0
    calibrate = Calibrator(kept, KEY, {**KEY, "file": "b.gguf"}).calibrate

    class Ends(SteadyCache):
        def time_pass(self, num_rows: int) -> float:
            target.factor = 1.0
            return super().time_pass(num_rows)

    found = calibrate(as_cache(target), as_cache(Ends(draft.curve)))
    assert "measured while other programs ran; will be looked at again" in found.verdict
    policy = PricedPolicy(ENDS)
    policy.set_prices(LivePrices(found))
    assert policy.uses_draft
    again = calibrate(as_cache(target), as_cache(SteadyCache(F16[1])))
    assert "other programs" not in again.verdict
    assert again.draft is not None
    assert again.draft.at(1) == pytest.approx(0.1 * F16[1].at(1))
