"""The check at load: measured pass costs, and whether drafting pays at them."""

from __future__ import annotations

from typing import cast

import pytest

from dyspec_edge.decode import cost
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import PassCosts


class FakeCache:
    """A cache whose passes take a given time; every call is noted in `calls`."""

    def __init__(self, name: str, calls: list[tuple[str, int]], seconds: list[float]) -> None:
        self._name, self._calls, self._seconds = name, calls, seconds

    def time_pass(self, num_rows: int) -> float:
        self._calls.append((self._name, num_rows))
        return self._seconds.pop(0) if len(self._seconds) > 1 else self._seconds[0]


def measure(
    target: FakeCache, draft: FakeCache | None, sizes: tuple[int, ...] = (1, 5, 9)
) -> tuple[list[float], PassCosts]:
    """The progress that was reported, and the costs."""
    progress: list[float] = []
    costs = cost.measure(
        cast(Cache, target),
        cast(Cache, draft) if draft else None,
        sizes,
        progress.append,
    )
    return progress, costs


def test_the_gain_of_a_chain_is_computed_by_hand() -> None:
    costs = PassCosts({1: 0.1, 5: 0.14, 9: 0.3}, 0.01)
    of_four = (1 + 0.75 + 0.75**2 + 0.75**3 + 0.75**4) * 0.1 / (4 * 0.01 + 0.14)
    assert costs.predicted_gain() == pytest.approx(of_four)
    assert costs.predicted_gain(1.0) == pytest.approx(max(5 * 0.1 / 0.18, 9 * 0.1 / 0.38))
    assert costs.plain == 0.1


def test_the_longer_chain_counts_where_it_is_better() -> None:
    costs = PassCosts({1: 1.0, 5: 1.0, 9: 1.0}, 0.001)
    of_eight = sum(0.75**i for i in range(9)) / (8 * 0.001 + 1.0)
    assert costs.predicted_gain() == pytest.approx(of_eight)


@pytest.mark.parametrize(("draft", "pays"), [(0.030, True), (0.080, False)])
def test_drafting_has_to_pay_a_tenth(draft: float, pays: bool) -> None:
    costs = PassCosts({1: 0.1, 5: 0.12, 9: 0.16}, draft)
    assert costs.pays is pays
    assert (costs.predicted_gain() >= 1.1) is pays


def test_without_a_draft_nothing_pays() -> None:
    costs = PassCosts({1: 0.1}, None)
    assert costs.predicted_gain() == 1.0
    assert not costs.pays


def test_passes_are_measured_after_a_warm_up() -> None:
    calls: list[tuple[str, int]] = []
    target, draft = FakeCache("target", calls, [0.02]), FakeCache("draft", calls, [0.01])
    progress, costs = measure(target, draft)
    wanted = [("target", n) for n in (1, 5, 9) for _ in range(3)] + [("draft", 1)] * 3
    assert calls == [("target", 1), ("draft", 1), *wanted]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert costs == PassCosts({1: 0.02, 5: 0.02, 9: 0.02}, 0.01)


def test_the_warm_up_does_not_count() -> None:
    target = FakeCache("target", [], [9.0, 0.02])
    assert measure(target, None, (1,))[1] == PassCosts({1: 0.02}, None)


def test_the_fastest_of_three_counts() -> None:
    target = FakeCache("target", [], [9.0, 0.03, 0.01, 0.02])
    assert measure(target, None, (1,))[1].plain == 0.01


def test_slow_passes_are_measured_once() -> None:
    calls: list[tuple[str, int]] = []
    target = FakeCache("target", calls, [0.5])
    measure(target, None)
    assert calls == [("target", 1), ("target", 1), ("target", 5), ("target", 9)]
