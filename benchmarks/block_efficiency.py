"""Tokens per target pass and speed of the policies, on greedy code completion."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import click

from benchmarks import report
from benchmarks.prompts import choose
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options

POLICIES = (
    "none",
    "chain:7",
    "dyspec:16",
    "dyspec:64",
    "dyspec-threshold:16",
    "dyspec-threshold:64",
)


@click.command("block-efficiency")
@bench_options(tokens=256)
@click.option("--policy", "policies", multiple=True, default=POLICIES, help="Repeatable.")
@click.option("--category", "categories", multiple=True, default=("code_completion",))
@click.option("--each", default=3, show_default=True, help="Prompts of a category.")
@click.option("--rounds", default=1, show_default=True, help="Repetitions, for speed.")
def block_efficiency(
    setup: Setup, policies: Sequence[str], categories: Sequence[str], each: int, rounds: int
) -> None:
    """Block efficiency and speed of every policy at T = 0, interleaved prompt by prompt."""
    prompts = choose(setup.prompts, categories, each)
    where = setup.circumstances()
    results: dict[str, list[dict[str, Any]]] = {policy: [] for policy in policies}
    with setup.runs("block-efficiency", where) as runs, Engines() as engines:
        runs.expect(rounds * len(prompts) * len(policies))
        for number in range(rounds):
            for prompt in prompts:
                for policy in policies:

                    def job(policy: str = policy, text: Any = prompt.messages) -> dict[str, Any]:
                        engine = engines.get(setup.config(policy))
                        reply = engine.generate(text, sampling=GREEDY, max_tokens=setup.num_tokens)
                        return {"stats": reply.stats.as_dict(), "tokens": reply.tokens}

                    key = {"policy": policy, "prompt": prompt.id, "round": number}
                    results[policy].append(runs(key, job))
    rows, document = [], {}
    for policy, found in results.items():
        summary = _summary(found, results.get("none"), len(prompts))
        document[policy] = summary
        efficiencies = " / ".join(f"{x:.2f}" for x in summary["block_efficiencies"])
        ratio = summary["speed_against_none"]
        rows.append(
            (
                f"`{policy}`",
                f"**{summary['block_efficiency']:.2f}**",
                efficiencies,
                f"{summary['accept_length']:.2f}",
                f"{summary['drafted_per_step']:.1f}",
                f"{summary['draft_passes_per_step']:.1f}",
                f"{summary['tokens_per_second']:.1f}",
                "" if ratio is None else f"{ratio:.2f}x",
            )
        )
    header = (
        "policy",
        "block efficiency",
        "by prompt",
        "accept length",
        "drafted / step",
        "draft passes / step",
        "tok/s",
        "against none",
    )
    title = (
        f"T = 0, {setup.num_tokens} tokens, {len(prompts)} prompts ({', '.join(categories)}), "
        f"{rounds} round(s); medians of speed"
    )
    report.show(title, header, rows)
    report.finish(
        {**where, "load average": runs.load},
        {"prompts": [p.id for p in prompts], "policies": document},
    )


def _summary(
    found: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]] | None, num_prompts: int
) -> dict[str, Any]:
    stats = [run["stats"] for run in found]
    steps = sum(s["steps"] for s in stats)
    ratios = [
        mine["stats"]["tokens_per_second"] / other["stats"]["tokens_per_second"]
        for mine, other in zip(found, plain or (), strict=False)
    ]
    # The text does not depend on the round, so the first one says all about efficiency.
    first = stats[:num_prompts]
    return {
        "block_efficiency": statistics.mean(s["block_efficiency"] for s in first),
        "block_efficiencies": [s["block_efficiency"] for s in first],
        "accept_length": sum(s["accepted_tokens"] for s in stats) / steps,
        "drafted_per_step": sum(s["draft_tokens"] for s in stats) / steps,
        "draft_passes_per_step": sum(s["draft_passes"] for s in stats) / steps,
        "generated": [s["generated_tokens"] for s in first],
        "tokens_per_second": statistics.median(s["tokens_per_second"] for s in stats),
        "speed_against_none": statistics.median(ratios) if ratios else None,
        "load": [run["load"] for run in found],
    }
