"""What passes cost on this machine, and whether drafting can pay at those prices."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dyspec_edge.cache import TreeCache

LENGTHS = (4, 8)
"""Chain lengths k at which the check at load looks."""

TYPICAL_ACCEPTANCE = 0.75
REQUIRED_GAIN = 1.1
ENOUGH_SECONDS = 0.25
"""A size is measured until this much time went into it, three times at most."""


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Measured seconds of a pass.

    Attributes:
        target: seconds by number of rows.
        draft: seconds of one row, or None without a draft.
    """

    target: dict[int, float]
    draft: float | None

    @property
    def plain(self) -> float:
        """Seconds of one plainly decoded token."""
        return self.target[1]

    def predicted_gain(self, acceptance: float = TYPICAL_ACCEPTANCE) -> float:
        """The best chain's speed against plain decoding at that acceptance rate a.

        (1 + a + ... + a^k) T(1) / (k D(1) + T(1 + k)), the largest over k in `LENGTHS`.
        """
        if self.draft is None:
            return 1.0
        return max(
            sum(acceptance**i for i in range(k + 1))
            * self.plain
            / (k * self.draft + self.target[1 + k])
            for k in LENGTHS
        )

    @property
    def pays(self) -> bool:
        """Whether the check at load switches drafting on."""
        return self.predicted_gain() >= REQUIRED_GAIN


def measure(
    target: TreeCache,
    draft: TreeCache | None,
    sizes: Sequence[int],
    on_progress: Callable[[float], None] | None = None,
) -> PassCosts:
    """Time target passes of `sizes` rows and a draft pass of one row.

    Args:
        on_progress: called with the fraction done.
    """
    jobs = [(target, n) for n in sizes] + ([(draft, 1)] if draft is not None else [])
    for cache in (target, draft):
        if cache is not None:
            cache.time_pass(1)  # the first pass pays for page faults and graph building
    seconds: list[float] = []
    for cache, n in jobs:
        seconds.append(_time(cache, n))
        if on_progress is not None:
            on_progress(len(seconds) / len(jobs))
    by_rows = dict(zip(sizes, seconds, strict=False))
    return PassCosts(by_rows, seconds[-1] if draft is not None else None)


def _time(cache: TreeCache, num_rows: int) -> float:
    samples: list[float] = []
    while len(samples) < 3 and sum(samples) < ENOUGH_SECONDS:
        samples.append(cache.time_pass(num_rows))
    return statistics.median(samples)
