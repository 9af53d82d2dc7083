"""`python -m benchmarks COMMAND`: what is measured, one small program each."""

from __future__ import annotations

import sys

import click

from benchmarks.attention import attention
from benchmarks.cell_order import cell_order
from benchmarks.device import device
from benchmarks.memory import memory
from benchmarks.near_ties import near_ties
from benchmarks.noise import noise
from benchmarks.overhead import overhead
from benchmarks.padding import padding
from benchmarks.peers import peers_command
from benchmarks.plain import plain
from benchmarks.race import race
from benchmarks.rejected import rejected
from benchmarks.replay.command import main as replay
from benchmarks.replay.study import synthetic
from benchmarks.rows import rows
from benchmarks.sequences import sequences
from dyspec_edge.errors import DyspecError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Benchmarks of dyspec-edge.

    Each command writes a Markdown table to stdout, then one JSON document as the last line;
    progress goes to stderr.  With -o FILE, finished runs are kept and not repeated.
    """


rows_and_passes = (rows, attention, device, padding, sequences, cell_order, memory)
decoding = (overhead, plain, race, near_ties, noise, rejected)
for command in (*rows_and_passes, *decoding, peers_command, replay):
    main.add_command(command)
replay.add_command(synthetic)

if __name__ == "__main__":
    try:
        main(prog_name="python -m benchmarks")
    except DyspecError as error:
        sys.exit(f"error: {error}")
