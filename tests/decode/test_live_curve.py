"""Live curves: what passes teach about their own size, about all, and about sizes nobody saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyspec_edge.decode.cost import TARGET_SIZES, CostCurve
from dyspec_edge.decode.live_curve import LiveCurve
from tests.decode.test_cost import CURVE


def live(curve: CostCurve = CURVE) -> LiveCurve:
    return LiveCurve(replace(curve, sure=frozenset(TARGET_SIZES)), 64)


def feed(curve: LiveCurve, sizes: list[int], factor: float) -> None:
    for n in sizes:
        curve.observe(n, factor * CURVE.at(n))


def test_passes_as_measured_change_nothing() -> None:
    curve = live()
    feed(curve, [1, 5, 16, 1, 2, 9] * 5, 1.0)
    assert curve.table == pytest.approx(CURVE.table(64))


def test_a_size_that_was_never_seen_is_not_outvoted_by_its_neighbours() -> None:
    curve = LiveCurve(CURVE, 64)
    feed(curve, [1, 9, 11] * 8, 1.0)
    believed = curve.at(10)
    feed(curve, [10] * 3, 0.6)
    assert curve.at(10) == pytest.approx(0.6 * believed, rel=0.12)
    assert curve.at(1) == pytest.approx(CURVE.at(1), rel=0.02)


def test_an_outlier_changes_little() -> None:
    curve = live()
    feed(curve, [1, 4] * 5, 1.0)
    feed(curve, [4], 20.0)
    assert curve.table == pytest.approx(CURVE.table(64), rel=0.1)
    feed(curve, [1], 20.0)
    assert curve.at(1) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("sizes", [[1], [12], [1, 12]])
def test_a_lasting_change_is_followed_for_every_size(factor: float, sizes: list[int]) -> None:
    curve = live()
    feed(curve, sizes * 6, 1.0)
    feed(curve, (sizes * 5)[: 3 if len(sizes) == 1 else 5], factor)
    assert curve.table[1:] == pytest.approx(factor * CURVE.table(64)[1:], rel=0.15)
    feed(curve, sizes * 40, factor)
    assert curve.table[1:] == pytest.approx(factor * CURVE.table(64)[1:], rel=0.04)


def test_one_row_alone_got_faster() -> None:
    """Small passes wait for memory, larger ones compute: others are doubtful until one was seen."""
    curve = live()
    feed(curve, [1, 4, 8, 16], 1.0)
    feed(curve, [1] * 5, 0.7)
    assert curve.at(1) == pytest.approx(0.7)
    assert not curve.is_sure(4)
    feed(curve, [4], 1.0)
    assert curve.is_sure(4)
    assert curve.table[[4, 8, 16]] == pytest.approx(CURVE.table(64)[[4, 8, 16]]), "and what it said"
    feed(curve, [1] * 5, 0.75)
    assert curve.is_sure(4), "that little is no shift"


def test_what_everything_is_judged_by_is_looked_at_once_in_a_hundred_passes() -> None:
    curve = live()
    num_looks = 0
    for _ in range(1000):
        looks = curve.asks_for_one_row
        num_looks += looks
        feed(curve, [1 if looks else 4], 1.0)
    assert num_looks == pytest.approx(1000 * CURVE.at(4) / 100, rel=0.1)


def test_one_row_that_was_measured_in_company_is_looked_at_first() -> None:
    curve = LiveCurve(replace(CURVE, disturbed=True), 64)
    assert curve.asks_for_one_row
    feed(curve, [1], 0.7)
    assert curve.at(1) == pytest.approx(0.7), "company only adds time"
    assert not curve.asks_for_one_row


def test_a_size_that_the_curve_has_wrong_does_not_touch_the_others() -> None:
    curve = live()
    feed(curve, [1] * 3, 1.0)
    for _ in range(60):
        feed(curve, [16], 1.2)
        feed(curve, [1], 1.0)
    assert curve.at(1) == pytest.approx(1.0, rel=0.05)
    assert curve.at(16) == pytest.approx(4.8, rel=0.05)


def test_a_slow_start_of_plain_passes_does_not_make_rows_look_cheap() -> None:
    curve = live()
    feed(curve, [1] * 3, 1.5)  # the first ones after a prompt
    feed(curve, [1] * 12, 1.1)
    assert curve.at(1) == pytest.approx(1.1, rel=0.02)
    assert curve.at(16) == pytest.approx(1.1 * CURVE.at(16), rel=0.02)


def test_sizes_that_are_off_together_are_a_change_of_all_until_one_row_tells() -> None:
    curve = live()
    feed(curve, [32] * 3, 1.0)
    feed(curve, [16, 8, 4], 2.0)
    assert curve.at(1) > 1.3
    asks = [curve.asks_for_one_row]
    feed(curve, [1], 1.0)
    assert [*asks, curve.asks_for_one_row] == [True, False]
    assert curve.at(1) == pytest.approx(1.0, rel=0.02)
    assert curve.at(16) == pytest.approx(CURVE.at(20)), "it was their own; 20 rows are sure"


def test_what_was_not_seen_shares_what_others_were_cheaper_by() -> None:
    curve = LiveCurve(CURVE, 64)
    before = curve.table.copy()
    feed(curve, [4], 1 / 3)
    assert curve.at(4) == pytest.approx(CURVE.at(4) / 3)
    assert curve.at(64) == pytest.approx(before[64] / 3, rel=0.02)
    feed(curve, [16], 1.0)
    assert curve.at(16) == pytest.approx(CURVE.at(16)), "seen"
    assert CURVE.at(8) / 3 < curve.at(8) < CURVE.at(8)
    feed(curve, [8], 3.0)
    assert curve.at(8) == pytest.approx(curve.at(16)), "no size is dearer than a larger one"


def test_doubtful_sizes_are_hoped_to_be_as_cheap_as_the_next_smaller_sure_one() -> None:
    curve = LiveCurve(CURVE, 64)
    assert [curve.is_sure(n) for n in (1, 2, 8)] == [True, False, False]
    feed(curve, [4], 1.0)
    assert curve.is_sure(4)
    assert not curve.is_sure(5)
    assert curve.hoped(np.inf)[[2, 4, 16]] == pytest.approx([1.0, 1.6, 1.6])
    assert curve.hoped(1.0)[[8, 16]] == pytest.approx([1.6, CURVE.at(16)]), "the stake"
    assert curve.hoped(0.0) == pytest.approx(curve.table)
    assert curve.feared == pytest.approx(CURVE.table(64))
    feed(curve, [1] * 100, 1.0)
    assert not curve.is_sure(4), "that was long ago"
    sure = live()
    assert sure.hoped(np.inf) == pytest.approx(sure.table)


def test_several_small_passes_do_what_a_large_one_does() -> None:
    curve = LiveCurve(CostCurve((1, 2, 8), (1.0, 9.0, 20.0)), 16)
    assert curve.table[[2, 3, 8]] == pytest.approx([2.0, 3.0, 8.0])


def test_what_was_learned_makes_a_curve() -> None:
    curve = live()
    for _ in range(20):
        feed(curve, [1], 2.0)
        feed(curve, [8, 7], 2.5)
    kept = curve.as_curve()
    assert kept.at(1) == pytest.approx(1.0, rel=0.05), "the hour is not kept"
    assert kept.at(8) == pytest.approx(1.25 * CURVE.at(8), rel=0.05)
    assert 7 in kept.sizes
    assert not kept.sure
    assert list(kept.seconds) == sorted(kept.seconds)


@given(st.lists(st.tuples(st.integers(1, 80), st.floats(1e-6, 1e3)), max_size=40))
def test_tables_stay_positive_and_finite(passes: list[tuple[int, float]]) -> None:
    curve = live()
    for rows, seconds in passes:
        curve.observe(rows, seconds)
    assert np.isfinite(curve.table).all()
    assert (curve.table[1:] > 0).all()


def test_filled_passes_share_a_price() -> None:
    curve = CostCurve((1, 4, 8), (1.0, 1.5, 2.5), padded=True)
    corrected = LiveCurve(curve, 10)
    for _ in range(3):
        corrected.observe(4, 2.0)
    assert corrected.table[2] == corrected.table[4] == pytest.approx(2.0)
    assert corrected.table[5] == pytest.approx(2.5)
    assert corrected.as_curve().sizes == (1, 4, 8)
