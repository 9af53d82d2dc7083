"""Exactness on real models: how far every emitted token is from a single-row arg max.

One row and many rows take different kernels, whose rounding differs, so two tokens of nearly
equal logits may change places.  Every emitted token is therefore checked by *teacher forcing*: the
text is read again one token per pass, and the token's logit is compared with the largest.

The yardstick is plain decoding without flash attention: one row a pass, no tree, nothing but sums
in another order.  What it flips, rounding flips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from benchmarks import report
from benchmarks.prompts import choose
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options
from dyspec_edge.decode.cache import TreeCache, common_prefix
from dyspec_edge.decode.tree import TokenTree

YARDSTICK = "none, -fa off"
POLICIES = ("none", YARDSTICK, "chain:7", "dyspec:16", "dyspec:64")
MAX_GAP = 0.25
MAX_SHARE = 0.03


@click.command("near-ties")
@bench_options(tokens=128)
@click.option("--policy", "policies", multiple=True, default=POLICIES, help="Repeatable.")
@click.option(
    "--category",
    "categories",
    multiple=True,
    default=("code_completion", "writing", "math_reasoning"),
)
@click.option("--each", default=1, show_default=True, help="Prompts of a category.")
def near_ties(setup: Setup, policies: Sequence[str], categories: Sequence[str], each: int) -> None:
    """Gap of every emitted token to the arg max of a single-row pass, at T = 0."""
    prompts = choose(setup.prompts, categories, each)
    where = setup.conditions()
    found: dict[str, list[dict[str, Any]]] = {policy: [] for policy in policies}
    with setup.runs("near-ties", where) as runs, Engines() as engines:
        runs.expect(2 * len(prompts) * len(policies))
        for policy in policies:
            for prompt in prompts:

                def job(policy: str = policy, text: Any = prompt.messages) -> dict[str, Any]:
                    config = setup.config("none" if policy == YARDSTICK else policy)
                    if policy == YARDSTICK:
                        config = replace(config, flash_attn="off")
                    engine = engines.get(config)
                    reply = engine.generate(text, sampling=GREEDY, max_tokens=setup.num_tokens)
                    read = engine.decoder.target.tokens[: reply.stats.prompt_tokens]
                    return {"prompt": list(read), "reply": list(reply.tokens)}

                key = {"policy": policy, "prompt": prompt.id}
                found[policy].append(runs(key, job))
        for policy in policies:
            for index, prompt in enumerate(prompts):
                text = found[policy][index]

                def check(text: dict[str, Any] = text) -> dict[str, Any]:
                    engine = engines.get(setup.config("none"))
                    return {"gaps": gaps(engine.decoder.target, text["prompt"], text["reply"])}

                key = {"policy": policy, "prompt": prompt.id, "part": "teacher forcing"}
                found[policy][index] = {**text, **runs(key, check)}
    rows, document = [], {}
    for policy, texts in found.items():
        summary = _summary(texts, found.get("none"))
        document[policy] = summary
        parts = [
            "same" if at is None else f"{at} ({gap:.3f})"
            for at, gap in zip(summary["first_difference"], summary["gap_there"], strict=True)
        ]
        rows.append(
            (
                f"`{policy}`",
                str(summary["tokens"]),
                str(summary["flips"]),
                f"{summary['share']:.2%}",
                f"{summary['largest_gap']:.3f}",
                ", ".join(parts),
                "yes" if summary["holds"] else "**no**",
            )
        )
    header = (
        "policy",
        "tokens",
        "not the arg max",
        "share",
        "largest gap",
        "first difference from none (gap), by prompt",
        f"within {MAX_GAP} and {MAX_SHARE:.0%}",
    )
    draft = setup.draft.name if setup.draft else "no draft"
    report.show(f"{setup.model.name} with {draft}, T = 0", header, rows)
    report.finish(
        {**where, "load average": runs.load},
        {"prompts": [p.id for p in prompts], "policies": document},
    )


def gaps(target: TreeCache, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
    """Largest logit minus the emitted token's, for every token, read one per pass."""
    model = target.context.model
    never = model.suppressed_tokens()
    tree, root = TokenTree(1, 1), np.zeros(1, np.int32)
    target.prefill(prompt[:-1])
    result = []
    for token, emitted in zip((prompt[-1], *reply), reply, strict=False):
        tree.reset(token)
        target.evaluate(tree, root)
        row = target.context.row_view(int(target.rows[0])).copy()
        row[never] = -np.inf
        result.append(float(row.max() - row[emitted]))
        target.commit(tree, [0])
    return result


def _summary(
    texts: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]] | None
) -> dict[str, Any]:
    all_gaps = [gap for text in texts for gap in text["gaps"]]
    flips = sum(gap > 0 for gap in all_gaps)
    first: list[int | None] = []
    there: list[float | None] = []
    for text, other in zip(texts, plain or texts, strict=True):
        shared = common_prefix(text["reply"], other["reply"])
        ends = shared == len(text["reply"]) == len(other["reply"])
        first.append(None if ends else shared)
        there.append(None if ends or shared >= len(text["gaps"]) else text["gaps"][shared])
    return {
        "tokens": len(all_gaps),
        "flips": flips,
        "share": flips / len(all_gaps),
        "largest_gap": max(all_gaps),
        "first_difference": first,
        "gap_there": [gap if gap is not None else float("nan") for gap in there],
        "holds": max(all_gaps) <= MAX_GAP and flips <= MAX_SHARE * len(all_gaps),
    }
