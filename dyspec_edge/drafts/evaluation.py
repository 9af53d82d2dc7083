"""Which of several drafts pays: what their runs side by side with plain decoding come to.

A draft's *acceptance* is how often its first guess is right on text that the target writes; its
*break-even* that from which on some chain of its guesses gains, at the prices of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dyspec_edge.bench.summary import Line, summarise
from dyspec_edge.decode.cost import LONGEST_CHAIN, chain_rate
from dyspec_edge.decode.prices import TARGET_ROWS, Prices

GUESS, JUDGED = "chain:1", "priced"
"""The policies whose runs give a draft's acceptance, and what it is worth."""

GAIN = 1.01
"""A chain that gains less does not count as one that pays."""

SHOWN_ROWS = (1, 8)
"""Of the draft's passes whose seconds are told, measured or between measured ones."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a draft is worth on this machine.

    Attributes:
        draft: None: no draft, only copies of what the text repeats.
        acceptance: by category of prompts; empty without a draft.
        draft_seconds: of a pass, by rows.
        break_even: acceptance from which on a chain gains; None if even 0.98 is too little.
        best_chain: length of the best chain at the acceptance that was found; 0: none gains.
        predicted: speedup of the best chain in each group, geometric mean; 1 without a draft.
        measured, low, high: speedup of `priced` over plain decoding, mean of groups and 95 %
            interval (None for a single run).
    """

    draft: Path | None
    acceptance: Mapping[str, float]
    draft_seconds: Mapping[int, float]
    break_even: float | None
    best_chain: int
    predicted: float
    measured: float
    low: float | None
    high: float | None

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction of what was measured."""
        return self.predicted / self.measured - 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        name = None if self.draft is None else str(self.draft)
        return {**asdict(self), "draft": name, "prediction_error": self.error}


def judge(draft: Path | None, lines: Sequence[Line], prices: Prices) -> Verdict:
    """What the runs of one draft come to.

    Args:
        draft: whose runs they are.
        lines: of `none` and `JUDGED`, and of `GUESS` if there is a draft, under one set of
            conditions.
        prices: of passes of target and draft.
    """
    lanes = {lane["policy"]: lane for lane in summarise(lines)[-1]["lanes"]}
    speedup = lanes[JUDGED]["speedup"]["mean_of_groups"]
    guesses = [line for line in lines if line["run"]["policy"] == GUESS]
    groups = _acceptance(guesses, "group")
    mean = float(np.mean(list(groups.values()))) if groups else 0.0
    predicted = [prices.speedup(a) for a in groups.values()]
    return Verdict(
        draft=draft,
        acceptance=_acceptance(guesses, "category"),
        draft_seconds={} if prices.draft is None else _points(prices),
        break_even=break_even(prices.speedup) if prices.draft is not None else None,
        best_chain=best_chain(prices, mean),
        predicted=float(np.exp(np.mean(np.log(predicted)))) if predicted else 1.0,
        measured=speedup["value"],
        low=speedup["low"],
        high=speedup["high"],
    )


def break_even(speedup: Callable[[float], float]) -> float | None:
    """The least acceptance, in hundredths, at which a speedup is more than none."""
    return next((a / 100 for a in range(1, 99) if speedup(a / 100) >= GAIN), None)


def best_chain(prices: Prices, acceptance: float) -> int:
    """The length of the chain that gives most tokens a second; 0 for plain decoding."""
    if prices.draft is None:
        return 0
    target, draft = prices.target.table(TARGET_ROWS), prices.draft.at(1)
    rates = [chain_rate(target, draft, acceptance, k) for k in range(LONGEST_CHAIN + 1)]
    return int(np.argmax(rates)) if max(rates) >= GAIN * rates[0] else 0


def best(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The one to use; None: plain decoding is as fast as any."""
    fastest = max(verdicts, key=lambda verdict: verdict.measured)
    return fastest if fastest.measured >= GAIN else None


def _acceptance(lines: Sequence[Line], by: str) -> dict[str, float]:
    counts: dict[str, list[int]] = {}
    for line in lines:
        stats, found = line["result"]["stats"], counts.setdefault(line["run"][by], [0, 0])
        found[0] += stats["accepted_tokens"]
        found[1] += stats["draft_tokens"]
    return {name: hits / drafted for name, (hits, drafted) in counts.items() if drafted}


def _points(prices: Prices) -> dict[int, float]:
    assert prices.draft is not None
    return {n: prices.draft.at(n) for n in sorted({*prices.draft.sizes, *SHOWN_ROWS})}
