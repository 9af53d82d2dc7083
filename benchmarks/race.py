"""A policy against plain decoding, taking turns at every step.

Whole runs are minutes apart, and a shared machine may be several per cent faster or slower by then.
Here both write the same text at the same time, each in contexts of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from benchmarks.workbench import GREEDY, Bench, program, prompt_options
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.bench.summary import Pair, compare
from dyspec_edge.engine import Engine

PLAIN = "none"


@dataclass(frozen=True, slots=True)
class Written:
    """What one side wrote: its tokens, and the tokens and seconds of every step."""

    tokens: list[int]
    steps: list[tuple[int, float]]


def take_turns(sides: Mapping[str, Iterator[Sequence[int]]], num_tokens: int) -> dict[str, Written]:
    """Let all write until they end or have `num_tokens` tokens.

    Whoever has written less takes the next step; where they are level, whoever did not take the
    last one.

    Args:
        sides: the tokens of each step.
    """
    found = {name: Written([], []) for name in sides}
    waiting = list(sides)
    while waiting:
        name = min(waiting, key=lambda name: len(found[name].tokens))
        started = time.perf_counter()
        tokens = next(sides[name], None)
        seconds = time.perf_counter() - started
        if tokens is not None:
            found[name].tokens.extend(tokens)
            found[name].steps.append((len(tokens), seconds))
        if tokens is None or len(found[name].tokens) >= num_tokens:
            waiting.remove(name)
        else:
            waiting.sort(key=lambda other: other == name)
    return found


@program(tokens=128)
@click.option("--policy", default="priced", show_default=True)
@prompt_options()
@click.option("--skip", default=0, show_default=True, help="Of a category, before these.")
def race(bench: Bench, policy: str, categories: Sequence[str], each: int | None, skip: int) -> None:
    """Speed of generation over plain decoding, T = 0, step by step in turns.

    A policy keeps what it has learned from prompt to prompt, as in a conversation.
    """
    prompts = choose(bench.setup.prompts, categories, each, skip)
    bench.expect(len(prompts))
    raced = []
    for prompt in prompts:
        key = {"policy": policy, "prompt": prompt.id, "category": prompt.category}
        run = bench.run(key, partial(_race, bench, policy, prompt))
        if min(run[policy]["tokens"], run[PLAIN]["tokens"]) > 0:  # else it ended at once
            raced.append((prompt, run))
    summary = compare(
        [
            Pair(prompt.group, prompt.category, _rate([run[policy]]) / _rate([run[PLAIN]]))
            for prompt, run in raced
        ]
    )
    rows = []
    for group, mean in summary["groups"].items():
        runs = [run for prompt, run in raced if prompt.group == group]
        together = _rate([run[policy] for run in runs]) / _rate([run[PLAIN] for run in runs])
        mean["together"] = together
        rows.append(_row(group, mean, f"{together:.3f}x"))
    mean = summary["mean_of_groups"]
    rows.append(_row("**mean of groups**", mean, ""))
    bench.show(f"Speed of `{policy}` over `{PLAIN}`", rows)
    bench.finish({"policy": policy, "speedups": summary})


def tokens_of(engine: Engine, prompt: Prompt, num_tokens: int) -> Iterator[Sequence[int]]:
    """The tokens of every step of a greedy reply."""
    stream = engine.stream(prompt.messages, sampling=GREEDY, max_tokens=num_tokens)
    with closing(stream):
        for chunk in stream:
            if chunk.finish_reason is None:
                yield chunk.tokens


def _race(bench: Bench, policy: str, prompt: Prompt) -> dict[str, Any]:
    """Tokens and seconds of each side, its first step, which reads the prompt, apart."""
    num_tokens = bench.setup.num_tokens
    sides = {name: bench.engine(name) for name in (PLAIN, policy)}
    replies = {name: tokens_of(engine, prompt, num_tokens) for name, engine in sides.items()}
    found = {}
    for name, written in take_turns(replies, num_tokens).items():
        tokens, seconds = (sum(part) for part in zip((0, 0.0), *written.steps[1:], strict=True))
        found[name] = {"tokens": tokens, "seconds": seconds}
    return found


def _rate(sides: Sequence[Mapping[str, Any]]) -> float:
    """Tokens a second of some replies together."""
    return float(sum(side["tokens"] for side in sides) / sum(side["seconds"] for side in sides))


def _row(group: str, mean: dict[str, Any], together: str) -> dict[str, str]:
    interval = "" if mean["low"] is None else f" [{mean['low']:.3f}, {mean['high']:.3f}]"
    shown = {"group": group, "mean of prompts": f"**{mean['value']:.3f}x**{interval}"}
    return {**shown, "all tokens together": together, "prompts": str(mean["pairs"])}
