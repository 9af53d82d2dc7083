"""First loads beside programs that come and go: do prices heal, and does plain decoding not win?

A first load beside bursts, from an empty cache directory, then all is quiet: a second load takes
turns with an engine that nothing ever disturbed.  The reverse: a quiet first load, then `priced`
takes turns with plain decoding beside bursts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import click

from benchmarks.race import take_turns, tokens_of
from benchmarks.workbench import Bench, program, prompt_options
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.engine import Engine

SPINNER = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.2, 2.0)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.2, 2.0))
"""


@contextmanager
def company(num_processes: int) -> Iterator[None]:
    """Processes that each compute for 0.2 to 2 s and rest as long, again and again."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPINNER]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


@contextmanager
def empty_cache() -> Iterator[None]:
    """Nothing was measured before."""
    with TemporaryDirectory() as directory, patch.dict(os.environ, DYSPEC_EDGE_CACHE=directory):
        yield


@program(tokens=300, name="bursts")
@prompt_options()
@click.option("--tries", default=10, show_default=True, help="First loads of each kind.")
@click.option("--processes", default=3, show_default=True, help="That come and go.")
def bursts(
    bench: Bench, categories: Sequence[str], each: int | None, tries: int, processes: int
) -> None:
    """Loads beside bursts, then quiet ones; and the reverse."""
    prompts = choose(bench.setup.prompts, categories, each, 0)
    bench.expect(2 * tries)
    rows, document = [], []
    for number in range(tries):
        prompt = prompts[number % len(prompts)]
        runs = {
            kind: bench.run(
                {"kind": kind, "try": number, "prompt": prompt.id},
                partial(job, bench, prompt, processes),
            )
            for kind, job in (("heals", _heals), ("bears", _bears))
        }
        quiet, healed = (_rate(runs["heals"][side]) for side in ("quiet", "healed"))
        against_plain = _rate(runs["bears"]["priced"]) / _rate(runs["bears"]["none"])
        rows.append(
            {
                "try": str(number),
                "prompt": prompt.id,
                "tokens/s, never disturbed": f"{quiet:.2f}",
                "second load": f"{healed / quiet:.2f}x",
                "beside bursts, of plain": f"{against_plain:.2f}x",
            }
        )
        document.append({"quiet": quiet, "healed": healed / quiet, "bears": against_plain})
    bench.show(
        f"A first load beside {processes} processes in bursts of 0.2 to 2 s, then a quiet second "
        f"load; and a quiet first load, then bursts. {bench.setup.num_tokens} tokens, T = 0",
        rows,
    )
    worst = {name: min(found[name] for found in document) for name in ("healed", "bears")}
    median = statistics.median(found["healed"] for found in document)
    bench.finish({"tries": document, "worst": worst, "median_healed": median})


def _heals(bench: Bench, prompt: Prompt, processes: int) -> dict[str, Any]:
    config = bench.setup.config("priced")
    with empty_cache(), closing(Engine.load(config)) as quiet, empty_cache():
        with company(processes), closing(Engine.load(config)) as first:
            disturbed = _said(first)
        with closing(Engine.load(config)) as healed:
            written = _written(bench, prompt, quiet=quiet, healed=healed)
            said = {"quiet": _said(quiet), "first": disturbed, "healed": _said(healed)}
            return {**written, "said": said}


def _bears(bench: Bench, prompt: Prompt, processes: int) -> dict[str, Any]:
    with (
        empty_cache(),
        closing(Engine.load(bench.setup.config("priced"))) as priced,
        closing(Engine.load(bench.setup.config("none"))) as plain,
        company(processes),
    ):
        return _written(bench, prompt, priced=priced, none=plain)


def _written(bench: Bench, prompt: Prompt, **engines: Engine) -> dict[str, Any]:
    """The steps of engines that take turns at one text."""
    num_tokens = bench.setup.num_tokens
    sides = {name: tokens_of(engine, prompt, num_tokens) for name, engine in engines.items()}
    return {name: side.steps for name, side in take_turns(sides, num_tokens).items()}


def _said(engine: Engine) -> list[str]:
    return [line for line in engine.notices if line.startswith("policy")]


def _rate(steps: Sequence[Sequence[float]]) -> float:
    """Tokens a second, the first step apart: the prompt is read in it."""
    return sum(n for n, _ in steps[1:]) / sum(seconds for _, seconds in steps[1:])
