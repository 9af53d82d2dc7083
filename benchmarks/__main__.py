"""`python -m benchmarks COMMAND`: what is measured, one small program each."""

from __future__ import annotations

import sys

import click

from benchmarks.bursts import bursts
from benchmarks.device import device
from benchmarks.near_ties import near_ties
from benchmarks.overhead import overhead
from benchmarks.peers.command import peers
from benchmarks.plain import plain
from benchmarks.race import race
from benchmarks.replay.command import main as replay
from benchmarks.replay.learning import learning
from benchmarks.replay.study import synthetic
from benchmarks.rows import rows
from dyspec_edge.errors import DyspecError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Benchmarks of dyspec-edge.

    Each command writes a Markdown table to stdout, then one JSON document as the last line;
    progress goes to stderr.  With -o FILE, finished runs are kept and not repeated.
    """


PROGRAMS = (race, bursts, plain, overhead, rows, device, near_ties, peers, replay)
for program in PROGRAMS:
    main.add_command(program)
replay.add_command(synthetic)
replay.add_command(learning)

if __name__ == "__main__":
    try:
        main(prog_name="python -m benchmarks")
    except DyspecError as error:
        sys.exit(f"error: {error}")
