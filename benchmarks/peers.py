"""dyspec-edge beside llama.cpp's own speculative programs, each at its best, on the same work.

Half of the prompts decides each program's settings for each group of categories, the other half is
measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks import peer_build, report
from benchmarks.near_ties import MAX_GAP
from benchmarks.peer_engines import Ours
from benchmarks.peer_programs import Peer
from benchmarks.peer_runs import REFERENCE, Best, Cells, Plan, Run, check_texts, measure, speed
from benchmarks.peer_settings import PLAIN, peers
from benchmarks.prompts import Prompt, choose
from benchmarks.tuning import describe
from benchmarks.workbench import Setup, bench_options


@click.command("peers")
@bench_options(tokens=96)
@click.option("--policy", "policies", multiple=True, default=("priced",), help="Repeatable.")
@click.option(
    "--category",
    "categories",
    multiple=True,
    default=("code_completion", "writing", "math_reasoning"),
    help="Repeatable.",
)
@click.option(
    "--each",
    default=2,
    show_default=True,
    type=click.IntRange(2),
    help="Prompts of a category, half of them for the search.",
)
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
    default=peer_build.DEFAULT_BUILD,
    help="Where llama.cpp's programs are, or are built [default: in the user's cache].",
)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="llama-cpp-python's unpacked source package [default: pip downloads it].",
)
@click.option("--jobs", default=psutil.cpu_count() or 1, help="Compilers at a time.")
def peers_command(
    setup: Setup,
    policies: Sequence[str],
    categories: Sequence[str],
    each: int,
    rounds: int,
    trial_tokens: int,
    names: Sequence[str],
    no_repack: bool,
    build_dir: Path,
    source: Path | None,
    jobs: int,
) -> None:
    """Speed beside llama.cpp's programs and prompt lookup at their best settings, T = 0.

    The programs are built on first use, which takes many minutes.
    """
    programs = peer_build.programs(build_dir, source, jobs)
    where = setup.conditions()
    where["llama.cpp's programs"] = (
        f"source package of {peer_build.PACKAGE} {peer_build.VERSION}; both built for "
        f"{peer_build.kernels(programs[peer_build.SERVER])}"
    )
    trials, finals = _halves(setup.prompts, categories, each)
    plan = Plan(
        rivals=_chosen(peers(setup, programs, repacks=not no_repack), names),
        ours=[Ours(policy, setup) for policy in dict.fromkeys((REFERENCE, *policies))],
        trials=trials,
        finals=finals,
        rounds=rounds,
        trial_tokens=trial_tokens,
    )
    with setup.runs("peers", where) as runs:
        cells, best = measure(plan, setup, runs)
        texts = check_texts(cells, best, plan, setup, runs)
    _report(plan, cells, best, texts, {**where, "load average": runs.load})


def _halves(
    path: Path, categories: Sequence[str], each: int
) -> tuple[dict[str, list[Prompt]], dict[str, list[Prompt]]]:
    """Prompts for the search, and the others, by group; of an odd number more of the others."""
    trials: dict[str, list[Prompt]] = {}
    finals: dict[str, list[Prompt]] = {}
    for category in dict.fromkeys(categories):
        prompts = choose(path, (category,), each)
        if len(prompts) < 2:
            raise click.UsageError(
                f"{path} holds one prompt of the category {category}, two are needed"
            )
        middle, group = len(prompts) // 2, prompts[0].group
        trials.setdefault(group, []).extend(prompts[:middle])
        finals.setdefault(group, []).extend(prompts[middle:])
    return trials, finals


def _chosen(rivals: list[Peer], names: Sequence[str]) -> list[Peer]:
    """Those whose names contain one of `names`, and plain llama.cpp; all if there are none."""
    for name in names:
        if not any(name in peer.name for peer in rivals):
            known = "; ".join(peer.name for peer in rivals)
            raise click.UsageError(f"no peer is called {name}; there are: {known}")
    return [
        peer
        for peer in rivals
        if not names or peer.name == PLAIN or any(name in peer.name for name in names)
    ]


def _report(
    plan: Plan,
    cells: Cells,
    best: Best,
    texts: dict[tuple[str, str], list[float | None]],
    where: dict[str, Any],
) -> None:
    rows, document = [], {}
    for group in plan.groups:
        document[group] = {
            peer.name: {
                "settings": best[group, peer.name],
                **_summary(cells[group, peer.name], cells[group, PLAIN]),
                "gaps": texts[group, peer.name],
            }
            for peer in plan.everybody
        }
        for name, cell in document[group].items():
            rows.append(
                (
                    group,
                    name,
                    describe(cell["settings"]),
                    f"{cell['tokens_per_second']:.2f}",
                    f"{cell['against_plain']:.2f}x",
                    f"{cell['accepted']} / {cell['drafted']}",
                    _verdict(cell["gaps"]),
                )
            )
    header = (
        "group",
        "who",
        "best settings",
        "tok/s",
        f"against {PLAIN}",
        "accepted / drafted",
        "text",
    )
    report.show("T = 0; medians over the second half of the prompts", header, rows)
    contest = _contest(plan, document)
    shown = [
        (row["group"], row["policy"], row["best_peer"], f"**{row['ratio']:.2f}x**")
        for row in contest
    ]
    for ours in plan.ours:
        mean = statistics.mean(r["ratio"] for r in contest if r["policy"] == ours.name)
        shown.append(("mean", ours.name, "", f"**{mean:.2f}x**"))
    report.show(
        "Against whichever peer turned out fastest in the group",
        ("group", "who", "fastest peer", "speed against it"),
        shown,
    )
    prompts = {
        part: [p.id for g in plan.groups for p in half[g]]
        for part, half in (("search", plan.trials), ("measured", plan.finals))
    }
    report.finish(where, {"prompts": prompts, "groups": document, "contest": contest})


def _summary(found: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    return {
        "tokens_per_second": statistics.median(speed([run]) for run in found),
        "against_plain": statistics.median(
            speed([mine]) / speed([other]) for mine, other in zip(found, plain, strict=True)
        ),
        "timed_tokens": [run["timed_tokens"] for run in found],
        "drafted": sum(run["drafted"] for run in found),
        "accepted": sum(run["accepted"] for run in found),
        "load": [run["load"] for run in found],
    }


def _contest(plan: Plan, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Each of our policies against the fastest peer of every group."""
    rows = []
    for group in plan.groups:
        cells = document[group]
        fastest = max(
            (peer.name for peer in plan.rivals), key=lambda name: cells[name]["against_plain"]
        )
        rows += [
            {
                "group": group,
                "policy": ours.name,
                "best_peer": fastest,
                "ratio": cells[ours.name]["against_plain"] / cells[fastest]["against_plain"],
            }
            for ours in plan.ours
        ]
    return rows


def _verdict(found: Sequence[float | None]) -> str:
    """Whether the texts are plain decoding's."""
    differing = [gap for gap in found if gap is not None]
    if not differing:
        return "same"
    words = f"{len(differing)} of {len(found)} part, gap up to {max(differing):.3f}"
    return words if max(differing) <= MAX_GAP else f"**{words}**"
