"""What drafts are worth, as a table and in one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from dyspec_edge.decode.prices import milliseconds
from dyspec_edge.drafts.evaluation import SHOWN_ROWS, Verdict
from dyspec_edge.load.config import HEAD, SELF

COLUMNS = (
    *("draft", "acceptance", "pays from", "pass of 1", "of 8", "best chain", "predicted"),
    *("measured", "95 %", "off by"),
)

NAMES = {HEAD: "mtp: the file's own head", SELF: "self: a copy in fewer bits"}


def table(verdicts: Sequence[Verdict]) -> Table:
    """A row for each draft, and plain decoding, which all speedups are over."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in COLUMNS:
        grid.add_column(heading, justify="left" if heading == "draft" else "right")
    for verdict in verdicts:
        grid.add_row(*_row(verdict))
    grid.add_row("none: plain decoding", *[""] * 5, "1.00x", "1.00x")
    return grid


def left_out(verdicts: Sequence[Verdict]) -> str | None:
    """How many runs do not count; None if all do."""
    num = sum(verdict.num_left_out for verdict in verdicts)
    if not num:
        return None
    runs = "1 run does" if num == 1 else f"{num} runs do"
    return f"{runs} not count: other programs disturbed what their passes took"


def advice(verdict: Verdict | None) -> str:
    """Which to use."""
    if verdict is None:
        return "use no draft: nothing gains over plain decoding here"
    gain = f"{verdict.measured:.2f}x plain decoding"
    if verdict.low is not None:
        gain += f" ({_interval(verdict)})"
    if verdict.draft is None:
        return f"use no draft: copies of what the text repeats gain most, {gain}"
    return f"use -md {verdict.draft}: {gain}"


def _row(verdict: Verdict) -> list[str]:
    measured = [f"{verdict.measured:.2f}x", _interval(verdict)]
    if verdict.draft is None or verdict.predicted is None or verdict.error is None:
        return ["copies only", *[""] * 6, *measured]
    accepted = [f"{name} {share:.2f}" for name, share in verdict.acceptance.items()]
    times = [milliseconds(verdict.draft_seconds[n]) for n in SHOWN_ROWS]
    return [
        NAMES.get(verdict.draft, verdict.draft.name),
        "\n".join(accepted),
        "never" if verdict.break_even is None else f"{verdict.break_even:.2f}",
        *times,
        str(verdict.best_chain) if verdict.best_chain else "none",
        f"{verdict.predicted:.2f}x",
        *measured,
        f"{verdict.error:+.0%}",
    ]


def _interval(verdict: Verdict) -> str:
    return "" if verdict.low is None else f"{verdict.low:.2f} to {verdict.high:.2f}"
