"""A text in pieces, cut at random."""

from __future__ import annotations

import random
from collections.abc import Iterator


def random_cuts(text: str, seed: int) -> Iterator[str]:
    """Pieces of 0 to 4 characters."""
    rng = random.Random(seed)
    while text:
        size = rng.randint(0, 4)
        yield text[:size]
        text = text[size:]
