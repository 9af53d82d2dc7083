"""What a target wrote, recorded once: a journal with one text a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dyspec_edge.bench.journal import read_lines
from dyspec_edge.errors import DyspecError


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
        DyspecError: a line that is no recorded text.
    """
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        values = line["result"].items()
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values}
        try:
            text = RecordedText(**fields)
        except TypeError as error:
            raise DyspecError(f"{path}, line {number}: no recorded text ({error})") from error
        if not text.prompt or not text.tokens:
            raise DyspecError(f"{path}, line {number}: a recorded text without tokens")
        found.append(text)
    return found
