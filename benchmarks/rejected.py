"""What the target preferred below nodes that it refused: does it foretell the text that follows?

A refused node was evaluated all the same, and its row of logits says how the target would have gone
on there.  Kept by the last tokens of that context, such successors could be copied like the text's
own.  This counts how often they would have been right, and where nothing else was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from benchmarks import report
from benchmarks.prompts import Prompt, choose
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options
from dyspec_edge import native
from dyspec_edge.decode.draft.lookup import Lookup
from dyspec_edge.decode.loop import SpeculativeDecoder
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import FusedMatchVerifier, MatchVerifier, Rows

CATEGORIES = (
    *("writing", "stem", "math_reasoning", "code_completion", "code_edit"),
    *("summarization", "translation", "extraction"),
)
LENGTHS = (2, 3, 4)
"""Tokens of context that a successor is kept by."""


@click.command()
@bench_options(tokens=96)
@click.option("--policy", default="dyspec:16", show_default=True)
@click.option("--category", "categories", multiple=True, default=CATEGORIES)
@click.option("--each", default=1, show_default=True, help="Prompts of a category.")
def rejected(setup: Setup, policy: str, categories: Sequence[str], each: int) -> None:
    """Successors at refused nodes as guesses of the next token, beside the draft and the text."""
    prompts = choose(setup.prompts, categories, each)
    where = setup.circumstances()
    total: Counter[str] = Counter()
    with setup.runs("rejected", where) as runs, Engines() as engines:
        runs.expect(len(prompts))
        for prompt in prompts:

            def job(prompt: Prompt = prompt) -> dict[str, Any]:
                decoder = engines.get(setup.config(policy)).decoder
                watching = _Watching(decoder)
                decoder.verifier = watching
                try:
                    engines.get(setup.config(policy)).generate(
                        prompt.messages, sampling=GREEDY, max_tokens=setup.num_tokens
                    )
                finally:
                    decoder.verifier = FusedMatchVerifier()
                return {"counts": watching.counts}

            total.update(runs({"policy": policy, "prompt": prompt.id}, job)["counts"])
    steps = total["steps"]
    rows = [("the draft", f"{steps}", _share(total["draft"], steps), "", "")]
    rows.append(("the text", f"{total['copies']}", _share(total["copy"], total["copies"]), "", ""))
    for length in LENGTHS:
        known, right = total[f"known {length}"], total[f"right {length}"]
        alone = total[f"alone {length}"]
        name = f"refused nodes, {length} tokens"
        rows.append((name, f"{known}", _share(right, known), f"{alone}", _share(alone, steps)))
    header = ("guess from", "steps with one", "right", "right where no other was", "of all steps")
    report.show(f"`{policy}`, the first token of {steps} steps", header, rows)
    report.finish({**where, "load average": runs.load}, {"policy": policy, "counts": dict(total)})


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


class _Watching(MatchVerifier):
    """Matches, counts whose guess of a step's first token was right, and remembers refused rows."""

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        self.counts: Counter[str] = Counter()
        self._decoder = decoder
        self._lookup = Lookup()
        self._successors: dict[tuple[int, ...], int] = {}

    def walk(
        self, tree: TokenTree, rows: Rows, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """As `MatchVerifier.walk`."""
        path, bonus = super().walk(tree, rows, sampler, index)
        text = [*self._decoder.target.tokens, int(tree.token[0])]
        self._count(tree, text, int(tree.token[path[1]]) if len(path) > 1 else bonus)
        num_vocab = self._decoder.target.context.model.num_vocab
        for node in set(range(tree.size)) - set(path):
            if rows[node]:
                best = native.argmax(int(rows[node]), num_vocab)
                context = text + tree.token[tree.path(node)[1:]].tolist()
                for length in LENGTHS:
                    self._successors[tuple(context[-length:])] = best
        return path, bonus

    def _count(self, tree: TokenTree, text: list[int], first: int) -> None:
        self._lookup.follow(text)
        length, start = self._lookup.match()
        drafted = tree.num_candidates[0] > 0 and tree.candidate_ids[0, 0] == first
        copied = length > 0 and self._lookup.tokens[start] == first
        self.counts.update(steps=1, draft=int(drafted), copies=int(length > 0), copy=int(copied))
        for length in LENGTHS:
            guess = self._successors.get(tuple(text[-length:]))
            if guess is not None:
                self.counts[f"known {length}"] += 1
                self.counts[f"right {length}"] += guess == first
                self.counts[f"alone {length}"] += guess == first and not drafted and not copied
