"""Passes of `priced` that are filled up to measured sizes, against passes as they come."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import click

from benchmarks import report
from benchmarks.prompts import Prompt, choose
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.engine import Engine

CATEGORIES = ("writing", "stem", "math_reasoning", "code_completion", "coding", "extraction")
WAYS = ("filled", "as they come")


@click.command()
@bench_options(tokens=128)
@click.option("--category", "categories", multiple=True, default=CATEGORIES)
@click.option("--each", default=1, show_default=True, help="Prompts of a category.")
def padding(setup: Setup, categories: Sequence[str], each: int) -> None:
    """Speed of generation with and without filled passes, and how many graphs were used again.

    Both ways answer every prompt, taking turns at being the first, each with what it has learned
    itself.
    """
    prompts = choose(setup.prompts, categories, each)
    where = setup.circumstances()
    replies: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with setup.runs("padding", where) as runs, Engines() as engines:
        runs.expect(len(prompts) * len(WAYS))
        learned: dict[str, Mapping[str, Any]] = {}
        for number, prompt in enumerate(prompts):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:

                def job(way: str = way, prompt: Prompt = prompt) -> dict[str, Any]:
                    engine = engines.get(setup.config("priced"))
                    return _reply(engine, way, prompt, setup.num_tokens, learned)

                replies[way].append(runs({"prompt": prompt.id, "way": way}, job))
    rows = [
        (way, *(f"{statistics.median(r[name] for r in found):.2f}" for name in _FIGURES))
        for way, found in replies.items()
    ]
    pairs = zip(replies["filled"], replies["as they come"], strict=True)
    ratios = [filled["speed"] / other["speed"] for filled, other in pairs]
    report.show(f"`priced`, {len(prompts)} replies, medians", ("passes", *_FIGURES.values()), rows)
    mean = statistics.geometric_mean(ratios)
    print(
        f"\nSpeed, filled against as they come: **{mean:.3f}x** in the mean of pairs "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )
    report.finish({**where, "load average": runs.load}, {"replies": replies, "ratios": ratios})


_FIGURES = {
    "speed": "tokens / s",
    "tokens_per_pass": "tokens / target pass",
    "target_reused": "target's graphs used again",
    "draft_reused": "draft's graphs used again",
}


def _reply(
    engine: Engine,
    way: str,
    prompt: Prompt,
    num_tokens: int,
    learned: dict[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """One reply; what the policy knew before and learned is that of `way` alone."""
    decoder = engine.decoder
    policy, drafter = decoder.policy, decoder.drafter
    assert isinstance(policy, PricedPolicy)
    draft = drafter.shared_cache if drafter else None
    if draft is None or policy.draft is None:
        raise click.UsageError("a draft does not pay here: `priced` runs without one")
    policy.restore(learned.setdefault(way, policy.as_dict()))
    caches = {"target": decoder.target, "draft": draft}
    for cache, curve in zip(caches.values(), (policy.target, policy.draft), strict=True):
        cache.pad_to(curve.curve.pass_sizes if way == "filled" else ())
    before = {name: (c.context.num_reused_graphs, c.num_passes) for name, c in caches.items()}
    reply = engine.generate(prompt.messages, sampling=GREEDY, max_tokens=num_tokens)
    learned[way] = policy.as_dict()
    shares = {}
    for name, cache in caches.items():
        reused, passes = before[name]
        made = cache.num_passes - passes
        shares[f"{name}_reused"] = (cache.context.num_reused_graphs - reused) / max(1, made)
    return {
        "speed": reply.stats.tokens_per_second,
        "tokens_per_pass": reply.stats.block_efficiency,
        **shares,
    }
