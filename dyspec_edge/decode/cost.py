"""What the passes of a model cost on this machine, by their rows.

A curve is measured once and goes straight on beyond its last point.  Kernels of quantised weights
work on blocks of rows, so that a pass may cost more than a larger one: where that was measured,
passes are filled up to the next measured size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]

TARGET_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64)
DRAFT_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 64, 128)
"""Rows of the passes that are measured.  A draft is measured further than its trees go, because it
reads what it missed, too."""

FLAT_SIZES = (1, 8, 64)
"""Of a target that waits for its weights in every pass."""

LONGEST_CHAIN = 32


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass by its rows.

    Attributes:
        sizes: ascending, the first is 1.
        seconds: of a pass over that many rows.
        padded: passes are filled up to the next of `sizes` (Cache.pad_to), so the curve has
            steps; otherwise there are straight lines between its points.
        sure: sizes that were measured at this load, twice or as they were before.
        disturbed: other programs ran meanwhile.
        looks: at how many later loads some of its sizes were measured again.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    padded: bool = False
    sure: frozenset[int] = frozenset()
    disturbed: bool = False
    looks: int = 0

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


def chain_rate(
    target: Seconds,
    draft_seconds: float | None,
    acceptance: float,
    longest: int = LONGEST_CHAIN,
) -> float:
    """Tokens a second of the best plain chain at an acceptance; see `chain_rates`."""
    return chain_rates(target, draft_seconds, [acceptance], longest).item()


def chain_rates(
    target: Seconds,
    draft_seconds: float | None,
    acceptances: Sequence[float],
    longest: int = LONGEST_CHAIN,
) -> npt.NDArray[np.float64]:
    """Tokens a second of the best plain chain; of plain decoding if none is better.

    The largest (1 + a + ... + a^k) / (k D(1) + T(1 + k)) over k = 0 .. 32, or `longest`.

    Args:
        target: T, by rows, at least 33 entries.
        draft_seconds: D(1); None without a draft.
        acceptances: each an a.

    Returns:
        float64[len(acceptances)].
    """
    if draft_seconds is None:
        return np.full(len(acceptances), 1.0 / target[1])
    verified = target[1 : min(longest, LONGEST_CHAIN) + 2]
    powers = np.ones((len(acceptances), len(verified)))
    powers[:, 1:] = np.asarray(acceptances)[:, None]
    tokens = np.cumsum(np.cumprod(powers, axis=1), axis=1)
    rates = tokens / (np.arange(len(verified)) * draft_seconds + verified)
    best: npt.NDArray[np.float64] = rates.max(axis=1)
    return best
