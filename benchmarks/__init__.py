"""Benchmarks: `python -m benchmarks COMMAND`, results in RESULTS.md."""

from __future__ import annotations
