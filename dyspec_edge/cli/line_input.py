"""Where the lines of a chat come from: the lines of a pipe, or line_editor.py on a terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Protocol

from dyspec_edge.text.utf8 import decode


class LineSource(Protocol):
    """Gives the user's messages and commands one after the other."""

    def read(self) -> str:
        """The next one.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: Ctrl-C at an empty line.
        """


class PipedLines:
    """Each line of a pipe or file."""

    def __init__(self) -> None:
        self._number = 0

    def read(self) -> str:
        """The next line, without its end.

        Raises:
            EOFError: there are no more.
            DyspecError: the line is not UTF-8.
        """
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        self._number += 1
        return decode(data, f"line {self._number} of stdin").rstrip("\r\n")


@contextlib.contextmanager
def keys_kept() -> Iterator[None]:
    """Keys typed during an answer (Ctrl-D too) are not shown, and wait for the next prompt.

    In a terminal's ordinary mode they would be mixed into the answer, and a Ctrl-D would be lost
    when the line editor takes over.  Ctrl-C works as usual.
    """
    try:
        import termios
    except ImportError:  # not a Unix terminal
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    kept = list(before)
    kept[0] &= ~termios.ICRNL  # or Enter after Escape would arrive as another key
    kept[3] &= ~(termios.ICANON | termios.ECHO)
    # When the program is killed, too, the terminal must get its old settings back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    termios.tcsetattr(sys.stdin, termios.TCSANOW, kept)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
