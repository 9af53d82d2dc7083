"""The transcript of a chat: what was said, what of it is still sent to the model, what is saved.

system | turn | turn | turn | turn      a turn is a user message and the reply to it
`- dropped -'`-- window -'     dropped turns are no longer sent, but still saved
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dyspec_edge.errors import DyspecError, OptionError

FORMAT = "dyspec-edge conversation"
VERSION = 1

Message = Mapping[str, str]


@dataclass(slots=True)
class Transcript:
    """Messages in order, the system text apart; the first `num_dropped` are no longer sent."""

    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    num_dropped: int = 0

    def copy(self) -> Transcript:
        """One that can be changed without touching this one."""
        return Transcript(self.system, list(self.messages), self.num_dropped)

    def add(self, role: str, content: str) -> None:
        """Appends a message."""
        self.messages.append({"role": role, "content": content})

    def window(self) -> list[Message]:
        """The messages to send, the system text first."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.messages[self.num_dropped :]]

    def later_turns(self) -> list[int]:
        """Where the window's turns after its first begin: what `num_dropped` may become."""
        later = range(self.num_dropped + 1, len(self.messages))
        return [index for index in later if self.messages[index]["role"] == "user"]

    def take_back_reply(self) -> bool:
        """Removes the last reply, so that its question can be answered again."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return False
        self.messages.pop()
        self.num_dropped = min(self.num_dropped, len(self.messages))
        return True

    def save(self, path: Path, settings: Mapping[str, object]) -> None:
        """Writes everything and the settings as JSON; an older file stays if that fails.

        Raises:
            OptionError: the file exists and is something else than a saved conversation.
            DyspecError: it cannot be written.
        """
        if path.exists():
            _refuse_foreign(path)
        head = [{"role": "system", "content": self.system}] if self.system else []
        document = {
            "format": FORMAT,
            "version": VERSION,
            "messages": [*head, *self.messages],
            "settings": dict(settings),
        }
        text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        try:
            _write_atomically(path, text.encode())
        except OSError as error:
            raise DyspecError(f"cannot save to '{path}': {_reason(error)}") from error

    def rescue(self, settings: Mapping[str, object]) -> Path:
        """Saves under a name of its own where it can, here or among temporary files; the path.

        Raises:
            DyspecError: neither can be written to.
        """
        name = time.strftime("dyspec-edge-chat-%Y%m%d-%H%M%S.json")
        try:
            self.save(path := Path.cwd() / name, settings)
        except (DyspecError, OSError):
            self.save(path := Path(tempfile.gettempdir()) / name, settings)
        return path

    @classmethod
    def load(cls, path: Path) -> tuple[Transcript, Mapping[str, Any]]:
        """The transcript and the settings of a saved file.

        Raises:
            OptionError: the file is missing, unreadable or not a saved conversation.
        """
        document = _read(path)
        messages = document.get("messages")
        if not isinstance(messages, list):
            raise OptionError(f"'{path}' is damaged: it has no list of messages")
        transcript = cls()
        for index, message in enumerate(messages):
            role, content = _checked(path, index, message)
            if role == "system":
                transcript.system = content
            else:
                transcript.add(role, content)
        settings = document.get("settings")
        return transcript, settings if isinstance(settings, dict) else {}


def _checked(path: Path, index: int, message: object) -> tuple[str, str]:
    where = f"'{path}' is damaged: message {index + 1}"
    if not isinstance(message, dict):
        raise OptionError(f"{where} is not an object")
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant") or (role == "system" and index > 0):
        raise OptionError(f"{where} has the role {role!r}; use system (first), user or assistant")
    if not isinstance(content, str):
        raise OptionError(f"{where} has no text")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{where} holds half of a surrogate pair") from None
    return role, content


def _read(path: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OptionError(f"'{path}' is not a file; name a saved conversation")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"cannot read '{path}': {_reason(error)}") from error
    except (ValueError, RecursionError):
        raise OptionError(f"'{path}' is not a saved conversation: it is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise OptionError(f"'{path}' is not a saved conversation; /save writes such files")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise OptionError(f"'{path}' has format version {version!r}; this program reads {VERSION}")
    return document


def _refuse_foreign(path: Path) -> None:
    try:
        _read(path)
    except OptionError as error:
        raise OptionError(f"will not overwrite: {error}; choose another name") from None


def _write_atomically(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
