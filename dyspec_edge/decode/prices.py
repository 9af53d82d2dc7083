"""What the passes of both models cost here, in plain words and as policies use it.

`Prices` are what was measured, `LivePrices` follow the passes that really happen.  All policies
that weigh costs are given live prices, and conversations over the same models share them: what a
pass costs is a matter of models and machine, not of a text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dyspec_edge import native
from dyspec_edge.decode.cost import CostCurve, chain_rate
from dyspec_edge.decode.live_curve import LiveCurve

ACCEPTANCES = (0.5, 0.7, 0.8, 0.9)
"""Acceptance rates for which a speedup is predicted."""

HOPE, HEADROOM = 0.98, 1.03
"""A draft whose best chain at the acceptance `HOPE` gains less than this is never used."""

TYPICAL_ACCEPTANCE, REQUIRED_GAIN = 0.75, 1.1
"""A policy of fixed size is chosen unasked where a chain at that acceptance gains that much."""

TARGET_ROWS = 64
"""Rows of the largest pass that policies weigh."""

DRAFT_ROWS = native.WIDTHS[-1] + TARGET_ROWS
"""The same of a draft, which may have to read what the target accepted last."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Measured curves, and what follows from them.

    Attributes:
        target, draft: draft is None where there is none.
        measured: at this load, not at an earlier one.
    """

    target: CostCurve
    draft: CostCurve | None = None
    measured: bool = True

    def speedup(self, acceptance: float) -> float:
        """The best chain of drafted tokens against plain decoding, at that acceptance rate."""
        return self._chain(self.draft.at(1) if self.draft else None, acceptance)

    def copy_speedup(self, acceptance: float) -> float:
        """The same for tokens copied from the text, which cost no draft pass."""
        return self._chain(0.0, acceptance)

    @property
    def draft_has_headroom(self) -> bool:
        """Whether a nearly perfect draft could pay."""
        return self.speedup(HOPE) >= HEADROOM

    @property
    def fixed_gain(self) -> float:
        """What a policy of fixed size is expected to gain, as a speedup."""
        return self.speedup(TYPICAL_ACCEPTANCE)

    @property
    def disturbed(self) -> bool:
        """Whether other programs ran while passes were timed."""
        return self.target.disturbed or (self.draft is not None and self.draft.disturbed)

    @property
    def verdict(self) -> str:
        """One sentence: what kind of target this is here, and what will pay."""
        flat = self.target.at(8) / self.target.at(1)
        kind = "compute-bound"
        if flat < 1.5:
            kind = "bound by reading its weights, rows are nearly free"
        elif flat < 3:
            kind = "memory-bound"
        copies = self.copy_speedup(0.9) >= HEADROOM
        lookup = "prompt lookup will" if copies else "nor will prompt lookup"
        if self.draft is None:
            pays = "prompt lookup will pay" if copies else "prompt lookup will not pay"
        elif not self.draft_has_headroom:
            pays = f"a draft model will not pay, {lookup}"
        elif self.speedup(0.8) < 1.1:
            pays = "a draft model will pay where the text is easy" + ", prompt lookup too" * copies
        else:
            pays = "a draft model will pay" + ", large trees too" * (flat < 1.5)
        again = ", measured while other programs ran; will be looked at again"
        return f"this target on this machine is {kind}: {pays}{again * self.disturbed}"

    @property
    def summary(self) -> str:
        """The curves in a few words."""
        plain = self.target.at(1)
        sizes = [n for n in self.target.sizes[1:] if n in (4, 8, 16, 32, 64)]
        words = [f"T(1) {milliseconds(plain)}"]
        words += [f"T({n}) {self.target.at(n) / plain:.1f}x" for n in sizes]
        words += [f"D(1) {milliseconds(self.draft.at(1))}"] if self.draft is not None else []
        return ", ".join(words)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds by rows, whether passes are padded, predictions by acceptance rate."""

        def points(curve: CostCurve | None) -> dict[str, float] | None:
            if curve is None:
                return None
            return {str(n): s for n, s in zip(curve.sizes, curve.seconds, strict=True)}

        return {
            "target_seconds": points(self.target),
            "draft_seconds": points(self.draft),
            "padded": self.target.padded,
            "draft_speedup": {str(a): self.speedup(a) for a in ACCEPTANCES} if self.draft else None,
            "copy_speedup": {str(a): self.copy_speedup(a) for a in ACCEPTANCES},
            "verdict": self.verdict,
            "measured": self.measured,
        }

    def _chain(self, draft_seconds: float | None, acceptance: float) -> float:
        rate = chain_rate(self.target.table(TARGET_ROWS), draft_seconds, acceptance)
        return rate * self.target.at(1)


class LivePrices:
    """Measured prices, kept true by the passes that happen in any conversation.

    Attributes:
        measured: what they were.
        target, draft: what they are now; draft is None where there is none.
    """

    def __init__(self, measured: Prices) -> None:
        self.measured = measured
        self.target = LiveCurve(measured.target, TARGET_ROWS)
        self.draft = LiveCurve(measured.draft, DRAFT_ROWS) if measured.draft is not None else None

    @property
    def draft_may_pay(self) -> bool:
        """Whether a nearly perfect draft could pay, were doubtful prices as low as is hoped."""
        if self.draft is None:
            return False
        if self.measured.disturbed:
            return True
        rate = chain_rate(self.target.hoped(math.inf), self.draft.at(1), HOPE)
        return rate * self.target.at(1) >= HEADROOM

    def as_prices(self) -> Prices:
        """What use has taught, as curves to be kept."""
        draft = self.draft.as_curve() if self.draft is not None else None
        return Prices(self.target.as_curve(), draft, measured=False)


def milliseconds(seconds: float) -> str:
    """As text, with three digits at least."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"
