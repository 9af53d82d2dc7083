"""Half of the prompts decides each program's settings by group, the other half is measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.near_ties import MAX_GAP
from benchmarks.peers import build
from benchmarks.peers.contest import REFERENCE, Contest, halves
from benchmarks.peers.engines import Ours
from benchmarks.peers.programs import Peer
from benchmarks.peers.rivals import PLAIN, rivals
from benchmarks.peers.settings import describe
from benchmarks.workbench import Bench, program, prompt_options
from dyspec_edge.llama import Model


@program(tokens=96, name="peers")
@click.option("--policy", "policies", multiple=True, default=("priced",), help="Repeatable.")
@prompt_options(categories=("code_completion", "writing", "math_reasoning"), each=2)
@click.option("--rounds", default=1, show_default=True, help="Repetitions of the second half.")
@click.option("--trial-tokens", default=32, show_default=True, help="Of a reply in the search.")
@click.option("--peer", "names", multiple=True, help="Part of a name; repeatable [default: all].")
@click.option(
    "--no-repack",
    is_flag=True,
    help="llama.cpp's programs leave the weights in the file, as they must where memory is short.",
)
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=build.DEFAULT_BUILD,
    help="Where llama.cpp's programs are, or are built [default: in the user's cache].",
)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="llama-cpp-python's unpacked source package [default: pip downloads it].",
)
def peers(
    bench: Bench,
    policies: Sequence[str],
    categories: Sequence[str],
    each: int,
    rounds: int,
    trial_tokens: int,
    names: Sequence[str],
    no_repack: bool,
    build_dir: Path,
    source: Path | None,
) -> None:
    """Speed beside llama.cpp's programs and prompt lookup at their best settings, T = 0.

    The programs are built on first use, which takes many minutes.
    """
    programs = build.programs(build_dir, source)
    bench.conditions["llama.cpp's programs"] = (
        f"source package of {build.PACKAGE} {build.VERSION}; both built for "
        f"{build.kernels(programs[build.SERVER])}"
    )
    trials, finals = halves(bench.setup.prompts, categories, each)
    others = _chosen(rivals(bench.setup, programs, repacks=not no_repack), names)
    ours = [Ours(policy, bench.setup) for policy in dict.fromkeys((REFERENCE, *policies))]
    with Model(bench.setup.model, vocab_only=True) as vocabulary:
        contest = Contest(bench, vocabulary, ours, others, trials, finals)
        bench.expect(contest.num_runs(rounds))
        best = contest.tune(trial_tokens)
        cells = contest.measure(best, rounds)
        document = contest.summaries(best, cells)
    _report(contest, document)


def _chosen(others: list[Peer], names: Sequence[str]) -> list[Peer]:
    """Those whose names contain one of `names`, and plain llama.cpp; all if there are none."""
    for name in names:
        if not any(name in peer.name for peer in others):
            known = "; ".join(peer.name for peer in others)
            raise click.UsageError(f"no peer is called {name}; there are: {known}")
    return [
        peer
        for peer in others
        if not names or peer.name == PLAIN or any(name in peer.name for name in names)
    ]


def _report(contest: Contest, document: dict[str, dict[str, Any]]) -> None:
    bench = contest.bench
    rows = [
        {
            "group": group,
            "who": name,
            "best settings": describe(cell["settings"]),
            "tok/s": f"{cell['tokens_per_second']:.2f}",
            f"against {PLAIN}": f"{cell['against_plain']:.2f}x",
            "accepted / drafted": f"{cell['accepted']} / {cell['drafted']}",
            "text": _verdict(cell["gaps"]),
        }
        for group, cells in document.items()
        for name, cell in cells.items()
    ]
    bench.show("T = 0; medians over the second half of the prompts", rows)
    found = []
    for group, cells in document.items():
        fastest = max((p.name for p in contest.others), key=lambda n: cells[n]["against_plain"])
        for ours in contest.ours:
            ratio = cells[ours.name]["against_plain"] / cells[fastest]["against_plain"]
            row = {"group": group, "policy": ours.name, "best_peer": fastest, "ratio": ratio}
            found.append(row)
    means = []
    for ours in contest.ours:
        mean = statistics.mean(r["ratio"] for r in found if r["policy"] == ours.name)
        means.append({"group": "mean", "policy": ours.name, "best_peer": "", "ratio": mean})
    shown = [{**row, "ratio": f"**{row['ratio']:.2f}x**"} for row in (*found, *means)]
    bench.show("Against whichever peer turned out fastest in the group", shown)
    prompts = {
        part: [p.id for prompts in half.values() for p in prompts]
        for part, half in (("search", contest.trials), ("measured", contest.finals))
    }
    bench.finish({"prompts": prompts, "groups": document, "contest": found})


def _verdict(found: Sequence[float | None]) -> str:
    """Whether the texts are plain decoding's."""
    differing = [gap for gap in found if gap is not None]
    if not differing:
        return "same"
    words = f"{len(differing)} of {len(found)} part, gap up to {max(differing):.3f}"
    return words if max(differing) <= MAX_GAP else f"**{words}**"
