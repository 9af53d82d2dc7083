"""`dyspec-edge calibrate`: what passes cost here, as a table, a plot and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from dyspec_edge.cli.plotting import require_matplotlib, save
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.load.calibration import ACCEPTANCES, Calibration, milliseconds
from dyspec_edge.load.loading import EngineConfig, load

PLOT_SUFFIXES = (".png", ".svg")


def measure(
    config: EngineConfig, on_progress: Callable[[str, float], None] | None = None
) -> Calibration:
    """Measure the models of `config` anew; the curves are kept for later loads.

    Raises:
        DyspecError: a target that cannot be speculated on; else as `Engine.load`.
    """
    config = replace(config, policy="priced", verify="auto")
    loaded = load(config, on_progress, measure_afresh=True)
    try:
        if loaded.calibration is None:
            raise DyspecError(f"nothing to measure: {loaded.notices[-1]}")
        return loaded.calibration
    finally:
        loaded.close()


def table(calibration: Calibration) -> Table:
    """Passes and predictions."""
    target, draft = calibration.target, calibration.draft
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


def predictions(calibration: Calibration) -> Table:
    """The best speedup at a few acceptance rates, by a drafted or a copied chain."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("predicted best speedup at acceptance", no_wrap=True)
    for acceptance in ACCEPTANCES:
        grid.add_column(f"{acceptance:g}", justify="right", no_wrap=True)
    kinds = [("tokens copied from the text", calibration.copy_speedup)]
    if calibration.draft is not None:
        kinds.insert(0, ("tokens drafted by the draft model", calibration.speedup))
    for name, speedup in kinds:
        grid.add_row(name, *(f"{speedup(a):.2f}x" for a in ACCEPTANCES))
    return grid


def check_plot_path(path: Path) -> None:
    """Raise OptionError for a plot that cannot be drawn, before minutes are spent on measuring."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise OptionError(f"--plot {path}: the name must end in {' or '.join(PLOT_SUFFIXES)}")
    if not path.parent.is_dir():
        raise OptionError(f"--plot {path}: there is no directory {path.parent}")
    require_matplotlib("--plot")


def plot(calibration: Calibration, path: Path) -> None:
    """Draw the curves.

    Raises:
        DyspecError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, curve in (("target", calibration.target), ("draft", calibration.draft)):
        if curve is not None:
            axes.plot(curve.sizes, [1e3 * s for s in curve.seconds], marker="o", label=name)
    sizes = calibration.target.sizes
    axes.axhline(1e3 * calibration.target.at(1), linestyle=":", color="grey", label="one token")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_xlabel("rows of a pass")
    axes.set_ylabel("milliseconds")
    axes.set_title(calibration.verdict, fontsize=8)
    axes.legend()
    save(figure, path)
