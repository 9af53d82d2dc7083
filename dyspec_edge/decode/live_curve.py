"""Seconds of a pass by its rows, as they are believed now: a curve, and what use has taught.

Every pass is a measurement of T(n), at any n.  What it teaches is of two kinds, both factors on the
kept curve:

    common   a longer context, a slower clock: all sizes alike.  Passes of one row carry it.
    own      the curve was off at n.  Sizes that nobody has seen share it: between two that were
             seen by the logarithm of n, beyond the last one as it is there.

A size is *sure* while it was seen lately, at load or in use, and passes of one row take as long as
they did then: these wait for memory, larger ones compute, and what slows the one may leave the
other.  Others are *doubtful*, and hoped to cost no more than the next smaller sure one.  Company
only ever adds time, so a size is never priced above a larger one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from dyspec_edge.decode.cost import TARGET_SIZES, CostCurve, Seconds

WINDOW = 5
"""The common factor is the median of so many passes of one row, or, if there were none among the
last so many passes, of others: two outliers change nothing, and three are followed."""

AT_LOAD, MOST = 3.0, 15.0
"""What a size that was measured at load counts, in passes, and what any counts at most."""

KNOWN = 2.0
"""A size that counts less does not speak for all: if it surprises, the curve was off there."""

WANES, SURE = 0.99, 0.5
"""With every other pass a size loses weight; what weighs less than that is doubtful."""

DRIFT, PATIENCE = 0.2, 32
"""All sizes look that much slower or faster: a pass of one row is to say whether they are, unless
the last one is less than so many passes ago."""

LOOKS = 0.01
"""Share of all time for passes of one row where no step is plain: by them everything is judged."""

SHIFT = 0.1
"""Passes of one row are that much slower or faster: what others cost is to be seen again."""

SLOWLY, OUTLIER = 0.05, 0.7
"""Beside passes of one row, what surprises is the size's own, an outlier in part; where there were
none for long, it is taken for common but for a small share."""


class LiveCurve:
    """A measured curve, kept true by the passes that happen.

    Args:
        curve: as measured.
        largest: rows up to which `table` reaches.
    """

    def __init__(self, curve: CostCurve, largest: int) -> None:
        self.curve = curve
        self._base = curve.table(largest)
        self._common = self._confirmed = 0.0
        self._ones = deque([0.0], WINDOW)  # passes of one row
        self._others = deque[float]([], WINDOW)  # and after the last of them of sizes well known
        self._rows = np.arange(largest + 1)
        # A pass that is filled up is one of its larger size.
        self._size = [next((s for s in curve.pass_sizes if s >= n), n) for n in range(largest + 1)]
        self._log_size = np.log(np.maximum(1, self._size))
        self._own = {1: 0.0}
        self._num_seen = {n: round(AT_LOAD) for n in curve.sure}
        self._taken: dict[int, float] = {}  # as their own, by sizes, since one row was as believed
        self._num_since = PATIENCE  # passes after the last of one row, and their seconds
        self._seconds_since = math.inf if curve.disturbed else 0.0
        self._one_is_too_dear = False  # a larger pass took less than one row is believed to take
        self._group = [_nearest(TARGET_SIZES, max(1, n)) for n in self._size]
        self._groups = np.array(self._group)
        self._weights = [0.0] * len(TARGET_SIZES)
        self._common_then = [0.0] * len(TARGET_SIZES)  # when the size was seen last
        for n in curve.sure:
            if n <= largest:
                self._own[n] = 0.0
                self._weights[self._group[n]] = AT_LOAD
        self._corrections = np.zeros(largest + 1)
        self._floor = np.zeros(largest + 1, np.int64)  # the next smaller sure size
        self._table = self._base
        self._is_stale = True  # a step has several passes, and asks for prices once

    @property
    def table(self) -> Seconds:
        """float64[largest + 1], seconds by rows, as is believed now."""
        if self._is_stale:
            self._correct()
        return self._table

    @property
    def factor(self) -> float:
        """How much slower than measured passes of all sizes are now."""
        return math.exp(self._common)

    @property
    def asks_for_one_row(self) -> bool:
        """Whether it takes a pass of one row to know what passes cost."""
        if self._is_unclear and self._num_since >= PATIENCE:
            return True
        return LOOKS * self._seconds_since > self.at(1)

    @property
    def _is_unclear(self) -> bool:
        return self._one_is_too_dear or abs(self._common - self._confirmed) > DRIFT

    def at(self, num_rows: int) -> float:
        """Seconds of a pass over `num_rows` rows."""
        table = self.table
        if num_rows < len(table):
            return table.item(num_rows)
        return float(table[-1] / self._base[-1]) * self.curve.at(num_rows)

    def is_sure(self, num_rows: int) -> bool:
        """Whether passes of about that size were seen lately."""
        group = self._group[num_rows]
        return num_rows <= 1 or (self._weights[group] >= SURE and not self._has_shifted(group))

    def hoped(self, stake: float, most: float = math.inf) -> Seconds:
        """As `table`, but a doubtful size costs what the next smaller sure one does.

        Args:
            stake: seconds that being wrong may cost.
            most: seconds that a pass over a doubtful size may take at worst; it is not for sale
                where several passes over the next smaller sure size would take longer.
        """
        table = self.table
        floor = np.minimum(table, table[self._floor])
        hoped = np.where(table - floor <= stake, floor, table)
        return np.where(self._several <= most, hoped, np.inf)

    @property
    def feared(self) -> Seconds:
        """As `table`, but a size that was not seen for long costs at least what was kept."""
        return np.maximum(self.table, np.where(self._seen, 0.0, self._base * self.factor))

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take a pass of `num_rows` rows into account; sizes beyond the table teach nothing."""
        if num_rows >= len(self._base) or seconds <= 0:
            return
        ratio = math.log(seconds / self._base.item(num_rows))
        if num_rows == 1:
            self._see_one_row(ratio)
        else:
            self._one_is_too_dear |= seconds * (1.0 + DRIFT) < self.at(1)
            self._seconds_since += seconds
            self._see(num_rows, ratio)
        self._is_stale = True

    def as_curve(self) -> CostCurve:
        """What is believed, without what is common: it is of this hour."""
        points = sorted({*self.curve.sizes, *self._own} & {*self._rows[1:].tolist()})
        if self.curve.padded:
            points = [n for n in points if n in self.curve.sizes]
        beyond = [n for n in self.curve.sizes if n not in points]
        seconds = [self.table.item(n) / self.factor for n in points]
        last = self.at(points[-1]) / self.curve.at(points[-1]) / self.factor
        seconds += [last * self.curve.at(n) for n in beyond]
        return replace(
            self.curve, sizes=(*points, *beyond), seconds=tuple(seconds), sure=frozenset()
        )

    def _see_one_row(self, ratio: float) -> None:
        believed = self._common
        asked = self._is_unclear
        self._ones.extend([ratio] * (WINDOW if asked else 1))
        self._common = self._confirmed = _median(self._ones)
        change = self._common - believed
        for n, taken in self._taken.items():
            # What was taken for common was their own, or the other way round.
            if asked:
                self._own[n] -= change
            elif change * taken > 0.0:
                self._own[n] -= min(change, taken, key=abs)
        if abs(ratio - self._common) < DRIFT:
            self._taken.clear()
        self._others.clear()
        self._num_since, self._seconds_since, self._one_is_too_dear = 0, 0.0, False
        self._wane(0)

    def _see(self, num_rows: int, ratio: float) -> None:
        group = self._group[num_rows]
        # What its neighbours have taught says less of a size than its own passes.
        num_seen = self._num_seen.get(num_rows, 0)
        self._num_seen[num_rows] = num_seen + 1
        weight = min(self._weights[group], SURE + num_seen)
        own = self._own[num_rows] if num_rows in self._own else self._correction(num_rows)
        surprise = ratio - self._common - own
        if weight < SURE or self._has_shifted(group):
            taken = surprise
            # What one row does more than the others, it does beside all of them.
            others = [n for n in self._own if n > 1 and self._group[n] != group]
            for n in [n for n in others if self._has_shifted(self._group[n])]:
                self._take(n, taken)
                self._common_then[self._group[n]] = self._common
        elif weight < KNOWN or self._num_since < WINDOW:
            taken = max(-OUTLIER, min(OUTLIER, surprise)) / (1.0 + weight)
        else:
            taken = SLOWLY * max(-DRIFT, min(DRIFT, surprise))
            self._others.append(ratio - own - taken)
            if len(self._others) > WINDOW // 2:
                self._common = _median(self._others)
        self._own[num_rows] = own
        self._take(num_rows, taken)
        self._num_since += 1
        self._wane(group)
        self._weights[group] = min(MOST, self._weights[group] + 1.0)
        self._common_then[group] = self._common

    def _take(self, num_rows: int, taken: float) -> None:
        """As its own."""
        self._own[num_rows] += taken
        self._taken[num_rows] = self._taken.get(num_rows, 0.0) + taken

    def _has_shifted(self, group: int) -> bool:
        """Whether one row is slower or faster than when the size was seen."""
        return abs(self._common - self._common_then[group]) > SHIFT

    def _wane(self, group: int) -> None:
        self._weights = [w if g == group else WANES * w for g, w in enumerate(self._weights)]

    def _correction(self, num_rows: int) -> float:
        if self._is_stale:
            self._correct()
        return self._corrections.item(num_rows)

    def _correct(self) -> None:
        known = sorted(self._own)
        own = np.interp(self._log_size, np.log(known), [self._own[n] for n in known])
        seen = np.array(self._weights) >= SURE
        steady = [not self._has_shifted(g) for g in range(len(self._weights))]
        self._seen, sure = seen[self._groups], (seen & steady)[self._groups]
        self._seen[:2] = sure[:2] = True
        own = np.where(sure, own, np.minimum(own, 0.0))
        self._corrections = own
        prices = self._base * np.exp(own + self._common)
        floor = np.maximum.accumulate(np.where(sure, self._rows, 0))
        # What a pass over n rows does, several smaller ones do as well.
        several = -(-self._rows // np.maximum(1, floor)) * prices[floor]
        prices = np.where(sure, prices, np.clip(prices, prices[floor], several))
        self._several = np.where(sure, 0.0, several)
        beyond = prices[2:][::-1]
        np.minimum.accumulate(beyond, out=beyond)
        self._table, self._floor, self._is_stale = prices, floor, False


def _nearest(sizes: Sequence[int], num_rows: int) -> int:
    """The place of the size that differs least from `num_rows`, as a ratio."""
    return min(range(len(sizes)), key=lambda i: abs(math.log(sizes[i] / num_rows)))


def _median(values: Collection[float]) -> float:
    """The lower one: company only ever adds time."""
    return sorted(values)[(len(values) - 1) // 2]
