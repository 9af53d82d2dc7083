"""Runs that are done once: finished ones are kept in a JSONL file and skipped next time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from dyspec_edge.bench.journal import Journal

Values = Mapping[str, Any]


class Runs:
    """Carries out the runs of one command, with a progress bar on stderr.

    Args:
        path: the journal, or None to keep nothing.
        constants: what identifies every run beside its own key: command, models, options.
    """

    def __init__(self, path: Path | None, constants: Values) -> None:
        self._constants = dict(constants)
        self._journal = Journal(path)
        self._loads: list[float] = []
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)),
            expand=True,  # so that a long description is cut short, not the figures
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Runs:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def expect(self, num_runs: int) -> None:
        """Tell the bar how many runs there will be."""
        self._progress.update(self._task, total=num_runs)

    @property
    def load(self) -> str:
        """The machine's load average after the runs, in words: were they alone?"""
        low, high = min(self._loads), max(self._loads)
        return f"median {statistics.median(self._loads):.1f}, {low:.1f} to {high:.1f}"

    def note(self, text: str) -> None:
        """A line on stderr."""
        self._progress.console.print(text, highlight=False)

    def __call__(self, key: Values, job: Callable[[], Values]) -> dict[str, Any]:
        """The result of the run `key`: from the journal, or of `job`, which is then kept."""
        run = {**self._constants, **key}
        self._progress.update(self._task, description=" ".join(str(v) for v in key.values()))
        found = self._journal.get(run)
        if found is None:
            result = {**job(), "load": psutil.getloadavg()[0], "at": time.strftime("%F %T")}
            found = self._journal.add(run, result)
        self._loads.append(found["load"])
        self._progress.advance(self._task)
        return found
