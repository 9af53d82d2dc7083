"""Measuring what passes cost, within seconds, while other programs may run.

Sizes are timed in rounds, small ones first: on them most depends, and what disturbed one round has
often gone in the next.  Company only ever adds time, so the least counts.  A size is sure once
two of its passes took about the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import CostCurve

FIRST_SIZES = (1, 2, 3, 4, 6, 8)

LONGEST, LONGEST_AGAIN, ONE_PASS = 8.0, 0.5, 3.0
"""Seconds that measuring takes, the first time and at a later load; at the latter a pass of a small
size is always timed, if it takes no longer than so many of one row."""

ROUNDS = 4
AGREE = 1.15
"""Passes that differ by less than this factor took the same."""

DISTURBED = 1.5
"""Where passes of one size differ by more than this factor, other programs ran."""

BLOCKS = 1.05
"""A size that costs this much more than a larger one is no accident: there are blocks."""

Report = Callable[[float], None]


def measure_curve(
    cache: Cache, sizes: Sequence[int], report: Report | None = None, *, is_flat: bool = False
) -> CostCurve:
    """Time passes after what the cache holds; not those that would take too long.

    Args:
        sizes: ascending, the first is 1.
        report: called with the fraction done.
        is_flat: passes wait for something else than their rows, so that none takes much longer
            than one row's: each size is timed, however slow passes are.
    """
    timer = _Timer(cache, LONGEST)
    order = [n for n in FIRST_SIZES if n in sizes] + [n for n in sizes if n not in FIRST_SIZES]
    for _ in range(ROUNDS):
        for n in order:
            if n > 1 and timer.is_sure(n):
                continue
            must = n not in timer.samples and (is_flat or n == 1)
            if timer.expected(n) > timer.left and not must:
                break
            timer.take(n)
            if report is not None:
                report(min(1.0, timer.spent / LONGEST))
        if all(map(timer.is_sure, timer.samples)):
            break
    if len(sizes) > 1:
        timer.take(1)  # a reply without plain steps never corrects what everything is judged by
    if report is not None:
        report(1.0)
    return _worthy(timer)


def look_again(cache: Cache, kept: CostCurve, sizes: Sequence[int]) -> CostCurve:
    """A curve of an earlier load, with as many sizes anew as half a second allows, or one.

    Company only ever adds time, so what is kept is the least that was ever seen, at the speed that
    passes of one row have now.

    The small sizes take turns; those that are missing come first.

    Args:
        sizes: what could be measured, ascending.
    """
    small = [n for n in FIRST_SIZES[1:] if n in sizes]
    turn = kept.looks % len(small)
    turned = small[turn:] + small[:turn]
    missing = [n for n in sizes if n not in kept.sizes and not kept.padded]
    order = dict.fromkeys([n for n in small if n in missing] + turned + missing)
    timer = _Timer(cache, LONGEST_AGAIN)
    timer.take(1)
    believed = _plausible(kept, order)
    for n in order:
        if timer.left <= 0 and len(timer.samples) > 1:
            break
        expected = timer.least(1) * believed[n] / believed[1]
        if expected <= max(timer.left, ONE_PASS * timer.least(1)):
            timer.take(n)
            timer.take(1)
    slower = timer.least(1) / believed[1]
    points = {n: slower * believed[n] for n in kept.sizes}
    sure = {n for n in timer.samples if timer.least(n) < AGREE * slower * believed[n]}
    points |= {n: min(timer.least(n), slower * believed[n]) for n in timer.samples}
    return replace(
        _in_order(points),
        padded=kept.padded,
        sure=frozenset(sure),
        disturbed=timer.disturbed,
        looks=kept.looks + 1,
    )


class _Timer:
    """Samples of passes by size."""

    def __init__(self, cache: Cache, longest: float) -> None:
        self._cache = cache
        self._started = time.perf_counter()
        self._longest = longest
        self.samples: dict[int, list[float]] = {}
        cache.time_pass(1)  # the first pass pays for page faults and graph building

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._started

    @property
    def left(self) -> float:
        return self._longest - self.spent

    def take(self, n: int) -> None:
        self.samples.setdefault(n, []).append(self._cache.time_pass(n))

    def least(self, n: int) -> float:
        return min(self.samples[n])

    def is_sure(self, n: int) -> bool:
        found = sorted(self.samples.get(n, []))
        return len(found) > 1 and found[1] < AGREE * found[0]

    def expected(self, n: int) -> float:
        """Seconds of a pass, at most in proportion to the largest that was timed."""
        if n in self.samples:
            return self.least(n)
        largest = max(self.samples, default=0)
        return self.least(largest) * n / largest if largest else 0.0

    @property
    def disturbed(self) -> bool:
        return any(max(found) > DISTURBED * min(found) for found in self.samples.values())


def _worthy(timer: _Timer) -> CostCurve:
    """What was timed; blocks show themselves where a larger size is cheaper and both are sure."""
    least = {n: timer.least(n) for n in sorted(timer.samples)}
    sure = frozenset(filter(timer.is_sure, least))
    has_blocks = any(
        least[n] > BLOCKS * min((least[m] for m in sure if m > n), default=math.inf)
        for n in sure
        if n > 1
    )
    return replace(_in_order(least), padded=has_blocks, sure=sure | {1}, disturbed=timer.disturbed)


def _in_order(seconds: Mapping[int, float]) -> CostCurve:
    """A curve with those sizes than which no larger one is cheaper."""
    cheapest = math.inf
    points: dict[int, float] = {}
    for n in sorted(seconds, reverse=True):
        if n == 1 or seconds[n] < cheapest:
            points[n] = cheapest = seconds[n]
    return CostCurve(tuple(reversed(points)), tuple(reversed(points.values())))


def _plausible(curve: CostCurve, sizes: Iterable[int]) -> dict[int, float]:
    """Seconds by size, none dearer than the smaller passes that would do the same."""
    points: dict[int, float] = {}
    for n in sorted({*curve.sizes, *sizes}):
        points[n] = min([curve.at(n), *(-(-n // m) * points[m] for m in points)])
    return points
