"""Which of several drafts pays: what their runs side by side with plain decoding come to.

A draft's *acceptance* is how often its first guess is right on text that the target writes; its
*break-even* that from which on some chain of its guesses gains, at the prices of this machine.

Other programs disturb runs.  So a speed is compared with the median of all plain runs of its
prompt, whichever draft they stood beside, a group of prompts counts by its median, and runs whose
passes took far longer than passes of their size do otherwise are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dyspec_edge.bench.summary import NUM_RESAMPLES, PERCENTILES, Line, Values, decode_rate
from dyspec_edge.decode.cost import LONGEST_CHAIN, CostCurve, chain_rate
from dyspec_edge.decode.prices import TARGET_ROWS, Prices
from dyspec_edge.errors import DyspecError

GUESS, JUDGED = "chain:1", "priced"
"""The policies whose runs give a draft's acceptance, and what it is worth."""

GAIN = 1.01
"""A chain that gains less does not count as one that pays."""

DISTURBED = 1.5
"""A run is left out whose passes took so many times what they take in the median run."""

SHOWN_ROWS = (1, 8)
"""Of the draft's passes whose seconds are told, measured or between measured ones."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What one draft was seen to do.

    Attributes:
        draft: as it was named; None: no draft, only copies of what the text repeats.
        lines: of `none` and `JUDGED`, and of `GUESS` if there is a draft.
        prices: of passes of target and draft.
    """

    draft: Path | None
    lines: Sequence[Line]
    prices: Prices


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a draft is worth on this machine.

    Attributes:
        draft: None: no draft, only copies of what the text repeats.
        acceptance: by category of prompts; empty without a draft.
        draft_seconds: of a pass, by rows.
        break_even: acceptance from which on a chain gains; None if even 0.98 is too little.
        best_chain: length of the best chain at the acceptance that was found; 0: none gains.
        predicted: what `JUDGED` should gain: in each group what the best chain does, or copies
            alone where those gain more, geometric mean; None without a draft.
        measured, low, high: speedup of `JUDGED` over plain decoding: geometric mean of the groups'
            medians and its 95 % interval (None where a group has a single run).
        num_left_out: disturbed runs.
    """

    draft: Path | None
    acceptance: Mapping[str, float]
    draft_seconds: Mapping[int, float]
    break_even: float | None
    best_chain: int
    predicted: float | None
    measured: float
    low: float | None
    high: float | None
    num_left_out: int = 0

    @property
    def error(self) -> float | None:
        """Of the prediction, as a fraction of what was measured."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        name = None if self.draft is None else str(self.draft)
        return {**asdict(self), "draft": name, "prediction_error": self.error}


def judge(found: Sequence[Runs]) -> list[Verdict]:
    """What the runs of each draft come to.

    Args:
        found: on the same prompts, under one set of conditions.
    """
    plain: dict[str, list[float]] = {}
    for runs in found:
        for line in _undisturbed(runs, "none"):
            plain.setdefault(line["run"]["prompt"], []).append(decode_rate(line["result"]))
    base = {prompt: statistics.median(speeds) for prompt, speeds in plain.items()}
    copies = next((_gains(runs, base) for runs in found if runs.draft is None), {})
    least = {group: float(np.exp(np.median(logs))) for group, logs in copies.items()}
    return [_verdict(runs, base, least) for runs in found]


def _verdict(runs: Runs, base: Mapping[str, float], copies: Mapping[str, float]) -> Verdict:
    prices = runs.prices
    guesses = [line for line in runs.lines if line["run"]["policy"] == GUESS]
    groups = _acceptance(guesses, "group")
    mean = float(np.mean(list(groups.values()))) if groups else 0.0
    predicted = [max(prices.speedup(a), copies.get(name, 1.0)) for name, a in groups.items()]
    measured, low, high = _mean(list(_gains(runs, base).values()))
    kept = _undisturbed(runs, JUDGED)
    return Verdict(
        draft=runs.draft,
        acceptance=_acceptance(guesses, "category"),
        draft_seconds={} if prices.draft is None else _points(prices),
        break_even=break_even(prices.speedup) if prices.draft is not None else None,
        best_chain=best_chain(prices, mean),
        predicted=float(np.exp(np.mean(np.log(predicted)))) if predicted else None,
        measured=measured,
        low=low,
        high=high,
        num_left_out=sum(line["run"]["policy"] == JUDGED for line in runs.lines) - len(kept),
    )


def _undisturbed(runs: Runs, policy: str) -> list[Line]:
    """Runs of a policy whose target passes took about what passes of their size do here."""
    lines = [line for line in runs.lines if line["run"]["policy"] == policy]
    slowness = [_slowness(line["result"]["stats"], runs.prices.target) for line in lines]
    limit = DISTURBED * statistics.median(slowness)
    return [line for line, found in zip(lines, slowness, strict=True) if found <= limit]


def _slowness(stats: Mapping[str, Any], target: CostCurve) -> float:
    steps = max(1, stats["steps"])
    rows = 1 + round(stats["draft_tokens"] / steps)
    return float(stats["target_seconds"] / (steps * target.at(rows)))


def _gains(runs: Runs, base: Mapping[str, float]) -> dict[str, Values]:
    """Logarithms of the speedups of `JUDGED`, by group of prompts."""
    groups: dict[str, list[float]] = {}
    for line in _undisturbed(runs, JUDGED):
        speed, run = decode_rate(line["result"]), line["run"]
        plain = base.get(run["prompt"], 0.0)
        if speed > 0 and plain > 0:  # an empty reply has no speed
            groups.setdefault(run["group"], []).append(float(np.log(speed / plain)))
    if not groups:
        raise DyspecError("no prompt was answered with and without drafts; give longer replies, -n")
    return {name: np.array(found) for name, found in groups.items()}


def _mean(groups: Sequence[Values]) -> tuple[float, float | None, float | None]:
    """Of the groups' medians, and its interval."""
    value = float(np.exp(np.mean([np.median(logs) for logs in groups])))
    if min(map(len, groups)) < 2:
        return value, None, None
    random = np.random.default_rng(0)
    means = np.mean([_resampled_medians(logs, random) for logs in groups], axis=0)
    low, high = np.exp(np.percentile(means, PERCENTILES)).tolist()
    return value, low, high


def _resampled_medians(logs: Values, random: np.random.Generator) -> Values:
    drawn = logs[random.integers(0, len(logs), (NUM_RESAMPLES, len(logs)))]
    medians: Values = np.median(drawn, axis=1)
    return medians


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
    """The one to use; None: plain decoding is as fast as any.

    A draft takes memory, so it has to gain over copies alone, too.
    """
    fastest = max(verdicts, key=lambda verdict: verdict.measured)
    copies = next((verdict for verdict in verdicts if verdict.draft is None), fastest)
    if copies.measured * GAIN > fastest.measured:
        fastest = copies
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
