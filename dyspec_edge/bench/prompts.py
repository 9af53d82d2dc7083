"""The prompts that benchmarks run on, by category and by group of categories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.text.utf8 import decode

GROUPS = {
    "code": ("code_completion", "code_edit", "coding"),
    "math and reasoning": ("math", "math_reasoning", "reasoning"),
    "prose": ("writing", "roleplay", "stem", "humanities"),
    "translation": ("translation",),
    "grounded": ("summarization", "rag", "extraction"),
    "qa": ("qa",),
}
"""Categories that are alike to a draft; one that stands in no group is a group of its own."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn."""

    id: str
    category: str
    text: str

    @property
    def group(self) -> str:
        """The key of `GROUPS` that holds the category, or the category itself."""
        return next((g for g, names in GROUPS.items() if self.category in names), self.category)

    @property
    def messages(self) -> list[dict[str, str]]:
        """As the engine takes it."""
        return [{"role": "user", "content": self.text}]


def read_prompts(path: Path) -> list[Prompt]:
    """The first turns of a .jsonl file with `id`, `category` and `turns` on each line.

    Any other file is one prompt of the category "text".

    Raises:
        DyspecError: a file that cannot be read, or a line that is no prompt.
    """
    try:
        text = decode(path.read_bytes(), f"'{path}'")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(f"cannot read the prompts '{path}': {reason}") from error
    if path.suffix != ".jsonl":
        return [Prompt(path.stem, "text", text.strip())]
    prompts = []
    # JSON lines end in line feeds only: splitlines() would cut texts at U+2028 and others as well.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            prompt = Prompt(fields["id"], fields["category"], fields["turns"][0])
            if not all(isinstance(part, str) for part in (prompt.id, prompt.category, prompt.text)):
                raise TypeError("a part of it is no text")
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise DyspecError(
                f"{path}, line {number}: no prompt with id, category and turns ({error!r})"
            ) from error
        prompts.append(prompt)
    if len({prompt.id for prompt in prompts}) < len(prompts):
        raise DyspecError(f"{path}: two prompts have the same id")
    return prompts


def choose(
    path: Path, categories: Sequence[str], num_each: int | None, num_skipped: int = 0
) -> list[Prompt]:
    """Prompts of a file, category by category.

    Args:
        categories: in this order; none for all, in the order of the file.
        num_each: of every category at most; None for all.
        num_skipped: of every category, before these.

    Raises:
        OptionError: a category has no prompt, or none after those that are skipped.
    """
    prompts = read_prompts(path)
    there = list(dict.fromkeys(prompt.category for prompt in prompts))
    end = None if num_each is None else num_skipped + num_each
    chosen = []
    for category in dict.fromkeys(categories or there):
        found = [prompt for prompt in prompts if prompt.category == category]
        if not found:
            known = ", ".join(there) or "none"
            raise OptionError(f"{path} holds no prompt of the category {category}, but {known}")
        if not found[num_skipped:end]:
            raise OptionError(
                f"{path} holds {len(found)} prompts of the category {category}; --skip "
                f"{num_skipped} leaves none"
            )
        chosen.extend(found[num_skipped:end])
    if not chosen:
        raise OptionError(f"{path} holds no prompt")
    return chosen
