"""What shared noise is worth: block efficiency of three ways to draft and verify at T > 0."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import click

from benchmarks import report
from benchmarks.prompts import choose
from benchmarks.workbench import Engines, Setup, bench_options
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.verify import MatchVerifier, ResidualVerifier
from dyspec_edge.engine import Engine, SamplingParams

CATEGORIES = ("code_completion", "writing", "math_reasoning")
WAYS = ("shared noise", "match without", "residual")
CHAINS = {
    "temperature only": SamplingParams(top_k=0, top_p=1.0, min_p=0.0),
    "llama.cpp's defaults": SamplingParams(),
}
ALL = "**all**"

Replies = dict[str, list[dict[str, Any]]]
"""Results by way."""

Table = dict[tuple[str, float | None, str], Replies]
"""By chain, temperature and category."""


def without_shared_noise(drafter: Drafter) -> AbstractContextManager[object]:
    """Until it is left, the drafter ranks by its plain probability."""
    begin = drafter.begin

    def plainly(text: Sequence[int], ranking: Ranking) -> None:
        begin(text, replace(ranking, shared_noise=False))

    return mock.patch.object(drafter, "begin", plainly)


@click.command()
@bench_options(tokens=128)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--temp", "temperatures", multiple=True, type=float, default=(0.7, 1.0))
@click.option("--category", "categories", multiple=True, default=CATEGORIES)
@click.option(
    "--chain", "chains", multiple=True, type=click.Choice(tuple(CHAINS)), default=tuple(CHAINS)
)
@click.option("--each", default=1, show_default=True, help="Prompts of a category.")
@click.option("--seeds", default=1, show_default=True, help="Replies to each prompt.")
def noise(
    setup: Setup,
    policy: str,
    temperatures: Sequence[float],
    categories: Sequence[str],
    chains: Sequence[str],
    each: int,
    seeds: int,
) -> None:
    """Block efficiency under match with shared noise, match without it, and residual."""
    prompts = choose(setup.prompts, categories, each)
    where = setup.conditions()
    table: Table = {}
    with setup.runs("noise", where) as runs, Engines() as engines:
        runs.expect(len(chains) * len(temperatures) * len(prompts) * seeds * len(WAYS))
        # Seeds outermost: a run that is cut short has something of every cell.
        for seed in range(1, seeds + 1):
            for chain in chains:
                for temperature in temperatures:
                    for prompt in prompts:
                        cell = table.setdefault((chain, temperature, prompt.category), {})
                        params = replace(CHAINS[chain], temperature=temperature, seed=seed)
                        for way in WAYS:

                            def job(
                                way: str = way,
                                text: Any = prompt.messages,
                                params: SamplingParams = params,
                            ) -> dict[str, Any]:
                                engine = engines.get(setup.config(policy))
                                return _reply(engine, way, text, params, setup.num_tokens)

                            key = {
                                "policy": policy,
                                "chain": chain,
                                "T": temperature,
                                "prompt": prompt.id,
                                "seed": seed,
                                "way": way,
                            }
                            cell.setdefault(way, []).append(runs(key, job))
    _report({**where, "load average": runs.load}, table, policy, setup.num_tokens, each * seeds)


def _reply(
    engine: Engine, way: str, text: Any, params: SamplingParams, num_tokens: int
) -> dict[str, Any]:
    """One reply in one of the `WAYS`; the engine is left as it was."""
    decoder = engine.decoder
    verifier, drafter = decoder.verifier, decoder.drafter
    with without_shared_noise(drafter) if way == "match without" else nullcontext():
        decoder.verifier = ResidualVerifier() if way == "residual" else MatchVerifier()
        try:
            reply = engine.generate(text, sampling=params, max_tokens=num_tokens)
        finally:
            decoder.verifier = verifier
    stats = reply.stats
    return {
        "generated": stats.generated_tokens,
        "steps": stats.steps,
        "histogram": stats.accept_length_histogram,
        "tokens": reply.tokens,
    }


def _report(
    where: dict[str, Any],
    table: Table,
    policy: str,
    num_tokens: int,
    num_replies: int,
) -> None:
    rows, document = [], []
    groups = dict(table)
    for chain, temperature, _ in table:
        groups.setdefault((chain, temperature, ALL), _pooled(table, chain, temperature))
    for chain, _, _ in table:
        groups.setdefault((chain, None, ALL), _pooled(table, chain, None))
    for (chain, temperature, category), cell in groups.items():
        shown = {way: efficiency(cell[way]) for way in WAYS}
        errors = {way: standard_error(cell[way]) for way in WAYS}
        shared = shown["shared noise"]
        rows.append(
            (
                chain,
                ALL if temperature is None else f"{temperature:g}",
                category,
                *(f"{shown[way]:.2f} ± {errors[way]:.2f}" for way in WAYS),
                f"{shared / shown['match without']:.3f}",
                f"{shared / shown['residual']:.3f}",
            )
        )
        document.append(
            {
                "chain": chain,
                "temperature": temperature,
                "category": category,
                "block_efficiency": shown,
                "standard_error": errors,
            }
        )
    header = ("chain", "T", "category", *WAYS, "shared / without", "shared / residual")
    title = (
        f"`{policy}`, {num_tokens} tokens, {num_replies} replies per cell: tokens per target pass "
        "(± standard error over steps)"
    )
    report.show(title, header, rows)
    report.finish(where, {"policy": policy, "cells": document})


def _pooled(table: Table, chain: str, temperature: float | None) -> Replies:
    """The replies of one chain over all categories, of one temperature or of all."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for (its_chain, its_temperature, _), cell in table.items():
        if its_chain == chain and temperature in (None, its_temperature):
            for way in WAYS:
                found[way].extend(cell[way])
    return found


def efficiency(replies: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per target pass over all replies together."""
    return float(sum(r["generated"] for r in replies) / sum(r["steps"] for r in replies))


def standard_error(replies: Sequence[Mapping[str, Any]]) -> float:
    """Of the mean accept length, as if steps were independent."""
    lengths = [i for r in replies for i, n in enumerate(r["histogram"]) for _ in range(n)]
    return statistics.stdev(lengths) / len(lengths) ** 0.5 if len(lengths) > 1 else 0.0
