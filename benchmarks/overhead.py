"""Milliseconds of a step outside llama_decode, and where they go."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import click

from benchmarks.workbench import GREEDY, Bench, filler, program
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.stats import Counters
from dyspec_edge.engine import SamplingParams
from dyspec_edge.native import library

SMALL = ("orchestration", "python", "sequences", "rows", "sampler")
LARGE = ("target", "draft", "step")
"""What a step's time is divided into; Python's part is part of the orchestration."""

CHAINS = {"T = 0": GREEDY, "T = 0.8, defaults": SamplingParams(seed=1)}


@program(tokens=128, ctx=9216)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--lengths", default="200,8192", show_default=True, help="Tokens of context.")
@click.option("--rounds", default=2, show_default=True)
def overhead(bench: Bench, policy: str, lengths: str, rounds: int) -> None:
    """Time of a step outside llama_decode: orchestration, sequences, row reductions, sampler chain.

    Medians over steps.  Orchestration is all but llama_decode and the columns after it; Python's
    part of it is what is spent outside native calls.
    """
    cases = list(product([int(length) for length in lengths.split(",")], range(rounds), CHAINS))
    bench.expect(1 + len(cases))
    text = bench.run({"policy": policy, "part": "text"}, partial(_text, bench, policy))
    cells: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for size, number, chain in cases:
        key = {"policy": policy, "context": size, "chain": chain, "round": number}
        found = bench.run(key, partial(_steps, bench, policy, size, CHAINS[chain]))
        cells.setdefault((size, chain), []).append(found)
    rows, document = [], []
    for (size, chain), runs in cells.items():
        seconds = {
            part: statistics.median(x for run in runs for x in run["seconds"][part])
            for part in (*SMALL, *LARGE)
        }
        num_steps = sum(len(run["seconds"]["step"]) for run in runs)
        passes = sum(run["draft_passes"] for run in runs) / num_steps
        rows.append(
            {
                "context": str(size),
                "chain": chain,
                **{part: f"{1e3 * seconds[part]:.2f}" for part in SMALL},
                "text": f"{1e3 * text['seconds']:.2f}",
                **{part: f"{1e3 * seconds[part]:.0f}" for part in LARGE},
                "draft passes": f"{passes:.1f}",
                "steps": str(num_steps),
            }
        )
        cell = {"context": size, "chain": chain, "draft_passes": passes, "steps": num_steps}
        document.append({**cell, "seconds": seconds})
    bench.show(f"`{policy}`, milliseconds a step, medians", rows)
    bench.finish({"policy": policy, "text_seconds": text["seconds"], "cells": document})


def _steps(bench: Bench, policy: str, size: int, params: SamplingParams) -> dict[str, Any]:
    """Seconds of each part of every step, from the decoder's own totals."""
    engine = bench.engine(policy)
    decoder, tokens = engine.conversation, filler(engine, bench.setup.prompts, size).tokens
    seed = params.seed or 0
    sampler = Sampler(decoder.target.context.model, params, seed, tokens)
    native = NativeClock()
    seconds: dict[str, list[float]] = {part: [] for part in (*SMALL, *LARGE)}
    try:
        decoder.begin(tokens, sampler)
        first = Counters.read(decoder).draft_passes
        before = _totals(decoder, sampler)
        native.seconds = 0.0
        for step in decoder.generate(bench.setup.num_tokens):
            outside = step.seconds - native.seconds
            now = _totals(decoder, sampler)
            spent = {part: now[part] - before[part] for part in now}
            spent["orchestration"] = step.seconds - sum(spent.values())
            for part, value in {**spent, "python": outside, "step": step.seconds}.items():
                seconds[part].append(value)
            before, native.seconds = now, 0.0
        passes = Counters.read(decoder).draft_passes - first
    finally:
        native.stop()
        decoder.rewind(len(tokens) - 1)
        sampler.close()
    return {"seconds": seconds, "draft_passes": passes}


def _totals(decoder: Conversation, sampler: Sampler) -> dict[str, float]:
    """Seconds so far by part; sequences are the copying and removing of ids in both caches."""
    totals = Counters.read(decoder)
    caches = (decoder.target, decoder.drafter.shared_cache)
    return {
        "target": totals.target_seconds,
        "draft": totals.draft_seconds,
        "rows": totals.rows_seconds + sampler.rows_seconds,
        "sampler": sampler.seconds,
        "sequences": sum(cache.sequence_seconds for cache in caches if cache is not None),
    }


class NativeClock:
    """Counts the seconds inside native calls, llama_decode among them, until it is stopped."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._functions = {name: getattr(library.lib, name) for name in library.SIGNATURES}
        for name, function in self._functions.items():
            setattr(library.lib, name, self._timed(function))

    def stop(self) -> None:
        """Put the functions back."""
        for name, function in self._functions.items():
            setattr(library.lib, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - started
            return result

        return call


def _text(bench: Bench, policy: str) -> dict[str, Any]:
    """Seconds that the engine adds to a step: bytes, stop strings, chunks."""
    engine, limit = bench.engine(policy), bench.setup.num_tokens
    started = time.perf_counter()
    stats = engine.generate("Count to fifty.", sampling=GREEDY, max_tokens=limit).stats
    whole = time.perf_counter() - started
    return {"seconds": (whole - stats.prefill_seconds - stats.decode_seconds) / stats.steps}
