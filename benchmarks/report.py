"""What a benchmark prints: a Markdown table with its conditions, then one JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dyspec_edge.bench.report import table, where

PROGRAM = "python -m benchmarks"


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table."""
    print(f"\n**{title}**\n\n{table(header, rows)}")


def finish(conditions: dict[str, Any], document: dict[str, Any]) -> None:
    """The conditions, then everything as JSON in the last line."""
    print(f"\n{where(conditions)}\n")
    print(json.dumps({**conditions, **document}))
