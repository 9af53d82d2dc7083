"""Finished runs in a JSONL file: each is kept as soon as it is finished, and none is done twice.

    {"run": what was asked for, "result": what came of it}

A line that an interruption cut short is dropped: it never was a finished run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dyspec_edge.errors import DyspecError

Values = Mapping[str, Any]


class Journal:
    """The runs of one file.

    Args:
        path: made if it is not there; None keeps nothing on disk.

    Raises:
        DyspecError: a file that cannot be read or written, or one that is no journal.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        try:
            with path.open("ab"):
                pass
            lines, num_whole = _read(path)
            os.truncate(path, num_whole)
        except OSError as error:
            raise _unusable(path, error) from error
        for line in lines:
            self._results[_identity(line["run"])] = line["result"]

    def get(self, run: Values) -> dict[str, Any] | None:
        """What came of a run; None if it has not been done."""
        return self._results.get(_identity(run))

    def add(self, run: Values, result: Values) -> dict[str, Any]:
        """Keep a finished run, on the disk when this returns, and give back its result.

        Raises:
            DyspecError: the file cannot be written.
        """
        line = json.dumps({"run": dict(run), "result": dict(result)}, allow_nan=False)
        kept: dict[str, Any] = json.loads(line)["result"]
        if self._path is not None:
            try:
                with self._path.open("ab") as file:
                    file.write(line.encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise _unusable(self._path, error) from error
        self._results[_identity(run)] = kept
        return kept


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All finished runs of a file, each with "run" and "result"; the file stays as it is.

    Raises:
        DyspecError: a file that cannot be read, or one that is no journal.
    """
    try:
        return _read(path)[0]
    except OSError as error:
        raise _unusable(path, error) from error


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Lines, and the bytes that they take up."""
    whole, _, _rest = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = json.loads(text)
            lines.append({"run": dict(line["run"]), "result": dict(line["result"])})
        except (ValueError, KeyError, TypeError) as error:
            raise DyspecError(
                f"{path}, line {number}: not a finished run of a benchmark ({error!r}); name "
                "another file"
            ) from error
    return lines, len(whole) + 1 if whole else 0


def _identity(run: Values) -> str:
    return json.dumps(run, sort_keys=True)


def _unusable(path: Path, error: OSError) -> DyspecError:
    return DyspecError(f"cannot use '{path}': {(error.strerror or str(error)).lower()}")
