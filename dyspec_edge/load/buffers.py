"""Memory that passes take beside weights and caches, as estimated from file headers."""

from __future__ import annotations

from dyspec_edge.files.model_file import FileReport
from dyspec_edge.llama import UBATCH

ROW_BYTES = 40
"""For each value of an embedding, in each row of a prompt."""


def scores_bytes(report: FileReport, cells: int) -> int:
    """Bytes of attention scores without flash attention."""
    return 4 * UBATCH * cells * (report.num_heads or 0)


def buffer_bytes(report: FileReport, cells: int, num_outputs: int, *, scores: bool) -> int:
    """Bytes of logits and of what is computed on the way to them.

    Logits of a pass are computed where rows and scores were, and then kept beside it.  Masks of
    attention stand there as F32 and as F16.

    Args:
        num_outputs: rows of logits that a pass asks for at most.
        scores: without flash attention.
    """
    logits = 4 * num_outputs * report.num_vocab
    rows = UBATCH * (ROW_BYTES * (report.num_embd or 0) + 6 * cells)
    if scores:
        rows += scores_bytes(report, cells)
    return logits + max(logits, rows)
