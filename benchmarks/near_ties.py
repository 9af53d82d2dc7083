"""Exactness on real models: how far every emitted token is from a single-row arg max.

One row and many rows take different kernels, whose rounding differs, so two tokens of nearly
equal logits may change places.  Every emitted token is therefore checked by *teacher forcing*: the
text is read again one token per pass, and the token's logit is compared with the largest.

The yardstick is plain decoding with and without flash attention: one row a pass, no tree, nothing
but sums in another order.  What it flips, rounding flips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.workbench import GREEDY, Bench, flash_attention, program, prompt_options
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.tree import TokenTree

YARDSTICK = "none, other -fa"
POLICIES = ("none", YARDSTICK, "chain:7", "dyspec:16", "dyspec:64")
MAX_GAP = 0.25
MAX_SHARE = 0.03


@program(tokens=128, name="near-ties")
@click.option("--policy", "policies", multiple=True, default=POLICIES, help="Repeatable.")
@prompt_options(categories=("code_completion", "writing", "math_reasoning"), each=1)
def near_ties(bench: Bench, policies: Sequence[str], categories: Sequence[str], each: int) -> None:
    """Gap of every emitted token to the arg max of a single-row pass, at T = 0."""
    prompts = choose(bench.setup.prompts, categories, each)
    bench.expect(len(prompts) * len(policies))
    found = {
        policy: [
            bench.run({"policy": policy, "prompt": p.id}, partial(_checked, bench, policy, p))
            for p in prompts
        ]
        for policy in policies
    }
    rows, document = [], {}
    for policy, texts in found.items():
        summary = document[policy] = _summary(texts, found.get("none", texts))
        apart = (f"{at} ({gap:.3f})" if at is not None else "same" for at, gap in summary["apart"])
        rows.append(
            {
                "policy": f"`{policy}`",
                "tokens": str(summary["tokens"]),
                "not the arg max": str(summary["flips"]),
                "share": f"{summary['share']:.2%}",
                "largest gap": f"{summary['largest_gap']:.3f}",
                "first difference from none (gap), by prompt": ", ".join(apart),
                f"within {MAX_GAP} and {MAX_SHARE:.0%}": "yes" if summary["holds"] else "**no**",
            }
        )
    draft = bench.setup.draft.name if bench.setup.draft else "no draft"
    bench.show(f"{bench.setup.model.name} with {draft}, T = 0", rows)
    bench.finish({"prompts": [p.id for p in prompts], "policies": document})


def _checked(bench: Bench, policy: str, prompt: Prompt) -> dict[str, Any]:
    """A reply, and the gap of each of its tokens."""
    plain = bench.setup.config("none")
    config = plain if policy == YARDSTICK else bench.setup.config(policy)
    if policy == YARDSTICK:
        config = replace(plain, flash_attn="off" if flash_attention() == "on" else "on")
    engine = bench.engines.get(config)
    read = engine.prepare(prompt.messages)
    reply = engine.generate(read, sampling=GREEDY, max_tokens=bench.setup.num_tokens).tokens
    target = bench.engines.get(plain).conversation.target
    return {"reply": reply, "gaps": gaps(target, read.tokens, reply)}


def gaps(target: Cache, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
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


def _summary(texts: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> dict[str, Any]:
    all_gaps = [gap for text in texts for gap in text["gaps"]]
    flips = sum(gap > 0 for gap in all_gaps)
    apart = []
    for text, other in zip(texts, plain, strict=True):
        shared = common_prefix(text["reply"], other["reply"])
        differs = shared < min(len(text["reply"]), len(other["reply"]))
        apart.append((shared, text["gaps"][shared]) if differs else (None, None))
    return {
        "tokens": len(all_gaps),
        "flips": flips,
        "share": flips / len(all_gaps),
        "largest_gap": max(all_gaps),
        "apart": apart,
        "holds": max(all_gaps) <= MAX_GAP and flips <= MAX_SHARE * len(all_gaps),
    }
