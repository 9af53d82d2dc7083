"""Peak memory with a full context, and the parts that it should consist of."""

from __future__ import annotations

import logging
import re
import resource
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import click

from benchmarks.workbench import GREEDY, Bench, filler, program
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

    def total(self, *kinds: str) -> float:
        """MiB of some kinds; what is mapped from a file counts as that file."""
        return sum(size for device, kind, size in self.found if kind in kinds and device != _FILE)


@program(tokens=64, ctx=32768)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--fill", type=click.IntRange(1), help="Tokens in the context [default: full].")
def memory(bench: Bench, policy: str, fill: int | None) -> None:
    """Peak resident memory when the context is full, against the sum of its parts."""
    bench.expect(1)
    key = {"policy": policy, "context": bench.setup.num_ctx, "fill": fill}
    found = bench.run(key, partial(_fill, bench, policy, fill))
    parts = found["parts"]
    limit = sum(parts[name] for name in ("files", "repacked", "caches")) + ALLOWED
    sums = {"files + repacked + caches + 1 GiB": limit, "peak after loading": found["peak_loaded"]}
    rows = {**parts, **sums, "peak at the end": found["peak"]}
    title = (
        f"`{policy}`, -c {bench.setup.num_ctx}, {found['tokens']} tokens in the context "
        f"({found['seconds'] / 60:.0f} minutes)"
    )
    bench.show(title, [{"part": name, "MiB": f"{size:,.0f}"} for name, size in rows.items()])
    bench.finish({**found, "limit": limit, "holds": found["peak"] <= limit})


def _fill(bench: Bench, policy: str, fill: int | None) -> dict[str, Any]:
    """Read and generate until the context is full, or holds `fill` tokens."""
    setup, buffers = bench.setup, Buffers()
    log = logging.getLogger("dyspec_edge.llama")
    log.addHandler(buffers)
    log.propagate = False
    started = time.perf_counter()
    with Engine.load(replace(setup.config(policy), verbose=True)) as engine:
        peak_loaded = _peak()
        size = min(fill or engine.num_ctx, engine.num_ctx) - setup.num_tokens
        prompt = filler(engine, setup.prompts, size)
        stats = engine.generate(prompt, sampling=GREEDY, max_tokens=setup.num_tokens).stats
    log.removeHandler(buffers)
    files = sum(p.stat().st_size for p in {setup.model, setup.draft} if p) / 2**20
    return {
        "parts": {
            "files": files,
            "repacked": buffers.total("model"),
            "caches": buffers.total("KV", "RS"),
            "compute buffers": buffers.total("compute"),
            "logits": buffers.total("output"),
        },
        "peak_loaded": peak_loaded,
        "peak": _peak(),
        "tokens": stats.context_used,
        "seconds": time.perf_counter() - started,
        "buffers": buffers.found,
    }


def _peak() -> float:
    """MiB of the largest resident set so far."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / 2**20 if sys.platform == "darwin" else size / 2**10
