"""`dyspec-edge doctor`: what this runs on, and what would make it faster here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.table import Table

from dyspec_edge.cli.syntax import Command
from dyspec_edge.cli.terminal import Terminal
from dyspec_edge.files.transfer import format_bytes

if TYPE_CHECKING:
    from dyspec_edge.load.diagnosis import Diagnosis, Llama


@click.command(cls=Command, short_help="Say what this runs on, and what would be faster here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def doctor(as_json: bool) -> int:
    """Say what dyspec-edge runs on, and what would make it faster here.

    A bug report should carry this.  Exits with 1 if a part of it cannot be used.
    """
    from dyspec_edge.load.diagnosis import diagnose

    terminal = Terminal()
    found = diagnose()
    if as_json:
        terminal.json(found.as_dict())
        return 1 if found.errors else 0
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    for name, value in _lines(found):
        grid.add_row(name, value)
    terminal.out.print(grid)
    for line in found.errors:
        terminal.error(line)
    for line in found.advice:
        terminal.text(f"\n{line}")
    return 1 if found.errors else 0


def _lines(found: Diagnosis) -> Iterator[tuple[str, str]]:
    machine = found.machine
    yield "versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())
    yield "system", machine["system"]
    yield "processor", f"{machine['processor']} ({machine['architecture']})"
    yield "cores", f"{machine['cores']} of {machine['cores_there']}"
    memory, free = machine["memory"], machine["memory_available"]
    yield "memory", f"{format_bytes(memory)}, {format_bytes(free)} available"
    yield "graphics cards", ", ".join(found.graphics) or "none seen"
    if found.llama is not None:
        yield from _llama_lines(found.llama)
    if found.rows is not None:
        yield "native part", f"{found.library}, rows with {found.rows}"
    for folder, size in found.caches.items():
        yield "cache", f"{folder}: {format_bytes(size)}"


def _llama_lines(llama: Llama) -> Iterator[tuple[str, str]]:
    known = "" if llama.known else ", not the one that dyspec-edge was written for"
    yield "llama.cpp", f"commit {llama.commit}{known}"
    for part, flags in llama.flags.items():
        words = (name if value == "1" else f"{name}={value}" for name, value in flags.items())
        yield f"built for {part}", " ".join(words)
    for device in llama.devices:
        free, total = (format_bytes(device[f"{name}_memory"]) for name in ("free", "total"))
        yield "device", f"{device['name']}: {device['description']}, {free} of {total} free"
    if not llama.devices:
        yield "devices", "none" if llama.offloads else "none, and this build knows no GPUs"
