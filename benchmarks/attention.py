"""Passes of several rows after more and more context, with flash attention and without."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import click

from benchmarks import report
from benchmarks.prompts import filler
from benchmarks.workbench import Setup, bench_options
from dyspec_edge.decode.cache import TreeCache
from dyspec_edge.llama import Context, Model

SIZES = (1, 2, 4, 8, 16)
WAYS = ("on", "off")
ROUNDS = 4


@click.command()
@bench_options(tokens=SIZES[-1], ctx=4608)
@click.option("--depths", default="16,1024,4096", show_default=True, help="Tokens of context.")
def attention(setup: Setup, depths: str) -> None:
    """Milliseconds of a pass, the fastest of 4 in turns, and tokens a second of the prompt."""
    where = setup.circumstances()
    lengths = [int(depth) for depth in depths.split(",")]
    with setup.runs("attention", where) as runs:
        runs.expect(1)
        found = runs({"depths": lengths}, partial(_measure, setup, lengths))
    rows = [
        (
            str(depth),
            way,
            *(f"{1e3 * found[f'{depth} {way}']['seconds'][str(n)]:.0f}" for n in SIZES),
            f"{found[f'{depth} {way}']['prompt']:.0f}",
        )
        for depth in lengths
        for way in WAYS
    ]
    header = ("context", "-fa", *(f"T({n})" for n in SIZES), "prompt, tok/s")
    report.show(f"{setup.model.name}: milliseconds of a pass", header, rows)
    report.finish({**where, "load average": runs.load}, found)


def _measure(setup: Setup, depths: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Model(setup.model) as model, ExitStack() as opened:
        caches = {way: _cache(setup, model, way) for way in WAYS}
        for cache in caches.values():
            opened.callback(cache.close)
        text = model.tokenize(filler(setup.prompts), add_special=True, parse_special=False)
        text *= 1 + depths[-1] // len(text)
        for depth in depths:
            for way, cache in caches.items():
                started, read = time.perf_counter(), depth - len(cache.tokens)
                cache.prefill(text[:depth])
                speed = read / (time.perf_counter() - started)
                found[f"{depth} {way}"] = {"prompt": speed, "seconds": {}}
            for n in SIZES:
                samples: dict[str, list[float]] = {way: [] for way in WAYS}
                for _ in range(ROUNDS):
                    for way, cache in caches.items():
                        samples[way].append(cache.time_pass(n))
                for way in WAYS:
                    found[f"{depth} {way}"]["seconds"][str(n)] = min(samples[way])
    return found


def _cache(setup: Setup, model: Model, flash_attn: str) -> TreeCache:
    context = Context(
        model,
        num_ctx=setup.num_ctx,
        num_sequences=SIZES[-1],
        num_outputs=SIZES[-1],
        num_threads=setup.num_threads,
        flash_attn=flash_attn,
    )
    return TreeCache(context, SIZES[-1])
