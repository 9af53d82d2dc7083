"""A summary as pictures, one file each; with several sections their number comes first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dyspec_edge.bench.summary import PARTS
from dyspec_edge.cli import plotting
from dyspec_edge.errors import DyspecError

Values = Mapping[str, Any]

FEWEST = 20
"""Drafted tokens below which an acceptance rate is not plotted."""


def plot(sections: Sequence[Values], directory: Path, suffix: str) -> list[Path]:
    """Write all plots, and return their paths.

    Args:
        directory: made if it is not there.
        suffix: of the files, "png" or "svg".

    Raises:
        DyspecError: a file cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(f"cannot write plots to '{directory}': {reason}") from error
    paths = []
    for number, section in enumerate(sections, start=1):
        prefix = f"{number}-" if len(sections) > 1 else ""
        colours = [colormaps["tab20"](i % 20) for i in range(len(section["lanes"]))]
        lanes = [{**lane, "colour": c} for lane, c in zip(section["lanes"], colours, strict=True)]
        for name, (title, plot_part) in PLOTS.items():
            figure = Figure(figsize=(10, 5), layout="constrained")
            axes = figure.subplots()
            plot_part(axes, lanes)
            axes.set_title(f"{title}\n{_settings(section)}", fontsize=9, loc="left")
            if axes.get_legend_handles_labels()[0]:
                figure.legend(loc="outside right upper", fontsize=8)
            paths.append(directory / f"{prefix}{name}.{suffix}")
            plotting.save(figure, paths[-1])
    return paths


def _settings(section: Values) -> str:
    files = " + ".join(section["circumstances"]["models"][0])
    temperature = section["conditions"]["sampling"]["temperature"]
    return f"{files}, T = {temperature:g}, {section['conditions']['tokens']} tokens"


def _block_efficiency(axes: Axes, lanes: Sequence[Values]) -> None:
    _bars(axes, [lane["block_efficiency"]["categories"] for lane in lanes], lanes)
    axes.set_ylabel("tokens per target pass")


def _speedup(axes: Axes, lanes: Sequence[Values]) -> None:
    compared = [lane for lane in lanes if lane["speedup"] is not None]
    categories = [lane["speedup"]["categories"].items() for lane in compared]
    _bars(axes, [{name: mean["value"] for name, mean in found} for found in categories], compared)
    axes.axhline(1.0, linestyle=":", color="grey")
    axes.set_ylabel("times plain decoding")


def _bars(axes: Axes, values: Sequence[Mapping[str, float]], lanes: Sequence[Values]) -> None:
    """A cluster of bars for every category, a bar in it for every lane."""
    categories = list(dict.fromkeys(name for found in values for name in found))
    width = 0.8 / max(1, len(values))
    for i, (found, lane) in enumerate(zip(values, lanes, strict=True)):
        shift = (i - (len(values) - 1) / 2) * width
        places = [k + shift for k, name in enumerate(categories) if name in found]
        heights = [found[name] for name in categories if name in found]
        axes.bar(places, heights, width, label=lane["name"], color=lane["colour"])
    axes.set_xticks(range(len(categories)), categories, rotation=30, ha="right")


def _tree_size(axes: Axes, lanes: Sequence[Values]) -> None:
    for lane in lanes:
        if lane["speedup"] is None:
            continue
        mean = lane["speedup"]["mean_of_groups"]
        size = lane["drafted_per_step"]
        spread = None
        if mean["low"] is not None:
            spread = [[mean["value"] - mean["low"]], [mean["high"] - mean["value"]]]
        axes.errorbar([size], [mean["value"]], yerr=spread, marker="o", linestyle="", capsize=3,
                      color=lane["colour"])  # fmt: skip
        axes.annotate(lane["name"], (size, mean["value"]), fontsize=8, xytext=(4, 4),
                      textcoords="offset points")  # fmt: skip
    axes.axhline(1.0, linestyle=":", color="grey")
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlabel("drafted tokens per target pass")
    axes.set_ylabel("times plain decoding")


def _time_split(axes: Axes, lanes: Sequence[Values]) -> None:
    names = [lane["name"] for lane in lanes]
    left = [0.0] * len(lanes)
    for part in PARTS:
        widths = [1e3 * lane["seconds_per_token"][part] for lane in lanes]
        axes.barh(names, widths, left=left, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per token")


def _accept_length(axes: Axes, lanes: Sequence[Values]) -> None:
    for lane in lanes:
        counts = lane["accept_length_histogram"]
        if sum(counts):
            shares = [count / sum(counts) for count in counts]
            places = range(len(counts))
            axes.plot(places, shares, marker=".", label=lane["name"], color=lane["colour"])
    axes.set_xlabel("drafted tokens accepted in a step")
    axes.set_ylabel("share of steps")


def _confidence(axes: Axes, lanes: Sequence[Values]) -> None:
    for lane in lanes:
        counts = zip(lane["confidence"]["drafted"], lane["confidence"]["accepted"], strict=True)
        points = [
            ((i + 0.5) / len(lane["confidence"]["drafted"]), accepted / drafted)
            for i, (drafted, accepted) in enumerate(counts)
            if drafted >= FEWEST
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker="o", label=lane["name"], color=lane["colour"])
    axes.plot([0, 1], [0, 1], linestyle=":", color="grey")
    axes.set_xlabel("the draft's probability of a token")
    axes.set_ylabel("share accepted")


PLOTS: dict[str, tuple[str, Callable[[Axes, Sequence[Values]], None]]] = {
    "block-efficiency": ("Block efficiency by category", _block_efficiency),
    "speedup": ("Speed of generation by category", _speedup),
    "tree-size": ("Speed of generation by tree size", _tree_size),
    "time-split": ("Where the time goes", _time_split),
    "accept-length": ("Accept length", _accept_length),
    "confidence": ("Acceptance by the draft's probability", _confidence),
}
