"""What a target wrote, recorded once: a JSONL file with one text a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click


@dataclass(frozen=True, slots=True)
class RecordedText:
    """A prompt and the target's greedy reply to it.

    Attributes:
        id, category: of the prompt.
        target: what wrote it, a file name.
        num_vocab: of the target.
        prompt, tokens: ids; the end token is not among them.
        end_tokens: ids that end a text of this target.
    """

    id: str
    category: str
    target: str
    num_vocab: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    end_tokens: tuple[int, ...]


def read_texts(path: Path) -> list[RecordedText]:
    """The texts of a file, in its order.

    Raises:
        click.UsageError: a line that is no recorded text.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            for name in ("prompt", "tokens", "end_tokens"):
                fields[name] = tuple(int(token) for token in fields[name])
            text = RecordedText(**fields)
        except (ValueError, KeyError, TypeError) as error:
            raise click.UsageError(f"{path}, line {number}: no recorded text ({error})") from error
        if not text.prompt or not text.tokens:
            raise click.UsageError(f"{path}, line {number}: a recorded text without tokens")
        found.append(text)
    return found


def append_text(path: Path, text: RecordedText) -> None:
    """Add a text to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(text)) + "\n")
