"""A summary as Markdown: tables with the conditions that they hold under."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dyspec_edge.bench.summary import PARTS

Values = Mapping[str, Any]


def markdown(sections: Sequence[Values]) -> str:
    """All sections of `summary.summarise`."""
    return "\n\n".join(_section(section) for section in sections)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def where(conditions: Values) -> str:
    """Machine, versions, hashes, commit and command as a list."""
    lines = []
    for name, value in conditions.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{file} `{digest[:12]}`" for file, digest in value.items())
        else:
            shown = f"`{value}`" if name == "command" else str(value)
        lines.append(f"- {name}: {shown}")
    return "\n".join(lines)


def acceptance(fits: Sequence[Values]) -> str:
    """What `bench fit-sequoia` measured: a row for each verifier and temperature."""
    ranks = len(fits[0]["rates"])
    header = ("verify", "T", "steps", *(f"child {rank}" for rank in range(1, ranks + 1)))
    rows = [
        (
            fit["verify"],
            f"{fit['temperature']:g}",
            str(fit["num_steps"]),
            *(f"{rate:.3f}" for rate in fit["rates"]),
        )
        for fit in fits
    ]
    return table(header, rows)


def _section(section: Values) -> str:
    settings, lanes = section["conditions"], section["lanes"]
    groups = list(dict.fromkeys(g for lane in lanes for g in lane["block_efficiency"]["groups"]))
    rounds, prompts = section["rounds"], len(section["prompts"])
    heading = (
        f"## T = {settings['sampling']['temperature']:g}, {settings['tokens']} tokens, "
        f"{prompts} prompt{'s' * (prompts != 1)}, {rounds} round{'s' * (rounds != 1)}"
    )
    parts = [heading]
    if any(lane["speedup"] for lane in lanes):
        parts += [_speedups("Speed of generation over `none`", "speedup", lanes, groups)]
        parts += [_speedups("Speed of the whole request over `none`", "request_speedup", lanes, ())]
    parts += [_efficiencies(lanes, groups), _costs(lanes)]
    if section["priced_over_best_chain"] is not None:
        parts.append(_over_best_chain(section["priced_over_best_chain"]))
    parts.append(_where(section))
    return "\n\n".join(parts)


def _speedups(title: str, field: str, lanes: Sequence[Values], groups: Sequence[str]) -> str:
    rows = []
    for lane in lanes:
        if lane["speedup"] is None or lane["policy"] == "none":
            continue
        speedup = lane[field]
        found = [speedup["groups"].get(group) for group in groups]
        means = [speedup["mean_of_groups"], speedup["mean_of_pairs"]]
        pairs = str(speedup["mean_of_pairs"]["pairs"])
        rows.append((f"`{lane['name']}`", *map(_ratio, [*found, *means]), pairs))
    title = f"**{title}** (geometric means of pairs; 95 % by bootstrap)"
    return f"{title}\n\n" + table(
        ("policy", *groups, "mean of groups", "mean of pairs", "pairs"), rows
    )


def _efficiencies(lanes: Sequence[Values], groups: Sequence[str]) -> str:
    rows = []
    for lane in lanes:
        found = lane["block_efficiency"]
        mean = found["mean_of_categories"]
        rows.append(
            (
                f"`{lane['name']}`",
                *(f"{found['groups'][g]:.2f}" if g in found["groups"] else "" for g in groups),
                f"**{mean:.2f}**",
                f"{lane['accept_length']['mean_of_categories']:.2f}",
            )
        )
    header = ("policy", *groups, "mean of categories", "accept length")
    return "**Block efficiency** (tokens per target pass)\n\n" + table(header, rows)


def _costs(lanes: Sequence[Values]) -> str:
    rows = []
    for lane in lanes:
        same = lane["same_text_as_none"]
        total = sum(lane["seconds_per_token"].values())
        rows.append(
            (
                f"`{lane['name']}`",
                str(lane["runs"]),
                f"{lane['tokens_per_second']:.1f}",
                f"{lane['drafted_per_step']:.1f}",
                f"{lane['draft_passes_per_step']:.1f}",
                *(f"{lane['seconds_per_token'][p] / total:.0%}" if total else "" for p in PARTS),
                f"{same['equal']} of {same['of']}" if same else "",
            )
        )
    header = ("policy", "runs", "median tok/s", "drafted / step", "draft passes / step", *PARTS,
              "text of `none`")  # fmt: skip
    return "**Steps** (shares of their time)\n\n" + table(header, rows)


def _over_best_chain(best: Values) -> str:
    rows = [
        (group, f"`{best['chains'][group]['name']}`", f"{best['chains'][group]['speedup']:.2f}x",
         _ratio(mean))
        for group, mean in best["groups"].items()
    ]  # fmt: skip
    rows.append(("mean of groups", "", "", _ratio(best["mean_of_groups"])))
    header = ("group", "best chain, chosen afterwards", "over `none`", "`priced` over it")
    return "**`priced` over the best chain**\n\n" + table(header, rows)


def _where(section: Values) -> str:
    lines = [where({name: v}) for name, found in section["circumstances"].items() for v in found]
    load = section["load"]
    lines.append(
        f"- load average: median {load['median']:.1f}, {load['low']:.1f} to {load['high']:.1f}"
    )
    lines.append(f"- from {section['from']} to {section['to']}")
    memory = "forgotten after every run" if section["conditions"]["fresh"] else "kept across runs"
    lines.append(f"- what a policy learns is {memory}")
    return "\n".join(lines)


def _ratio(mean: Values | None) -> str:
    if mean is None:
        return ""
    interval = "" if mean["low"] is None else f" [{mean['low']:.2f}, {mean['high']:.2f}]"
    return f"{mean['value']:.2f}x{interval}"
