"""What finished runs come to: speedups with intervals, tokens per target pass, the best chain.

Runs are compared in pairs: the same prompt, the same round, minutes apart.  A speedup is a
geometric mean over pairs; its interval is a bootstrap over pairs, each group of categories
resampled by itself (95 %, percentiles).  Runs under different conditions (models, settings,
temperature, length, machine) never meet: each set of conditions is a section of its own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import DyspecError

Values = npt.NDArray[np.float64]
Line = Mapping[str, Any]
Rate = Callable[[Mapping[str, Any]], float]
Document = dict[str, Any]
Key = tuple[str, str, int]
"""Prompt, its text, round."""

NUM_RESAMPLES, PERCENTILES = 2000, (2.5, 97.5)

# What tells runs of one section apart.
_WITHIN = ("policy", "verify", "prompt", "prompt_sha256", "category", "group", "round", "sampling")

_CONDITIONS = ("machine", "threads", "versions", "models", "commit", "command", "basis")
_RESULT = ("stats", "request_seconds", "tokens_sha256", "confidence", "machine", "load", "at")

PARTS = ("target", "draft", "rows", "sampling", "overhead")
"""Of the time of a step; the names are those of the figures of a reply."""


@dataclass(frozen=True, slots=True)
class LaneRuns:
    """The runs of one competitor in a section, by prompt and round."""

    policy: str
    verify: str
    runs: Mapping[Key, Line]

    @property
    def name(self) -> str:
        """As the tables and plots call it."""
        return self.policy if self.verify == "match" else f"{self.policy} ({self.verify})"


def check_lines(path: Path, lines: Sequence[Line]) -> Sequence[Line]:
    """The lines of a file, if they come from `dyspec-edge bench run`.

    Raises:
        DyspecError: they are another program's.
    """
    for number, line in enumerate(lines, start=1):
        missing = [name for name in _WITHIN if name not in line["run"]]
        missing += [name for name in _RESULT if name not in line["result"]]
        if missing:
            raise DyspecError(
                f"{path}, line {number}: no run of 'dyspec-edge bench run': it has no "
                f"{', '.join(missing)}"
            )
    return lines


def summarise(lines: Sequence[Line]) -> list[Document]:
    """One document for each set of conditions, in the order in which they occur.

    Args:
        lines: of the journal, each with "run" and "result"; of a run that occurs twice the last.
    """
    sections: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        settings = json.dumps(_settings(line), sort_keys=True)
        sections.setdefault((settings, line["result"]["machine"]), []).append(line)
    return [_section(json.loads(key), found) for (key, _machine), found in sections.items()]


def _settings(line: Line) -> Document:
    run = line["run"]
    sampling = {name: value for name, value in run["sampling"].items() if name != "seed"}
    return {**{k: v for k, v in run.items() if k not in _WITHIN}, "sampling": sampling}


def _section(settings: Document, lines: Sequence[Line]) -> Document:
    lanes: dict[tuple[str, str], dict[Key, Line]] = {}
    for line in lines:
        run = line["run"]
        lane = lanes.setdefault((run["policy"], run["verify"]), {})
        lane[run["prompt"], run["prompt_sha256"], run["round"]] = line
    found = [LaneRuns(policy, verify, runs) for (policy, verify), runs in lanes.items()]
    plain = next((lane for lane in found if lane.policy == "none"), None)
    loads = [line["result"]["load"] for line in lines]
    return {
        "conditions": settings,
        "circumstances": {
            name: _distinct([line["result"][name] for line in lines]) for name in _CONDITIONS
        },
        "prompts": _distinct([line["run"]["prompt"] for line in lines]),
        "rounds": len({line["run"]["round"] for line in lines}),
        "load": {"median": statistics.median(loads), "low": min(loads), "high": max(loads)},
        "from": min(line["result"]["at"] for line in lines),
        "to": max(line["result"]["at"] for line in lines),
        "lanes": [_lane(lane, plain) for lane in found],
        "priced_over_best_chain": _best_chain(found, plain),
    }


def _lane(lane: LaneRuns, plain: LaneRuns | None) -> Document:
    results = [line["result"] for line in lane.runs.values()]
    stats = [result["stats"] for result in results]
    steps, tokens = (sum(s[name] for s in stats) for name in ("steps", "generated_tokens"))
    efficiency = _efficiency(lane)
    same = None
    if plain is not None and lane.verify == "match":
        both = [[side.runs[key]["result"]["tokens_sha256"] for side in (lane, plain)]
                for key in lane.runs.keys() & plain.runs.keys()]  # fmt: skip
        same = {"equal": sum(mine == theirs for mine, theirs in both), "of": len(both)}
    return {
        "name": lane.name,
        "policy": lane.policy,
        "verify": lane.verify,
        "runs": len(results),
        "speedup": _compare(lane, plain, decode_rate),
        "request_speedup": _compare(lane, plain, request_rate),
        "block_efficiency": efficiency,
        "accept_length": {
            part: {n: v - 1 for n, v in found.items()} if isinstance(found, dict) else found - 1
            for part, found in efficiency.items()
        },
        "tokens_per_second": statistics.median(decode_rate(result) for result in results),
        "drafted_per_step": sum(s["draft_tokens"] for s in stats) / steps,
        "draft_passes_per_step": sum(s["draft_passes"] for s in stats) / steps,
        "seconds_per_token": {
            part: sum(s[f"{part}_seconds"] for s in stats) / max(1, tokens) for part in PARTS
        },
        "accept_length_histogram": _added([s["accept_length_histogram"] for s in stats]),
        "confidence": {
            of: _added([r["confidence"][of] for r in results]) for of in ("drafted", "accepted")
        },
        "same_text_as_none": same,
    }


def decode_rate(result: Mapping[str, Any]) -> float:
    """Tokens a second, prompt reading apart."""
    return float(result["stats"]["tokens_per_second"])


def request_rate(result: Mapping[str, Any]) -> float:
    """Tokens a second of the whole request, the reading of the prompt by both models included."""
    return float(result["stats"]["generated_tokens"] / result["request_seconds"])


@dataclass(frozen=True, slots=True)
class Pair:
    """How much faster one run was than another of the same prompt and round."""

    group: str
    category: str
    ratio: float


def _pairs(lane: LaneRuns, other: LaneRuns, rate: Rate) -> list[Pair]:
    """Every run of `lane` that has a partner; an empty reply has no speed."""
    pairs = []
    for key, line in lane.runs.items():
        if key in other.runs:
            mine, theirs = rate(line["result"]), rate(other.runs[key]["result"])
            if mine > 0 and theirs > 0:
                run = line["run"]
                pairs.append(Pair(run["group"], run["category"], mine / theirs))
    return pairs


def _compare(lane: LaneRuns, other: LaneRuns | None, rate: Rate) -> Document | None:
    pairs = _pairs(lane, other, rate) if other is not None else []
    return compare(pairs) if pairs else None


def compare(pairs: Sequence[Pair]) -> Document:
    """Geometric means of ratios, with intervals.

    Args:
        pairs: at least one.

    Returns:
        "groups" and "categories" by name, "mean_of_groups" and "mean_of_pairs"; each with
        "value", "low" and "high" (None where a single pair says nothing of the spread) and the
        number of "pairs".
    """
    random = np.random.default_rng(0)
    groups, categories = _logs(pairs, "group"), _logs(pairs, "category")
    samples = {name: _resampled(logs, random) for name, logs in groups.items()}
    sizes = np.array([len(logs) for logs in groups.values()])
    weights = {
        "mean_of_groups": np.full(len(sizes), 1 / len(sizes)),
        "mean_of_pairs": sizes / sizes.sum(),
    }
    means = np.array([logs.mean() for logs in groups.values()])
    num_pairs = int(sizes.min()) if sizes.min() < 2 else len(pairs)
    return {
        "groups": {n: _mean(logs.mean(), samples[n], len(logs)) for n, logs in groups.items()},
        "categories": {
            name: _mean(logs.mean(), _resampled(logs, random), len(logs))
            for name, logs in categories.items()
        },
        **{
            name: {
                **_mean(by @ means, by @ np.stack(list(samples.values())), num_pairs),
                "pairs": len(pairs),
            }
            for name, by in weights.items()
        },
    }


def _logs(pairs: Sequence[Pair], part: str) -> dict[str, Values]:
    found: dict[str, list[float]] = {}
    for pair in pairs:
        found.setdefault(getattr(pair, part), []).append(pair.ratio)
    return {name: np.log(np.array(ratios)) for name, ratios in found.items()}


def _resampled(logs: Values, random: np.random.Generator) -> Values:
    """float64[NUM_RESAMPLES], means of as many values drawn with replacement."""
    means: Values = logs[random.integers(0, len(logs), (NUM_RESAMPLES, len(logs)))].mean(axis=1)
    return means


def _mean(log_value: float, resampled: Values, num_pairs: int) -> Document:
    low, high = np.exp(np.percentile(resampled, PERCENTILES)).tolist()
    ends = {"low": low, "high": high} if num_pairs > 1 else {"low": None, "high": None}
    return {"value": float(np.exp(log_value)), **ends, "pairs": num_pairs}


def _efficiency(lane: LaneRuns) -> Document:
    """Tokens per target pass, all runs of a part together, and the means of the parts."""

    def parts(kind: str) -> dict[str, float]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for line in lane.runs.values():
            found.setdefault(line["run"][kind], []).append(line["result"]["stats"])
        return {name: _tokens_per_pass(stats) for name, stats in found.items()}

    groups, categories = parts("group"), parts("category")
    return {
        "groups": groups,
        "categories": categories,
        "mean_of_groups": statistics.mean(groups.values()),
        "mean_of_categories": statistics.mean(categories.values()),
    }


def _tokens_per_pass(stats: Sequence[Mapping[str, Any]]) -> float:
    """Each pass gives what it accepts and one token more, an end token as well as any other."""
    return 1.0 + float(sum(s["accepted_tokens"] for s in stats) / sum(s["steps"] for s in stats))


def _best_chain(lanes: Sequence[LaneRuns], plain: LaneRuns | None) -> Document | None:
    """`priced` over the chain that was the fastest in each group, chosen afterwards."""
    priced = next((lane for lane in lanes if lane.policy == "priced"), None)
    chains = [lane for lane in lanes if lane.policy.startswith("chain:")]
    if priced is None or plain is None or not chains:
        return None
    best: dict[str, tuple[float, LaneRuns]] = {}
    for chain in chains:
        speedup = _compare(chain, plain, decode_rate)
        for group, mean in (speedup or {"groups": {}})["groups"].items():
            if group not in best or mean["value"] > best[group][0]:
                best[group] = mean["value"], chain
    pairs = [
        pair
        for group, (_, chain) in best.items()
        for pair in _pairs(priced, chain, decode_rate)
        if pair.group == group
    ]
    if not pairs:
        return None
    chosen = {g: {"name": chain.name, "speedup": value} for g, (value, chain) in best.items()}
    return {"chains": chosen, **compare(pairs)}


def _added(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Entry by entry; the shorter ones end in zeros."""
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Each value once, None left out."""
    texts = dict.fromkeys(json.dumps(value) for value in values if value is not None)
    return [json.loads(text) for text in texts]
