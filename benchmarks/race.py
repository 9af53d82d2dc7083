"""A policy against plain decoding, taking turns at every step.

Whole runs are minutes apart, and a shared machine may be several per cent faster or slower by then.
Here both write the same text at the same time, each in contexts of its own: whoever has written
less takes the next step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import click

from benchmarks import report
from benchmarks.prompts import Prompt, choose
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options
from dyspec_edge.bench.summary import Pair, compare
from dyspec_edge.engine import Chunk, Engine

PLAIN = "none"


@click.command()
@bench_options(tokens=128)
@click.option("--policy", default="priced", show_default=True)
@click.option("--category", "categories", multiple=True, help="Repeatable [default: all].")
@click.option("--each", type=click.IntRange(1), help="Prompts of a category [default: all].")
@click.option("--skip", default=0, show_default=True, help="Of a category, before these.")
def race(setup: Setup, policy: str, categories: Sequence[str], each: int | None, skip: int) -> None:
    """Speed of generation over plain decoding, T = 0, step by step in turns.

    A policy keeps what it has learned from prompt to prompt, as in a conversation.
    """
    prompts = choose(setup.prompts, categories, each, skip)
    where = setup.conditions()
    found: list[dict[str, Any]] = []
    with setup.runs("race", where) as runs, ExitStack() as opened:
        runs.expect(len(prompts))
        sides = {name: opened.enter_context(Engines()) for name in (PLAIN, policy)}
        for prompt in prompts:

            def job(prompt: Prompt = prompt) -> dict[str, Any]:
                engines = {name: sides[name].get(setup.config(name)) for name in sides}
                return _race(engines, prompt, setup.num_tokens)

            key = {"policy": policy, "prompt": prompt.id, "category": prompt.category}
            found.append(runs(key, job))
    raced = [
        (prompt, run)
        for prompt, run in zip(prompts, found, strict=True)
        if min(run[policy]["tokens"], run[PLAIN]["tokens"]) > 0  # else it ended with its first step
    ]
    summary = compare(
        [
            Pair(prompt.group, prompt.category, _rate([run[policy]]) / _rate([run[PLAIN]]))
            for prompt, run in raced
        ]
    )
    rows = []
    for group, mean in summary["groups"].items():
        runs_of_group = [run for prompt, run in raced if prompt.group == group]
        together = _rate([run[policy] for run in runs_of_group]) / _rate(
            [run[PLAIN] for run in runs_of_group]
        )
        mean["together"] = together
        rows.append((group, _shown(mean), f"{together:.3f}x", str(mean["pairs"])))
    mean = summary["mean_of_groups"]
    rows.append(("**mean of groups**", _shown(mean), "", str(mean["pairs"])))
    header = ("group", "mean of prompts", "all tokens together", "prompts")
    report.show(f"Speed of `{policy}` over `{PLAIN}`", header, rows)
    report.finish({**where, "load average": runs.load}, {"policy": policy, "speedups": summary})


def _race(engines: dict[str, Engine], prompt: Prompt, num_tokens: int) -> dict[str, Any]:
    """Tokens and seconds of each side, its first step, which reads the prompt, apart."""
    streams = {
        name: engine.stream(prompt.messages, sampling=GREEDY, max_tokens=num_tokens)
        for name, engine in engines.items()
    }
    for stream in streams.values():
        next(stream)
    tokens, seconds = dict.fromkeys(streams, 0), dict.fromkeys(streams, 0.0)
    waiting = list(streams)
    while waiting:
        name = min(waiting, key=tokens.__getitem__)
        started = time.perf_counter()
        chunk: Chunk = next(streams[name])
        seconds[name] += time.perf_counter() - started
        tokens[name] += len(chunk.tokens)
        if chunk.finish_reason is not None or tokens[name] >= num_tokens - 1:
            waiting.remove(name)
        else:
            waiting.sort(key=lambda other: other == name)  # level: the other one goes first
    for stream in streams.values():
        stream.close()
    return {name: {"tokens": tokens[name], "seconds": seconds[name]} for name in streams}


def _rate(sides: Sequence[Mapping[str, Any]]) -> float:
    """Tokens a second of some replies together."""
    return float(sum(side["tokens"] for side in sides) / sum(side["seconds"] for side in sides))


def _shown(mean: dict[str, Any]) -> str:
    if mean["low"] is None:
        return f"{mean['value']:.3f}x"
    return f"**{mean['value']:.3f}x** [{mean['low']:.3f}, {mean['high']:.3f}]"
