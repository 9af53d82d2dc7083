"""Peak memory with a full context, and the parts that it should consist of."""

from __future__ import annotations

import logging
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from benchmarks import report
from benchmarks.overhead import context_of
from benchmarks.workbench import GREEDY, Setup, bench_options
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.engine import Engine

_BUFFER = re.compile(r"(\S+) +(model|KV|output|compute|RS) buffer size += +([\d.]+) MiB")
_FILE = "CPU_Mapped"
ALLOWED = 1024.0
"""MiB beyond files, repacked weights and caches."""


class Buffers(logging.Handler):
    """The buffers that llama.cpp's log tells of: (device, kind, MiB)."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[tuple[str, str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        match = _BUFFER.search(record.getMessage())
        if match:
            self.found.append((match[1], match[2], float(match[3])))


@click.command()
@bench_options(tokens=64, ctx=32768)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--fill", type=click.IntRange(1), help="Tokens in the context [default: full].")
def memory(setup: Setup, policy: str, fill: int | None) -> None:
    """Peak resident memory when the context is full, against the sum of its parts."""
    where = setup.conditions()
    with setup.runs("memory", where) as runs:
        runs.expect(1)
        key = {"policy": policy, "context": setup.num_ctx, "fill": fill}
        found = runs(key, lambda: _fill(setup, policy, fill, runs.note))
    parts = found["parts"]
    limit = sum(parts[name] for name in ("files", "repacked", "caches")) + ALLOWED
    rows = [(name, f"{size:,.0f}") for name, size in parts.items()]
    rows.append(("files + repacked + caches + 1 GiB", f"**{limit:,.0f}**"))
    rows.append(("peak after loading", f"{found['peak_loaded']:,.0f}"))
    rows.append(("peak at the end", f"**{found['peak']:,.0f}**"))
    title = (
        f"`{policy}`, -c {setup.num_ctx}, {found['tokens']} tokens in the context "
        f"({found['seconds'] / 60:.0f} minutes)"
    )
    report.show(title, ("part", "MiB"), rows)
    report.finish(
        {**where, "load average": runs.load},
        {**found, "limit": limit, "holds": found["peak"] <= limit},
    )


def _fill(
    setup: Setup, policy: str, fill: int | None, note: Callable[[str], None]
) -> dict[str, Any]:
    """Read and generate until the context is full, or holds `fill` tokens."""
    buffers, log = Buffers(), logging.getLogger("dyspec_edge.llama")
    log.addHandler(buffers)
    log.propagate = False
    started = time.perf_counter()
    with Engine.load(replace(setup.config(policy), verbose=True)) as engine:
        peak_loaded = _peak()
        note(f"loaded, peak {peak_loaded:,.0f} MiB")
        decoder = engine.decoder
        size = min(fill or engine.num_ctx, engine.num_ctx)
        tokens = context_of(engine, setup.prompts, size - setup.num_tokens)

        def progress(done: int, total: int) -> None:
            if done % 4096 < 512:
                note(f"read {done} of {total} tokens, {_peak():,.0f} MiB")

        sampler = Sampler(decoder.target.context.model, GREEDY, 0, tokens)
        decoder.begin(tokens, sampler, on_progress=progress)
        for _ in decoder.generate(setup.num_tokens):
            pass
        num_tokens = len(decoder.target.tokens)
        sampler.close()
    log.removeHandler(buffers)
    files = sum(p.stat().st_size for p in {setup.model, setup.draft} if p) / 2**20
    return {
        "parts": {"files": files, **_parts(buffers.found)},
        "peak_loaded": peak_loaded,
        "peak": _peak(),
        "tokens": num_tokens,
        "seconds": time.perf_counter() - started,
        "buffers": buffers.found,
    }


def _parts(found: list[tuple[str, str, float]]) -> dict[str, float]:
    """MiB by kind; what is mapped from a file counts as that file."""

    def total(*kinds: str) -> float:
        return sum(size for device, kind, size in found if kind in kinds and device != _FILE)

    return {
        "repacked": total("model"),
        "caches": total("KV", "RS"),
        "compute buffers": total("compute"),
        "logits": total("output"),
    }


def _peak() -> float:
    """MiB of the largest resident set so far."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / 2**20 if sys.platform == "darwin" else size / 2**10
