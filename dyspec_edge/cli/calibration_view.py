"""What passes cost here, as tables and as a plot."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from dyspec_edge.cli.plotting import require_matplotlib, save
from dyspec_edge.decode.prices import ACCEPTANCES, Prices, milliseconds
from dyspec_edge.errors import OptionError
from dyspec_edge.files.output import require_place

PLOT_SUFFIXES = (".png", ".svg")


def table(prices: Prices) -> Table:
    """Passes and predictions."""
    target, draft = prices.target, prices.draft
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("rows", "target pass", "of one row", "draft pass"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for n in target.sizes:
        known = draft is not None and n in draft.sizes
        grid.add_row(
            str(n),
            milliseconds(target.at(n)),
            f"{target.at(n) / target.at(1):.2f}x",
            milliseconds(draft.at(n)) if draft is not None and known else "",
        )
    return grid


def predictions(prices: Prices) -> Table:
    """The best speedup at a few acceptance rates, by a drafted or a copied chain."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("predicted best speedup at acceptance", no_wrap=True)
    for acceptance in ACCEPTANCES:
        grid.add_column(f"{acceptance:g}", justify="right", no_wrap=True)
    kinds = [("tokens copied from the text", prices.copy_speedup)]
    if prices.draft is not None:
        kinds.insert(0, ("tokens drafted by the draft model", prices.speedup))
    for name, speedup in kinds:
        grid.add_row(name, *(f"{speedup(a):.2f}x" for a in ACCEPTANCES))
    return grid


def check_plot_path(path: Path) -> None:
    """Raise OptionError for a plot that cannot be drawn, before minutes are spent on measuring."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise OptionError(f"--plot {path}: the name must end in {' or '.join(PLOT_SUFFIXES)}")
    require_place("--plot", path)
    require_matplotlib("--plot")


def plot(prices: Prices, path: Path) -> None:
    """Draw the curves.

    Raises:
        DyspecError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, curve in (("target", prices.target), ("draft", prices.draft)):
        if curve is not None:
            axes.plot(curve.sizes, [1e3 * s for s in curve.seconds], marker="o", label=name)
    sizes = prices.target.sizes
    axes.axhline(1e3 * prices.target.at(1), linestyle=":", color="grey", label="one token")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_xlabel("rows of a pass")
    axes.set_ylabel("milliseconds")
    axes.set_title(prices.verdict, fontsize=8)
    axes.legend()
    save(figure, path)
