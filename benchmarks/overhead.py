"""Milliseconds of a step outside llama_decode, and where they go."""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks import report
from benchmarks.prompts import filler
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.stats import Counters
from dyspec_edge.engine import Engine, SamplingParams
from dyspec_edge.native import library

SMALL = {
    "orchestration": "orchestration",
    "python": "Python's part",
    "sequences": "sequences",
    "rows": "rows",
    "sampler": "sampler",
}
LARGE = {"target": "target pass", "draft": "draft passes", "step": "step"}
PARTS = SMALL | LARGE
"""What a step's time is divided into, with the headers; the second is part of the first."""

CHAINS = {"T = 0": GREEDY, "T = 0.8, defaults": SamplingParams(seed=1)}


@click.command()
@bench_options(tokens=128, ctx=9216)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--lengths", default="200,8192", show_default=True, help="Tokens of context.")
@click.option("--rounds", default=2, show_default=True)
@click.option("--profile", is_flag=True, help="Show on stderr what the time goes into.")
def overhead(setup: Setup, policy: str, lengths: str, rounds: int, profile: bool) -> None:
    """Time of a step outside llama_decode: orchestration, sequences, row reductions, sampler chain.

    Medians over steps.  Orchestration is all but llama_decode and the columns after it; Python's
    part of it is what is spent outside native calls.
    """
    where = setup.conditions()
    cells: dict[tuple[int, str], list[dict[str, Any]]] = {}
    with setup.runs("overhead", where) as runs, Engines() as engines:
        sizes = [int(length) for length in lengths.split(",")]
        runs.expect(1 + len(sizes) * rounds * len(CHAINS))
        text = runs(
            {"policy": policy, "part": "text"},
            lambda: _text(engines.get(setup.config(policy)), setup.num_tokens),
        )
        for size in sizes:
            for number in range(rounds):
                for chain, params in CHAINS.items():

                    def job(size: int = size, params: SamplingParams = params) -> dict[str, Any]:
                        engine = engines.get(setup.config(policy))
                        tokens = context_of(engine, setup.prompts, size)
                        return _steps(engine, tokens, params, setup.num_tokens)

                    key = {"policy": policy, "context": size, "chain": chain, "round": number}
                    cells.setdefault((size, chain), []).append(runs(key, job))
        if profile:
            engine = engines.get(setup.config(policy))
            for chain, params in CHAINS.items():
                tokens = context_of(engine, setup.prompts, sizes[0])
                runs.note(f"\n{chain}, {sizes[0]} tokens of context:")
                runs.note(_profile(engine, tokens, params, setup.num_tokens))
    rows, cells_shown = [], []
    for (size, chain), found in cells.items():
        parts = {
            part: statistics.median(x for run in found for x in run["seconds"][part])
            for part in PARTS
        }
        num_steps = sum(len(run["seconds"]["step"]) for run in found)
        passes = sum(run["draft_passes"] for run in found) / num_steps
        rows.append(
            (
                str(size),
                chain,
                *(f"{1e3 * parts[part]:.2f}" for part in SMALL),
                f"{1e3 * text['seconds']:.2f}",
                *(f"{1e3 * parts[part]:.0f}" for part in LARGE),
                f"{passes:.1f}",
                str(num_steps),
            )
        )
        cells_shown.append(
            {
                "context": size,
                "chain": chain,
                "seconds": parts,
                "draft_passes": passes,
                "steps": num_steps,
            }
        )
    header = (
        "context",
        "chain",
        *SMALL.values(),
        "text",
        *LARGE.values(),
        "draft passes / step",
        "steps",
    )
    report.show(f"`{policy}`, milliseconds a step, medians", header, rows)
    document = {"policy": policy, "text_seconds": text["seconds"], "cells": cells_shown}
    report.finish({**where, "load average": runs.load}, document)


def context_of(engine: Engine, prompts: Path, size: int) -> list[int]:
    """`size` tokens of prompts, repeated as often as needed."""
    model = engine.decoder.target.context.model
    text = model.tokenize(filler(prompts), add_special=False, parse_special=False)
    repeated = text * (size // len(text) + 1)
    return repeated[:size]


def _steps(
    engine: Engine, tokens: Sequence[int], params: SamplingParams, num_tokens: int
) -> dict[str, Any]:
    """Seconds of each part of every step but the first, from the decoder's own totals."""
    decoder, model = engine.decoder, engine.decoder.target.context.model
    seed = params.seed or 0
    sampler = Sampler(model, params, seed, tokens)
    native = NativeClock()
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    try:
        decoder.begin(tokens, sampler)
        before, drawn = Counters.read(decoder), _drawn(sampler)
        first, shared = before, _sequence_seconds(decoder)
        native.seconds = 0.0
        for step in decoder.generate(num_tokens):
            now, drawn_now = Counters.read(decoder), _drawn(sampler)
            spent = {
                "target": now.target_seconds - before.target_seconds,
                "draft": now.draft_seconds - before.draft_seconds,
                "rows": now.rows_seconds - before.rows_seconds + drawn_now[1] - drawn[1],
                "sampler": drawn_now[0] - drawn[0],
                "sequences": _sequence_seconds(decoder) - shared,
            }
            spent["orchestration"] = step.seconds - sum(spent.values())
            spent["python"] = step.seconds - native.seconds
            spent["step"] = step.seconds
            for part in PARTS:
                seconds[part].append(spent[part])
            before, drawn, shared = now, drawn_now, _sequence_seconds(decoder)
            native.seconds = 0.0
        passes = before.draft_passes - first.draft_passes
    finally:
        native.stop()
        decoder.rewind(len(tokens) - 1)
        sampler.close()
    return {"seconds": seconds, "draft_passes": passes}


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


def _sequence_seconds(decoder: Conversation) -> float:
    """Total of copying and removing sequence ids in both caches."""
    draft = decoder.drafter.shared_cache
    return decoder.target.sequence_seconds + (draft.sequence_seconds if draft else 0.0)


def _drawn(sampler: Sampler) -> tuple[float, float]:
    return sampler.seconds, sampler.rows_seconds


def _text(engine: Engine, num_tokens: int) -> dict[str, Any]:
    """Seconds that the engine adds to a step: bytes, stop strings, chunks."""
    started = time.perf_counter()
    stats = None
    for chunk in engine.stream("Count to fifty.", sampling=GREEDY, max_tokens=num_tokens):
        stats = chunk.stats
    whole = time.perf_counter() - started
    assert stats is not None
    return {"seconds": (whole - stats.prefill_seconds - stats.decode_seconds) / stats.steps}


def _profile(engine: Engine, tokens: Sequence[int], params: SamplingParams, num_tokens: int) -> str:
    """The functions that cost most in themselves, llama_decode among them."""
    decoder, model = engine.decoder, engine.decoder.target.context.model
    params = replace(params, seed=1)
    sampler = Sampler(model, params, 1, tokens)
    decoder.begin(tokens, sampler)
    profile = cProfile.Profile()
    profile.enable()
    num_steps = sum(1 for _ in decoder.generate(num_tokens))
    profile.disable()
    decoder.rewind(len(tokens) - 1)
    sampler.close()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).strip_dirs().sort_stats("tottime").print_stats(32)
    return f"{num_steps} steps\n{out.getvalue()}"
