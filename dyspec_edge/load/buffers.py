"""Memory that passes take beside weights and caches, as estimated from file headers."""

from __future__ import annotations

from dyspec_edge.files.model_file import FileReport
from dyspec_edge.llama import UBATCH

OUTPUTS = 65
"""Rows of logits that passes usually ask for at most."""

ROW_BYTES = 40
"""For each value of an embedding, in each row of a prompt."""


def scores_bytes(report: FileReport, cells: int) -> int:
    """Bytes of attention scores without flash attention."""
    return 4 * UBATCH * cells * (report.num_heads or 0)


def buffer_bytes(report: FileReport, cells: int) -> int:
    """Bytes of logits and of what is computed on the way to them, without attention scores.

    Masks of attention stand there as F32 and as F16.
    """
    rows = UBATCH * (ROW_BYTES * (report.num_embd or 0) + 6 * cells)
    return 4 * OUTPUTS * report.num_vocab + rows
