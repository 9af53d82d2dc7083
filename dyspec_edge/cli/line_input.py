"""Where the lines of a chat come from: the lines of a pipe, or line_editor.py on a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

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
        try:
            data = sys.stdin.buffer.readline()
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._number += 1
        return decode(data, f"line {self._number} of stdin").rstrip("\r\n")


def piped_in() -> Literal["nothing", "ours", "the caller's"]:
    """Whether text waits on stdin beside a prompt that was typed, and whose it is.

    `cat FILE | program PROMPT` gives a pipe that only this process reads.  In a script's loop,
    `while read name; do program "$name"; done < LIST`, stdin is the script's: the loop would end
    after its first round if this process read it.  The two differ in the caller's own stdin.
    """
    try:
        ours = os.fstat(0)
        if not (stat.S_ISFIFO(ours.st_mode) or stat.S_ISREG(ours.st_mode)):
            return "nothing"
        callers = Path(f"/proc/{os.getppid()}/fd/0").stat()
    except OSError:  # no /proc: a file that was read from belongs to somebody else
        return "ours" if _is_unread() else "nothing"
    return "the caller's" if os.path.samestat(ours, callers) else "ours"


def _is_unread() -> bool:
    try:
        return os.lseek(0, 0, os.SEEK_CUR) == 0
    except OSError:
        return True


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

    def keep_again(*_: object) -> None:
        # After Ctrl-Z and `fg` the shell has put its own settings back; the line editor, which has
        # settings of its own, is left alone.
        if termios.tcgetattr(sys.stdin)[3] & termios.ICANON:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, kept)

    # Killed, or left by its terminal, the program must still give the old settings back.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    signal.signal(signal.SIGCONT, keep_again)
    termios.tcsetattr(sys.stdin, termios.TCSANOW, kept)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # a terminal that is gone needs no settings
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
