"""Cost curves: lines between points, steps where passes are filled up, the best chain."""

from __future__ import annotations

import numpy as np
import pytest

from dyspec_edge.decode.cost import CostCurve, chain_rate

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


def test_a_padded_curve_has_steps() -> None:
    curve = CostCurve((1, 4, 8), (1.0, 1.5, 2.5), padded=True)
    assert curve.pass_sizes == (1, 4, 8)
    assert CURVE.pass_sizes == ()
    wanted = [0.0, 1.0, 1.5, 1.5, 1.5, 2.5, 2.5, 2.5, 2.5, 2.75, 3.0]
    assert curve.table(10) == pytest.approx(wanted)
