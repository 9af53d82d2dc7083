"""The prompts that benchmarks run on when none are given."""

from __future__ import annotations

from pathlib import Path

from dyspec_edge.bench.prompts import Prompt, choose, read_prompts

__all__ = ["OWN_PROMPTS", "Prompt", "choose", "filler", "read_prompts"]

OWN_PROMPTS = Path(__file__).parent / "prompts" / "prompts.jsonl"


def filler(path: Path) -> str:
    """All prompts one after another: text to fill a context with."""
    return "\n\n".join(prompt.text for prompt in read_prompts(path))
