"""The prompts that benchmarks run on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

OWN_PROMPTS = Path(__file__).parent / "prompts" / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn."""

    id: str
    category: str
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """As the engine takes it."""
        return [{"role": "user", "content": self.text}]


def read_prompts(path: Path) -> list[Prompt]:
    """The first turns of a JSONL file with `id`, `category` and `turns` on each line."""
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            prompts.append(Prompt(fields["id"], fields["category"], fields["turns"][0]))
        except (ValueError, KeyError, IndexError) as error:
            raise click.UsageError(
                f"{path}, line {number}: no prompt with id, category and turns ({error!r})"
            ) from error
    return prompts


def choose(path: Path, categories: Sequence[str], num_each: int) -> list[Prompt]:
    """The first `num_each` prompts of every category, in the order of the categories."""
    prompts = read_prompts(path)
    chosen = []
    for category in categories:
        found = [prompt for prompt in prompts if prompt.category == category][:num_each]
        if not found:
            raise click.UsageError(f"{path} holds no prompt of the category {category}")
        chosen.extend(found)
    return chosen


def filler(path: Path) -> str:
    """All prompts one after another: text to fill a context with."""
    return "\n\n".join(prompt.text for prompt in read_prompts(path))
