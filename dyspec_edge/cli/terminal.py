"""What is written to the terminal: the reply on stdout, everything else on stderr.

Colour, dim text and bars are for terminals without NO_COLOR (bars: for any terminal); a pipe gets
the bare text, byte for byte.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from dyspec_edge.text.thoughts import CLOSING_MARKER, OPENING_MARKER, Kind

PIPE_WIDTH = 200
"""Columns of a table that goes to a pipe or a file."""

# A model's text must not be able to move the cursor or retitle the window.
_VISIBLE: dict[int, int | None] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    ord("\r"): None,
    0x7F: 0x2421,
}


def is_terminal(stream: object) -> bool:
    """Whether a stream is a terminal.  One that is closed or missing is not."""
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False


def open_missing_streams() -> None:
    """Put the null device where a service or `>&-` left stdin, stdout or stderr closed.

    Else the next file that is opened would get the number of the stream, and what llama.cpp writes
    to stderr would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            null = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, null)


def discard_output() -> None:
    """Send what is still to be written to stdout nowhere: it cannot be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


class Terminal:
    """The two output streams of a command."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A character that the locale cannot write becomes "?", not a traceback.
                stream.reconfigure(errors="replace", encoding=_encoding(stream))
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    def notice(self, text: str) -> None:
        """One dim line on stderr."""
        self._flush_out()
        self.err.print(text.translate(_VISIBLE), style="dim", soft_wrap=True)

    def error(self, text: str) -> None:
        """One line that begins with "error: " on stderr."""
        self._flush_out()
        line = "error: " + " ".join(text.splitlines())
        self.err.print(line.translate(_VISIBLE), style="red", soft_wrap=True)

    def text(self, text: str) -> None:
        """A block of plain text on stdout, followed by a newline."""
        self.out.print(text, soft_wrap=True)

    def json(self, document: object) -> None:
        """One JSON document on one line of stdout."""
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        text = json.dumps(document, ensure_ascii=encoding != "utf8", default=str)
        self.out.file.write(text + "\n")

    def _flush_out(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()


def _encoding(stream: object) -> str | None:
    """UTF-8 for a pipe or file on Windows, as stdin is read; elsewhere what it has."""
    piped = sys.platform == "win32" and not is_terminal(stream)
    return "utf-8" if piped and "PYTHONIOENCODING" not in os.environ else None


class _Console(Console):
    """Shows escape sequences instead of obeying them, in tables too: files have names and keys."""

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(
            text.translate(_VISIBLE) if self.is_terminal else text, **settings
        )


def _console(*, stderr: bool) -> Console:
    seen = is_terminal(sys.stderr if stderr else sys.stdout)
    plain = not seen or bool(os.environ.get("NO_COLOR"))
    return _Console(
        stderr=stderr,
        force_terminal=seen,
        width=None if seen else PIPE_WIDTH,
        color_system=None if plain else "auto",
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False if plain else None,
    )


class ReplyWriter:
    """Writes a reply piece by piece; thoughts dimmed, or between their markers without colour."""

    def __init__(self, terminal: Terminal) -> None:
        self._console = terminal.out
        self._dims = terminal.out.color_system is not None
        self._seen = terminal.out.is_terminal
        self._kind: Kind | None = None
        self._at_line_start = True

    def write(self, kind: Kind, text: str) -> None:
        """Write `text` at once."""
        if not text:
            return
        if kind != self._kind:
            self._turn_to(kind)
        self._put(text, dim=kind == "thought")

    def end(self) -> None:
        """Close an open thought, and end the line."""
        if self._kind == "thought":
            self._turn_to(None)
        if not self._at_line_start:
            self._put("\n", dim=False)

    def _turn_to(self, kind: Kind | None) -> None:
        if self._kind == "thought":
            self._put("\n\n" if self._dims else f"\n{CLOSING_MARKER}\n\n", dim=False)
        if kind == "thought" and not self._dims:
            self._put(f"{OPENING_MARKER}\n", dim=False)
        self._kind = kind

    def _put(self, text: str, *, dim: bool) -> None:
        self._at_line_start = text.endswith("\n")
        if not self._seen:
            self._console.file.write(text)
        elif shown := text.translate(_VISIBLE):
            style = "dim" if dim and self._dims else None
            self._console.out(shown, style=style, end="")
        self._console.file.flush()


class Bar:
    """One progress bar on stderr, if that is a terminal.

    `update` with a new label starts a new bar; `close` removes it.

    Args:
        delay: seconds of work before the bar appears.
        in_bytes: the work is a download.
        memory: seconds over which the speed is averaged for the time left.
    """

    def __init__(
        self,
        terminal: Terminal,
        *,
        delay: float = 1.0,
        in_bytes: bool = False,
        memory: float = 30.0,
    ) -> None:
        self._console = terminal.err
        self._memory = memory
        self._delay = delay
        self._in_bytes = in_bytes
        self._label = ""
        self._done = self._since = 0.0
        self._total: float | None = None
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def update(self, label: str, done: float, total: float | None) -> None:
        """Report what is done; a total of None is unknown."""
        if label != self._label:
            self.close()
            self._label, self._since = label, time.monotonic()
        self._done, self._total = done, total
        self.tick()

    def tick(self) -> None:
        """Redraw; called now and then, so that a bar can appear while nothing is reported."""
        if not self._label or not self._console.is_terminal:
            return
        if self._progress is None:
            finished = self._total is not None and self._done >= self._total
            if finished or time.monotonic() - self._since < self._delay:
                return
            columns = _columns(self._in_bytes)
            self._progress = Progress(
                *columns,
                console=self._console,
                transient=True,
                speed_estimate_period=self._memory,
            )
            self._task = self._progress.add_task(self._label.translate(_VISIBLE), total=self._total)
            self._progress.start()
        self._progress.update(self._task, completed=self._done, total=self._total)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._label = None, ""


def _columns(in_bytes: bool) -> tuple[ProgressColumn, ...]:
    name = TextColumn("{task.description}", markup=False)
    if in_bytes:
        return name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    return name, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
