"""What a draft reads of a text: all of it but some gaps.

    text       a b c d e f g h i j k l
    gaps             . . .     . .
    excerpt    a b c       g h     k l      contiguous for the draft: llama.cpp's cache has no gaps

What a prompt asks for stands most often at its beginning or at its end, and a draft that knows both
guesses nearly as well as one that has read everything in between.  Token ids only; how much is
read is the policy's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Gap(NamedTuple):
    """Tokens of a text that are left out.

    Attributes:
        place: before which token of the excerpt.
        size: how many.
    """

    place: int
    size: int


class Excerpt:
    """A text without its gaps.

    Attributes:
        gaps: ascending.
    """

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def of(self, text: Sequence[int], first: int = 0) -> list[int]:
        """The tokens of the excerpt, from its token number `first` on."""
        found: list[int] = []
        skipped = 0
        for gap in self.gaps:
            found += text[first + skipped : gap.place + skipped]
            first, skipped = max(first, gap.place), skipped + gap.size
        found += text[first + skipped :]
        return found

    def length(self, num_tokens: int) -> int:
        """How many of the first `num_tokens` tokens of the text belong to it."""
        for gap in self.gaps:
            if num_tokens <= gap.place:
                break
            num_tokens = max(gap.place, num_tokens - gap.size)
        return num_tokens

    def skip(self, place: int, size: int) -> None:
        """Leave out `size` tokens more, from number `place` of the excerpt on."""
        within = [gap.size for gap in self.gaps if place <= gap.place <= place + size]
        behind = [Gap(p - size, n) for p, n in self.gaps if p > place + size]
        self.gaps = [gap for gap in self.gaps if gap.place < place]
        self.gaps += [Gap(place, size + sum(within)), *behind]

    def keep(self, num_tokens: int) -> None:
        """Close the gaps behind which none of the first `num_tokens` tokens stands."""
        self.gaps = [gap for gap in self.gaps if gap.place < num_tokens]
