"""`dyspec-edge calibrate` and `check`: what passes cost here, and whether they agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from dyspec_edge.cli import background, model_choice, options
from dyspec_edge.cli.syntax import Command
from dyspec_edge.cli.terminal import Bar, Terminal
from dyspec_edge.errors import DyspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dyspec_edge.decode.prices import Prices
    from dyspec_edge.engine import EngineConfig
    from dyspec_edge.load.check import CheckReport


@click.command(cls=Command, short_help="Measure what passes cost, and what will pay.")
@options.model_options
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves: FILE.png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
def calibrate(plot: Path | None, as_json: bool, **typed: Any) -> None:
    """Measure target and draft passes by their rows, and say whether speculation will pay.

    The policy `priced` measures the same at its first load and keeps it; this measures anew.
    """
    from dyspec_edge.cli import calibration_view

    terminal = Terminal()
    if plot is not None:
        calibration_view.check_plot_path(plot)
    config = model_choice.engine_config(typed, terminal)
    with Bar(terminal) as bar:
        prices = background.run(lambda tell: _measure(config, tell), bar)
    if plot is not None:
        calibration_view.plot(prices, plot)
    if as_json:
        terminal.json(prices.as_dict())
        return
    passes = calibration_view.table(prices)
    predictions = calibration_view.predictions(prices)
    for part in (passes, "", predictions, ""):
        terminal.out.print(part)
    terminal.text(prices.verdict)


def _measure(config: EngineConfig, on_progress: Callable[[str, float], None]) -> Prices:
    """Measure the models of `config` anew; the curves are kept for later loads."""
    from dyspec_edge.load.loading import load

    config = replace(config, policy="priced", verify="auto")
    loaded = load(config, on_progress, measure_afresh=True)
    try:
        if loaded.prices is None:
            raise DyspecError(f"nothing to measure: {loaded.notices[-1]}")
        return loaded.prices
    finally:
        loaded.close()


@click.command(cls=Command, short_help="Compare n-token and one-token passes of a model.")
@options.model_options
def check(**typed: Any) -> int:
    """Compare the logits of n-token and one-token passes of the loaded files.

    Trees rely on their agreement.  Exits with 1 if they differ by more than the bound.
    """
    from dyspec_edge.load.check import compare_passes

    terminal = Terminal()
    config = model_choice.engine_config(typed, terminal)
    with Bar(terminal) as bar:
        reports = background.run(lambda _tell: compare_passes(config), bar)
    terminal.out.print(_agreement(reports))
    return 0 if all(report.ok for report in reports) else 1


def _agreement(reports: Sequence[CheckReport]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for report in reports:
        flips = f"{report.top1_flips} times"
        if report.top1_flips:
            flips += f", largest gap {report.largest_flip_gap:.4g}"
        grid.add_row(report.role, report.path.name)
        grid.add_row("rows compared", str(report.rows))
        grid.add_row("largest difference of a logit", f"{report.max_logit_difference:.4g}")
        grid.add_row("bound", f"{report.bound:.4g}")
        grid.add_row("most probable token differs", flips)
        grid.add_row("result", "ok" if report.ok else "above the bound")
    return grid
