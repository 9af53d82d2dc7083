"""The first lines of the program `dyspec-edge`: Ctrl-C while Python still imports it."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Runs the program; an interrupt before it can catch one ends it without a trace."""
    own = signal.getsignal(signal.SIGINT)
    if own is signal.default_int_handler:  # and not ignored, as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dyspec_edge.cli import main as program

    signal.signal(signal.SIGINT, own)
    program.main()
