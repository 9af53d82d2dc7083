"""The line editor of an interactive chat: history, editing, paste of several lines.

A module of its own, imported when it is needed: its library takes a third of a second to import.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from dyspec_edge.files import stores
from dyspec_edge.text.utf8 import decode

PROMPT = "> "


class LineEditor:
    """A prompt with line editing, history and paste of several lines (they stay one message).

    Enter sends, Alt-Enter begins a new line.
    """

    def __init__(self, history_file: Path | None, commands: Sequence[str]) -> None:
        # A terminal that does not understand the question for its cursor position would print it.
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        keys = KeyBindings()

        @keys.add("enter")
        def _send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _clear(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation="  ",
            history=_history(history_file),
            key_bindings=keys,
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            reserve_space_for_menu=0,
        )

    def read(self) -> str:
        """What the user has typed or pasted.

        Raises:
            EOFError: Ctrl-D at an empty line.
            KeyboardInterrupt: Ctrl-C at an empty line; with text, Ctrl-C clears the line.
            DyspecError: the text is not UTF-8.
        """
        text = self._session.prompt()
        return decode(text.encode("utf-8", "surrogateescape"), "the message")


def history_file() -> Path:
    """Where the typed lines are kept."""
    return stores.cache_dir() / "chat_history"


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return _TolerantFileHistory(str(path))


class _TolerantFileHistory(FileHistory):
    """A full disk must not end the chat."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError, UnicodeEncodeError):
            super().store_string(string)

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []
