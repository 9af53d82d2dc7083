"""A summary as Markdown: tables with the conditions that they hold under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dyspec_edge.bench.summary import PARTS

Values = Mapping[str, Any]


def markdown(sections: Sequence[Values]) -> str:
    """All sections of `summary.summarise`."""
    return "\n\n".join(_section(section) for section in sections)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table.

    Args:
        rows: at least one, each by the headers of the columns.
    """
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)]
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
    return table(
        [
            {
                "verify": fit["verify"],
                "T": f"{fit['temperature']:g}",
                "steps": str(fit["num_steps"]),
                **{f"child {n}": f"{rate:.3f}" for n, rate in enumerate(fit["rates"], start=1)},
            }
            for fit in fits
        ]
    )


def _section(section: Values) -> str:
    settings, lanes = section["conditions"], section["lanes"]
    groups = list(dict.fromkeys(g for lane in lanes for g in lane["block_efficiency"]["groups"]))
    rounds, prompts = section["rounds"], len(section["prompts"])
    heading = (
        f"## T = {settings['sampling']['temperature']:g}, {settings['tokens']} tokens, "
        f"{prompts} prompt{'s' * (prompts != 1)}, {rounds} round{'s' * (rounds != 1)}"
    )
    parts = [heading]
    compared = [lane for lane in lanes if lane["speedup"] and lane["policy"] != "none"]
    if compared:
        whole = "Speed of the whole request over `none`"
        parts += [_speedups("Speed of generation over `none`", "speedup", compared, groups)]
        parts += [_speedups(whole, "request_speedup", compared, ())]
    parts += [_efficiencies(lanes, groups), _costs(lanes)]
    if section["priced_over_best_chain"] is not None:
        parts.append(_over_best_chain(section["priced_over_best_chain"]))
    parts.append(_where(section))
    return "\n\n".join(parts)


def _speedups(title: str, field: str, lanes: Sequence[Values], groups: Sequence[str]) -> str:
    rows = [
        {
            "policy": f"`{lane['name']}`",
            **{group: _ratio(lane[field]["groups"].get(group)) for group in groups},
            "mean of groups": _ratio(lane[field]["mean_of_groups"]),
            "mean of pairs": _ratio(lane[field]["mean_of_pairs"]),
            "pairs": str(lane[field]["mean_of_pairs"]["pairs"]),
        }
        for lane in lanes
    ]
    return f"**{title}** (geometric means of pairs; 95 % by bootstrap)\n\n{table(rows)}"


def _efficiencies(lanes: Sequence[Values], groups: Sequence[str]) -> str:
    rows = []
    for lane in lanes:
        found = lane["block_efficiency"]
        of = found["groups"]
        rows.append(
            {
                "policy": f"`{lane['name']}`",
                **{group: f"{of[group]:.2f}" if group in of else "" for group in groups},
                "mean of categories": f"**{found['mean_of_categories']:.2f}**",
                "accept length": f"{lane['accept_length']['mean_of_categories']:.2f}",
            }
        )
    return f"**Block efficiency** (tokens per target pass)\n\n{table(rows)}"


def _costs(lanes: Sequence[Values]) -> str:
    rows = []
    for lane in lanes:
        same, seconds = lane["same_text_as_none"], lane["seconds_per_token"]
        total = sum(seconds.values())
        rows.append(
            {
                "policy": f"`{lane['name']}`",
                "runs": str(lane["runs"]),
                "median tok/s": f"{lane['tokens_per_second']:.1f}",
                "drafted / step": f"{lane['drafted_per_step']:.1f}",
                "draft passes / step": f"{lane['draft_passes_per_step']:.1f}",
                **{part: f"{seconds[part] / total:.0%}" if total else "" for part in PARTS},
                "text of `none`": f"{same['equal']} of {same['of']}" if same else "",
            }
        )
    return f"**Steps** (shares of their time)\n\n{table(rows)}"


def _over_best_chain(best: Values) -> str:
    rows = [
        {
            "group": group,
            "best chain, chosen afterwards": f"`{best['chains'][group]['name']}`",
            "over `none`": f"{best['chains'][group]['speedup']:.2f}x",
            "`priced` over it": _ratio(mean),
        }
        for group, mean in best["groups"].items()
    ]
    mean = _ratio(best["mean_of_groups"])
    rows.append({**dict.fromkeys(rows[0], ""), "group": "mean of groups", "`priced` over it": mean})
    return f"**`priced` over the best chain**\n\n{table(rows)}"


def _where(section: Values) -> str:
    lines = [where({name: v}) for name, found in section["circumstances"].items() for v in found]
    load = section["load"]
    memory = "forgotten after every run" if section["conditions"]["fresh"] else "kept across runs"
    lines += [
        f"- load average: median {load['median']:.1f}, {load['low']:.1f} to {load['high']:.1f}",
        f"- from {section['from']} to {section['to']}",
        f"- what a policy learns is {memory}",
    ]
    return "\n".join(lines)


def _ratio(mean: Values | None) -> str:
    if mean is None:
        return ""
    interval = "" if mean["low"] is None else f" [{mean['low']:.2f}, {mean['high']:.2f}]"
    return f"{mean['value']:.2f}x{interval}"
