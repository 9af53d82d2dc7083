"""Measuring within seconds, and healing what was measured in a disturbed minute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import FLAT_SIZES, TARGET_SIZES, CostCurve
from dyspec_edge.decode.measuring import LONGEST_AGAIN, look_again, measure_curve


def test_sizes_that_are_dearer_than_a_larger_one_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine whose kernels work on blocks of sixteen rows."""
    truth = CostCurve((1, 8, 12, 16, 20, 64), (0.01, 0.04, 0.05, 0.035, 0.036, 0.1))
    cache = FakeCache(truth, monkeypatch)
    curve = measure_curve(cast(Cache, cache), TARGET_SIZES)
    assert not {8, 12} & set(curve.sizes)
    assert curve.sizes[0] == 1
    assert {16, 20, 64} <= set(curve.sizes)
    assert curve.at(9) == pytest.approx(0.035)


class FakeCache:
    """Passes whose time passes on a clock of its own."""

    def __init__(self, curve: CostCurve, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sizes, self._curve = 0.0, list[int](), curve
        monkeypatch.setattr("dyspec_edge.decode.measuring.time.perf_counter", lambda: self.now)

    def time_pass(self, num_rows: int) -> float:
        self.sizes.append(num_rows)
        seconds = self._curve.at(num_rows)
        self.now += seconds
        return seconds


@pytest.mark.parametrize(("three", "padded"), [(1.03, False), (1.2, True)])
def test_passes_are_filled_where_a_larger_one_is_cheaper(
    monkeypatch: pytest.MonkeyPatch, three: float, padded: bool
) -> None:
    """Three rows for the price of more than four, by more than passes of a size differ."""
    truth = CostCurve((1, 2, 3, 4, 5, 64), (0.01, 0.011, 0.012 * three, 0.012, 0.013, 0.1))
    cache = FakeCache(truth, monkeypatch)
    curve = measure_curve(cast(Cache, cache), TARGET_SIZES)
    assert 3 not in curve.sizes
    assert curve.padded == padded
    assert curve.pass_sizes == (curve.sizes if padded else ())


@pytest.mark.parametrize("plain", [0.01, 0.2, 1.8])
def test_one_row_is_measured_at_both_ends(monkeypatch: pytest.MonkeyPatch, plain: float) -> None:
    """Something else ran when measuring began: every size would look cheap beside one row."""
    truth = CostCurve((1, 64), (plain, 15 * plain))
    cache = FakeCache(truth, monkeypatch)

    def disturbed(num_rows: int) -> float:
        before = cache.now
        cache.time_pass(num_rows)
        cache.now = before + truth.at(num_rows) * (2.6 if len(cache.sizes) <= 2 else 1.0)
        return cache.now - before

    curve = measure_curve(cast(Cache, SimpleNamespace(time_pass=disturbed)), TARGET_SIZES)
    assert curve.at(1) == pytest.approx(plain)


@pytest.mark.parametrize(
    ("plain", "sizes", "limit"),
    [
        (0.01, TARGET_SIZES, 4),
        (0.2, (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24), 9),
        (1.8, (1, 2), 12),
        (0.6, (1, 2, 3, 4, 5, 6, 8), 9),
    ],
)
def test_measuring_takes_seconds(
    monkeypatch: pytest.MonkeyPatch, plain: float, sizes: tuple[int, ...], limit: float
) -> None:
    streamed = plain > 1
    truth = CostCurve((1, 64), (plain, plain * (2 if streamed else 15)))
    cache = FakeCache(truth, monkeypatch)
    done: list[float] = []
    curve = measure_curve(cast(Cache, cache), TARGET_SIZES, done.append)
    assert curve.sizes == sizes
    assert not curve.padded, "no size costs more than a larger one"
    assert [curve.at(n) for n in sizes] == pytest.approx([truth.at(n) for n in sizes])
    assert cache.now < limit
    assert done == sorted(done)
    assert done[-1] == 1.0


@pytest.mark.parametrize("plain", [0.5, 3.0, 20.0])
def test_passes_that_wait_for_a_disk_are_measured_at_all_sizes(
    monkeypatch: pytest.MonkeyPatch, plain: float
) -> None:
    """In proportion to one row, 64 would look far too long to be timed."""
    truth = CostCurve((1, 64), (plain, 1.1 * plain))
    cache = FakeCache(truth, monkeypatch)
    curve = measure_curve(cast(Cache, cache), FLAT_SIZES, is_flat=True)
    assert curve.table(64).tolist() == pytest.approx(truth.table(64).tolist())
    assert cache.now < max(9.0, 5.5 * plain)


def test_one_row_is_measured_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass alone takes longer than measuring may."""
    cache = FakeCache(CostCurve((1,), (20.0,)), monkeypatch)
    assert measure_curve(cast(Cache, cache), (1,)).at(1) == pytest.approx(20.0)


SLOW = CostCurve((1, 2, 3, 4, 6, 8, 64), (0.1, 0.11, 0.12, 0.18, 0.25, 0.3, 2.0))


def test_a_disturbed_size_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst over all passes of one round but no other; wall time alone shows it."""
    truth = SLOW.scaled(0.2)
    cache = FakeCache(truth, monkeypatch)

    def bursts(num_rows: int) -> float:
        seconds = truth.at(num_rows) * (3.0 if 0.1 < cache.now < 0.7 else 1.0)
        cache.now += seconds
        return seconds

    curve = measure_curve(cast(Cache, SimpleNamespace(time_pass=bursts)), TARGET_SIZES)
    assert curve.disturbed
    assert {1, 2, 3, 4, 6, 8} <= curve.sure
    sure = sorted(curve.sure)
    assert [curve.at(n) for n in sure] == pytest.approx([truth.at(n) for n in sure])
    quiet = measure_curve(cast(Cache, cache), TARGET_SIZES)
    assert not quiet.disturbed
    assert {1, 2, 3, 4, 6, 8} <= quiet.sure


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
@pytest.mark.parametrize("plain", [0.02, 0.1, 0.6])
def test_a_kept_curve_heals_in_a_few_loads(
    monkeypatch: pytest.MonkeyPatch, plain: float, factor: float
) -> None:
    truth = SLOW.scaled(10 * plain)
    cache = FakeCache(truth, monkeypatch)
    points = {n: truth.at(n) * (1.0 if n == 1 else factor) for n in TARGET_SIZES}
    kept = CostCurve(tuple(points), tuple(points.values()))
    for _ in range(7):
        before = cache.now
        kept = look_again(cast(Cache, cache), kept, TARGET_SIZES)
        assert cache.now - before <= LONGEST_AGAIN + 6 * plain
    if factor > 1:
        assert [kept.at(n) for n in (2, 3, 4)] == pytest.approx([truth.at(n) for n in (2, 3, 4)])
    assert kept.looks == 7


def test_a_slower_day_is_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FakeCache(SLOW.scaled(3.0), monkeypatch)
    again = look_again(cast(Cache, cache), SLOW, TARGET_SIZES)
    assert [again.at(n) for n in (1, 4, 64)] == pytest.approx([3 * SLOW.at(n) for n in (1, 4, 64)])
