"""What shared noise is worth: block efficiency of three ways to draft and verify at T > 0."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import click

from benchmarks.workbench import Bench, program, prompt_options
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.engine import SamplingParams

CATEGORIES = ("code_completion", "writing", "math_reasoning")
WAYS = ("shared noise", "match without", "residual")
CHAINS = {
    "temperature only": SamplingParams(top_k=0, top_p=1.0, min_p=0.0),
    "llama.cpp's defaults": SamplingParams(),
}
ALL = "**all**"


def without_shared_noise(drafter: Drafter) -> AbstractContextManager[object]:
    """Until it is left, the drafter ranks by its plain probability."""
    begin = drafter.begin

    def plainly(text: Sequence[int], ranking: Ranking) -> None:
        begin(text, replace(ranking, shared_noise=False))

    return mock.patch.object(drafter, "begin", plainly)


@program(tokens=128)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--temp", "temperatures", multiple=True, type=float, default=(0.7, 1.0))
@click.option("--chain", "chains", multiple=True, type=click.Choice([*CHAINS]), default=[*CHAINS])
@prompt_options(categories=CATEGORIES, each=1)
@click.option("--seeds", default=1, show_default=True, help="Replies to each prompt.")
def noise(
    bench: Bench,
    policy: str,
    temperatures: Sequence[float],
    chains: Sequence[str],
    categories: Sequence[str],
    each: int,
    seeds: int,
) -> None:
    """Block efficiency under match with shared noise, match without it, and residual."""
    prompts = choose(bench.setup.prompts, categories, each)
    # Seeds outermost: a run that is cut short has something of every cell.
    cases = list(product(range(1, seeds + 1), chains, temperatures, prompts, WAYS))
    cells: dict[tuple[str, float, str], dict[str, list[dict[str, Any]]]] = {}
    bench.expect(len(cases))
    for seed, chain, temperature, prompt, way in cases:
        params = replace(CHAINS[chain], temperature=temperature, seed=seed)
        key = {"policy": policy, "chain": chain, "T": temperature, "prompt": prompt.id}
        key |= {"seed": seed, "way": way}
        reply = bench.run(key, partial(_reply, bench, policy, way, prompt, params))
        for category in (prompt.category, ALL):
            cells.setdefault((chain, temperature, category), {}).setdefault(way, []).append(reply)
    rows, document = [], []
    for (chain, temperature, category), found in cells.items():
        means = {way: efficiency(found[way]) for way in WAYS}
        errors = {way: standard_error(found[way]) for way in WAYS}
        shown = {way: f"{means[way]:.2f} ± {errors[way]:.2f}" for way in WAYS}
        ratios = {f"shared / {w}": f"{means['shared noise'] / means[w]:.3f}" for w in WAYS[1:]}
        cell = {"chain": chain, "temperature": f"{temperature:g}", "category": category}
        rows.append({**cell, **shown, **ratios})
        document.append({**cell, "block_efficiency": means, "standard_error": errors})
    title = (
        f"`{policy}`, {bench.setup.num_tokens} tokens, {each * seeds} replies per cell: tokens per "
        "target pass (± standard error over steps)"
    )
    bench.show(title, rows)
    bench.finish({"policy": policy, "cells": document})


def _reply(
    bench: Bench, policy: str, way: str, prompt: Prompt, params: SamplingParams
) -> dict[str, Any]:
    """One reply in one of the `WAYS`."""
    config = bench.setup.config(policy)
    engine = bench.engines.get(replace(config, verify="residual") if way == "residual" else config)
    drafter = engine.conversation.drafter
    with without_shared_noise(drafter) if way == "match without" else nullcontext():
        reply = engine.generate(prompt.messages, sampling=params, max_tokens=bench.setup.num_tokens)
    stats = reply.stats
    return {
        "generated": stats.generated_tokens,
        "steps": stats.steps,
        "histogram": stats.accept_length_histogram,
    }


def efficiency(replies: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per target pass over all replies together."""
    return float(sum(r["generated"] for r in replies) / sum(r["steps"] for r in replies))


def standard_error(replies: Sequence[Mapping[str, Any]]) -> float:
    """Of the mean accept length, as if steps were independent."""
    lengths = [i for r in replies for i, n in enumerate(r["histogram"]) for _ in range(n)]
    return statistics.stdev(lengths) / len(lengths) ** 0.5 if len(lengths) > 1 else 0.0
