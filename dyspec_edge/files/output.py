"""Whether a result can be written where it is to go, before minutes are spent on it."""

from __future__ import annotations

import os
from pathlib import Path

from dyspec_edge.errors import OptionError


def require_place(option: str, path: Path) -> None:
    """Refuse a place where no regular file can be written.

    Raises:
        OptionError: a directory, a device, a pipe, or a directory that is missing or read-only.
    """
    try:
        if path.is_dir():
            reason = "is a directory; name a file in it"
        elif path.exists() and not path.is_file():
            reason = "is no regular file; name another"
        elif not path.parent.is_dir():
            reason = f"there is no directory {path.parent}; make it first"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "may not be written; name another place"
        else:
            return
    except OSError as error:
        reason = f"{error.strerror or error}; name another place"
    raise OptionError(f"{option} {path}: {reason}")


def require_no_model(option: str, path: Path) -> None:
    """Refuse to write anything else over a GGUF file, which may even be the one in use.

    Raises:
        OptionError: it is one, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            is_model = file.read(4) == b"GGUF"
    except FileNotFoundError:
        return
    except OSError as error:
        raise OptionError(f"{option} {path}: {error.strerror or error}") from error
    if is_model:
        raise OptionError(f"{option} {path}: is a model; name another file")
