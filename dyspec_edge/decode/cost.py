"""What the passes of a model cost on this machine, by their rows.

A curve is measured once and goes straight on beyond its last point.  Kernels of quantised weights
work on blocks of rows, so that a pass may cost more than a larger one: where that was measured,
passes are filled up to the next measured size.  While text is generated the curve is corrected by
the passes that really happen.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import Cache

Seconds = npt.NDArray[np.float64]

TARGET_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64)
DRAFT_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 64, 128)
SLOW_SIZES = (1, 8, 32)
"""Rows of the passes that are measured; the last ones where a pass takes `SLOW_SECONDS`.

A draft is measured further than its trees go, because it reads what it missed, too."""

SLOW_SECONDS = 0.5
ENOUGH_SECONDS = 0.25
"""A size is measured until this much time went into it, three times at most."""

LONGEST_MEASUREMENT = 8.0
"""Seconds; sizes that would take longer are left to the straight line."""

BLOCKS = 1.05
"""A size that costs this much more than a larger one is no accident: there are blocks."""

LONGEST_CHAIN = 32


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass by its rows.

    Attributes:
        sizes: ascending, the first is 1.
        seconds: of a pass over that many rows.
        padded: passes are filled up to the next of `sizes` (Cache.pad_to), so the curve has
            steps; otherwise there are straight lines between its points.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    padded: bool = False

    @property
    def pass_sizes(self) -> tuple[int, ...]:
        """What passes are to be filled up to; empty: nothing."""
        return self.sizes if self.padded else ()

    def at(self, num_rows: int) -> float:
        """Seconds of a pass over `num_rows` rows."""
        return float(self._at(np.array([num_rows]))[0])

    def table(self, largest: int) -> Seconds:
        """float64[largest + 1], entry n for n rows; no rows cost nothing."""
        seconds = self._at(np.arange(largest + 1))
        seconds[0] = 0.0
        return seconds

    def scaled(self, factor: float) -> CostCurve:
        """The same curve at another speed."""
        return replace(self, seconds=tuple(factor * s for s in self.seconds))

    def _at(self, num_rows: npt.NDArray[np.int64]) -> Seconds:
        last, longest = self.sizes[-1], self.seconds[-1]
        if self.padded:
            inside = np.minimum(np.searchsorted(self.sizes, num_rows), len(self.sizes) - 1)
            found: Seconds = np.take(self.seconds, inside)
        else:
            found = np.interp(num_rows, self.sizes, self.seconds)
        slope = longest / last
        if len(self.sizes) > 1:
            slope = max(0.0, (longest - self.seconds[-2]) / (last - self.sizes[-2]))
        return found + slope * np.maximum(0, num_rows - last)


class LiveCurve:
    """A measured curve, kept true by the passes that happen.

    Two corrections, both factors: one for all sizes together (a longer context, a slower clock)
    and one for each measured size but the first (the curve was off there).  What changes between
    passes of the same size is common; how the first passes of a size differ from the curve is its
    own.  Passes of one row, those of plain decoding, say how fast the machine is: were they to have
    a correction of their own, a slow start of theirs would make all other sizes look cheap.

    Args:
        curve: as measured.
        largest: rows up to which `table` reaches.

    Attributes:
        table: float64[largest + 1], seconds by rows; written anew by `observe`.
    """

    WINDOW = 5
    """The common factor is the median of so many passes: two slow outliers change nothing, and a
    lasting change is followed in three."""

    FIRST = 3
    SLOWLY = 0.05
    FADING, FADES_EVERY = 0.96, 8

    def __init__(self, curve: CostCurve, largest: int) -> None:
        self.curve = curve
        self.table = curve.table(largest)
        # `observe` stands between two passes that have emptied the processor's caches: with numbers
        # of Python it takes half as long as with a dozen functions of numpy.
        self._base: list[float] = self.table.tolist()
        self._shares = _shares_of_points(curve, self.table)
        self._nearest = [_nearest(curve.sizes, n) for n in range(1, largest + 1)]
        self._recent = deque([0.0] * self.WINDOW, self.WINDOW)
        self._common = 0.0
        self._num_observed = 0
        self._uncommon = self.table.copy()  # the table without the common factor
        self._last_size = -1
        self._own = [0.0] * len(curve.sizes)
        self._num_seen = [0] * len(curve.sizes)

    @property
    def factor(self) -> float:
        """How much slower than measured passes of all sizes are now."""
        return math.exp(self._common)

    def at(self, num_rows: int) -> float:
        """Seconds of a pass over `num_rows` rows."""
        if num_rows < len(self.table):
            return self.table.item(num_rows)
        return self.curve.at(num_rows) * math.exp(self._common + self._own[-1])

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take a pass of `num_rows` rows into account; sizes far beyond the curve teach nothing."""
        if num_rows > 2 * self.curve.sizes[-1] or num_rows >= len(self._base) or seconds <= 0:
            return
        size, common = self._nearest[num_rows - 1], self._common
        ratio = math.log(seconds / self._base[num_rows])
        seen, own = self._num_seen[size], self._own[size]
        surprise = ratio - self._common - own
        if size == 0:
            self._follow(ratio)
        elif seen < self.FIRST:
            # The measurement counts as one more observation, without a surprise.
            self._own[size] += max(-0.7, min(0.7, surprise)) / (seen + 2)
            # One new size that is off is off by itself; several in a row are a change of all.
            if size != self._last_size:
                self._follow(ratio - self._own[size])
        else:
            self._follow(ratio - own)
            self._own[size] += self.SLOWLY * max(-0.2, min(0.2, surprise))
        self._last_size = size
        self._num_seen[size] += 1
        self._num_observed += 1
        fades = self._num_observed % self.FADES_EVERY == 0
        if fades:
            # A size that was found dear is not bought again: without forgetting it stays dear.
            for other, own in enumerate(self._own):
                if other != size:
                    self._own[other] = self.FADING * own
        if fades or size > 0:
            self._correct()
        elif self._common != common:
            self._scale()

    def as_dict(self) -> dict[str, Any]:
        """The corrections, for JSON."""
        return {
            "common": self._common,
            "own": list(self._own),
            "num_seen": list(self._num_seen),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take the corrections per size of `as_dict`; the common one is of another hour.

        Raises:
            KeyError, TypeError, ValueError: not a dictionary of this curve.
        """
        own = [float(x) for x in saved["own"]]
        seen = [int(n) for n in saved["num_seen"]]
        if not len(own) == len(seen) == len(self._own) or not all(map(math.isfinite, own)):
            raise ValueError("corrections of another curve")
        self._own, self._num_seen = [0.0, *own[1:]], seen
        self._correct()

    def _follow(self, ratio: float) -> None:
        """Take the logarithm of a slowdown that is no size's own."""
        self._recent.append(ratio)
        self._common = sorted(self._recent)[self.WINDOW // 2]

    def _correct(self) -> None:
        points = [s * math.exp(own) for s, own in zip(self.curve.seconds, self._own, strict=True)]
        np.dot(self._shares, points, out=self._uncommon)
        self._scale()

    def _scale(self) -> None:
        np.multiply(self._uncommon, math.exp(self._common), out=self.table)


def _shares_of_points(curve: CostCurve, table: Seconds) -> npt.NDArray[np.float64]:
    """float64[len(table), len(sizes)], by which the points' seconds add up to those of any size.

    Beyond the last point, what is true of it is true of all.
    """
    last = min(curve.sizes[-1], len(table) - 1)
    shares = np.zeros((len(table), len(curve.sizes)))
    for i, unit in enumerate(np.eye(len(curve.sizes))):
        shares[: last + 1, i] = replace(curve, seconds=tuple(unit)).table(last)
    shares[last + 1 :, -1] = table[last + 1 :] / curve.seconds[-1]
    return shares


def _nearest(sizes: Sequence[int], num_rows: int) -> int:
    """The place of the size that differs least from `num_rows`, as a ratio."""
    return min(range(len(sizes)), key=lambda i: abs(math.log(sizes[i] / num_rows)))


def chain_rate(target: Seconds, draft_seconds: float | None, acceptance: float) -> float:
    """Tokens a second of the best plain chain; of plain decoding if none is better.

    The largest (1 + a + ... + a^k) / (k D(1) + T(1 + k)) over k = 0 .. 32.

    Args:
        target: T, by rows, at least 33 entries.
        draft_seconds: D(1); None without a draft.
        acceptance: a.
    """
    if draft_seconds is None:
        return float(1.0 / target[1])
    best = tokens = 0.0
    more = 1.0
    for k, seconds in enumerate(target[1 : LONGEST_CHAIN + 2].tolist()):
        tokens += more
        more *= acceptance
        best = max(best, tokens / (k * draft_seconds + seconds))
    return best


def measure_curve(
    cache: Cache, sizes: Sequence[int], on_progress: Callable[[float], None] | None = None
) -> CostCurve:
    """Time passes of `sizes` rows after what the cache holds; fewer sizes where passes are slow.

    Args:
        on_progress: called with the fraction done.
    """
    report = on_progress or (lambda _fraction: None)
    started = time.perf_counter()
    cache.time_pass(1)  # the first pass pays for page faults and graph building
    report(0.05)
    slow = (first := cache.time_pass(1)) > SLOW_SECONDS
    wanted = [n for n in SLOW_SIZES if n <= sizes[-1]] if slow else list(sizes)
    found: dict[int, float] = {}
    for n in wanted:
        if len(found) >= 3 and not slow:
            expected = found[max(found)] * n / max(found)
            if time.perf_counter() - started + expected > LONGEST_MEASUREMENT:
                break
        found[n] = first if slow and n == 1 else _time(cache, n)
        # Rows are about what a pass costs.
        report(0.05 + 0.95 * sum(found) / sum(wanted))
    # Everything is judged by one row, and a reply without plain steps never corrects it: whatever
    # disturbed it at the beginning may be over.
    if len(found) > 1:
        found[1] = min(found[1], cache.time_pass(1))
    report(1.0)
    return CostCurve(tuple(found), tuple(found.values())) if slow else _worthy(found)


def _worthy(seconds: dict[int, float]) -> CostCurve:
    """A curve with those sizes than which no larger one is cheaper."""
    cheapest_above = {
        n: min((seconds[m] for m in seconds if m > n), default=math.inf) for n in seconds
    }
    worth = [n for n in seconds if seconds[n] < cheapest_above[n]]
    sizes = tuple(sorted({1, *worth}))
    has_blocks = any(seconds[n] > BLOCKS * cheapest_above[n] for n in seconds if n > 1)
    return CostCurve(sizes, tuple(seconds[n] for n in sizes), padded=has_blocks)


def _time(cache: Cache, num_rows: int) -> float:
    samples: list[float] = []
    while len(samples) < 3 and sum(samples) < ENOUGH_SECONDS:
        samples.append(cache.time_pass(num_rows))
    return min(samples)  # company on the machine only ever adds time
