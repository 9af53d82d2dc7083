"""Cost curves: lines between points, corrections by real passes, measuring within seconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyspec_edge.decode import cost
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import CostCurve, LiveCurve, chain_rate, measure_curve

CURVE = CostCurve((1, 2, 4, 8, 16), (1.0, 1.2, 1.6, 2.4, 4.0))


def test_straight_lines_between_and_beyond() -> None:
    assert [CURVE.at(n) for n in (1, 3, 4, 12)] == pytest.approx([1.0, 1.4, 1.6, 3.2])
    assert CURVE.at(26) == pytest.approx(6.0)
    assert CURVE.table(20).tolist() == pytest.approx([0.0, *(CURVE.at(n) for n in range(1, 21))])
    assert CostCurve((1, 8, 32), (1.8, 1.9, 1.7)).at(64) == 1.7, "never cheaper with more rows"
    assert CostCurve((1,), (0.5,)).at(4) == 2.0


def test_the_best_chain() -> None:
    flat = np.full(65, 2.0)
    assert chain_rate(flat, None, 0.9) == 0.5
    assert chain_rate(flat, 100.0, 0.9) == 0.5, "plain decoding is the shortest chain"
    k = np.arange(33)
    expected = max(sum(0.8**j for j in range(n + 1)) / (0.1 * n + 2.0) for n in k)
    assert chain_rate(flat, 0.1, 0.8) == pytest.approx(expected)


def live(curve: CostCurve = CURVE) -> LiveCurve:
    return LiveCurve(curve, 64)


def feed(curve: LiveCurve, sizes: list[int], factor: float) -> None:
    for n in sizes:
        curve.observe(n, factor * CURVE.at(n))


def test_passes_as_measured_change_nothing() -> None:
    curve = live()
    feed(curve, [1, 5, 16, 1, 2, 9] * 5, 1.0)
    assert curve.table == pytest.approx(CURVE.table(64))


def test_an_outlier_changes_little() -> None:
    curve = live()
    feed(curve, [1, 4] * 5, 1.0)
    feed(curve, [4], 20.0)
    assert curve.table == pytest.approx(CURVE.table(64), rel=0.02)


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("sizes", [[1], [12], [1, 12]])
def test_a_lasting_change_is_followed_for_every_size(factor: float, sizes: list[int]) -> None:
    curve = live()
    feed(curve, sizes * 6, 1.0)
    feed(curve, (sizes * 3)[:3], factor)
    assert curve.table[1:] == pytest.approx(factor * CURVE.table(64)[1:], rel=0.1)
    feed(curve, sizes * 40, factor)
    assert curve.table[1:] == pytest.approx(factor * CURVE.table(64)[1:], rel=0.03)


def test_a_size_that_the_curve_has_wrong_does_not_touch_the_others() -> None:
    curve = live()
    feed(curve, [1] * 3, 1.0)
    for _ in range(60):
        feed(curve, [16], 1.5)
        feed(curve, [1], 1.0)
    assert curve.at(1) == pytest.approx(1.0, rel=0.05)
    assert curve.at(16) == pytest.approx(6.0, rel=0.05)


def test_a_slow_start_of_plain_passes_does_not_make_rows_look_cheap() -> None:
    curve = live()
    feed(curve, [1] * 3, 1.5)  # the first ones after a prompt
    feed(curve, [1] * 12, 1.1)
    assert curve.at(1) == pytest.approx(1.1, rel=0.02)
    assert curve.at(16) == pytest.approx(1.1 * CURVE.at(16), rel=0.02)


def test_several_new_sizes_that_are_off_are_a_change_of_all() -> None:
    curve, one = live(), live()
    feed(curve, [32] * 3, 1.0)
    feed(curve, [16, 8, 4], 2.0)
    assert curve.at(1) > 1.3
    feed(one, [16] * 3, 2.0)
    assert one.at(1) == pytest.approx(1.0, rel=0.02)


def test_what_is_not_seen_again_is_forgotten() -> None:
    curve = live()
    feed(curve, [8], 3.0)
    assert curve.at(8) > 1.2 * CURVE.at(8)
    feed(curve, [1] * 600, 1.0)
    assert curve.at(8) == pytest.approx(CURVE.at(8), rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 80), st.floats(1e-6, 1e3)), max_size=40))
def test_tables_stay_positive_and_finite(passes: list[tuple[int, float]]) -> None:
    curve = live()
    for rows, seconds in passes:
        curve.observe(rows, seconds)
    assert np.isfinite(curve.table).all()
    assert (curve.table[1:] > 0).all()


def test_corrections_are_kept_and_foreign_ones_refused() -> None:
    curve, other = live(), live()
    feed(curve, [8] * 3, 2.0)
    other.restore(curve.as_dict())
    assert other.table == pytest.approx(curve.table)
    with pytest.raises(ValueError, match="another curve"):
        LiveCurve(CostCurve((1, 2), (1.0, 2.0)), 64).restore(curve.as_dict())
    with pytest.raises(KeyError):
        other.restore({})


def test_a_padded_curve_has_steps() -> None:
    curve = CostCurve((1, 4, 8), (1.0, 1.5, 2.5), padded=True)
    assert curve.pass_sizes == (1, 4, 8)
    assert CURVE.pass_sizes == ()
    wanted = [0.0, 1.0, 1.5, 1.5, 1.5, 2.5, 2.5, 2.5, 2.5, 2.75, 3.0]
    assert curve.table(10) == pytest.approx(wanted)
    corrected = LiveCurve(curve, 10)
    for _ in range(3):
        corrected.observe(4, 3.0)
    assert corrected.table[2] == corrected.table[4] > 1.9
    assert corrected.table[5] == pytest.approx(2.5, rel=0.02)


def test_sizes_that_are_dearer_than_a_larger_one_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine whose kernels work on blocks of sixteen rows."""
    truth = CostCurve((1, 8, 12, 16, 20, 64), (0.01, 0.04, 0.05, 0.035, 0.036, 0.1))
    cache = FakeCache(truth, monkeypatch)
    curve = measure_curve(cast(Cache, cache), cost.TARGET_SIZES)
    assert not {8, 12} & set(curve.sizes)
    assert curve.sizes[0] == 1
    assert {16, 20, 64} <= set(curve.sizes)
    assert curve.at(9) == pytest.approx(0.035)


class FakeCache:
    """Passes whose time passes on a clock of its own."""

    def __init__(self, curve: CostCurve, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sizes, self._curve = 0.0, list[int](), curve
        monkeypatch.setattr("dyspec_edge.decode.cost.time.perf_counter", lambda: self.now)

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
    curve = measure_curve(cast(Cache, cache), cost.TARGET_SIZES)
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
        cache.now = before + truth.at(num_rows) * (2.6 if set(cache.sizes) == {1} else 1.0)
        return cache.now - before

    curve = measure_curve(cast(Cache, SimpleNamespace(time_pass=disturbed)), cost.TARGET_SIZES)
    assert curve.at(1) == pytest.approx(plain)


@pytest.mark.parametrize(
    ("plain", "sizes", "limit"),
    [
        (0.01, cost.TARGET_SIZES, 4),
        (0.2, (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24), 8),
        (1.8, (1, 8, 32), 12),
    ],
)
def test_measuring_takes_seconds(
    monkeypatch: pytest.MonkeyPatch, plain: float, sizes: tuple[int, ...], limit: float
) -> None:
    streamed = plain > 1
    truth = CostCurve((1, 64), (plain, plain * (2 if streamed else 15)))
    cache = FakeCache(truth, monkeypatch)
    done: list[float] = []
    curve = measure_curve(cast(Cache, cache), cost.TARGET_SIZES, done.append)
    assert curve.sizes == sizes
    assert not curve.padded, "no size costs more than a larger one"
    assert [curve.at(n) for n in sizes] == pytest.approx([truth.at(n) for n in sizes])
    assert cache.now < limit
    assert done == sorted(done)
    assert done[-1] == 1.0
