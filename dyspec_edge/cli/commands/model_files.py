"""`dyspec-edge inspect`, `models` and `pull`: what model files are, and where to get them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from dyspec_edge.cli import model_choice, options
from dyspec_edge.cli.syntax import Command
from dyspec_edge.cli.terminal import Terminal
from dyspec_edge.files import catalog, transfer


@click.command(cls=Command, short_help="Say what GGUF files are and whether they can be a pair.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def inspect(files: tuple[Path, ...], as_json: bool) -> None:
    """Say what GGUF files are, and whether two of them can be a pair (target first)."""
    from dyspec_edge.files import description

    terminal = Terminal()
    if as_json:
        terminal.json(description.as_dict(files))
    else:
        terminal.text(description.describe(files))


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def models(as_json: bool) -> None:
    """List the pairs of the catalog."""
    pairs = catalog.load().values()
    if as_json:
        Terminal().json({"pairs": [{**asdict(p), "here": model_choice.is_here(p)} for p in pairs]})
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "size", "here", "checked", "licence", "note"):
        grid.add_column(heading, no_wrap=heading != "note")
    for pair in pairs:
        size = "" if pair.size is None else transfer.format_bytes(pair.size)
        here = "yes" if model_choice.is_here(pair) else ""
        checked = "yes" if pair.checked else ""
        grid.add_row(pair.name, size, here, checked, pair.licence, pair.note)
    Terminal().out.print(grid)


@click.command(cls=Command, short_help="Fetch a pair of the catalog.")
@click.argument("name")
@options.hub_options
def pull(name: str) -> None:
    """Fetch a pair of the catalog; an interrupted download goes on where it stopped."""
    terminal = Terminal()
    files = model_choice.fetch_pair(model_choice.find_pair(name), terminal)
    for file in files:
        if file is not None:
            terminal.text(str(file))
