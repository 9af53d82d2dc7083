"""Candidates from the text itself: what followed the last time that it read as it does now.

Every stretch of 2 to 16 tokens that has a successor is remembered by where it last ended:

    text      a b c d a b c          end of the text "a b c", seen before: m = 3, ended at 3
    followed        d a b c d a ..   copied from there; past the end, the copy copies itself

The module knows token ids only; what a copy is worth is the policy's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from dyspec_edge.decode.cache import common_prefix

SHORTEST = 2
LONGEST = 16
"""Longer matches are found at this length and then followed backwards."""

_NUM_LENGTHS = LONGEST - SHORTEST + 1


class Lookup:
    """An index over a text that grows at its end and may be cut.

    Attributes:
        tokens: the text.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # Per length: key of a stretch -> where it last ended.  Keys are hashes: 64 bits, checked.
        self._ends: tuple[dict[int, int], ...] = tuple({} for _ in range(_NUM_LENGTHS))
        # What each entry replaced, so that a cut can bring it back; _NUM_LENGTHS per end.
        self._replaced = array("i")
        self._last = (0, 0, 0)  # length of the text, end and length of the last long match
        self._keys_here: list[int] | None = None  # of the end of the text, once somebody asked

    def follow(self, text: Sequence[int]) -> None:
        """Make `text` the text, keeping what it shares with the present one."""
        shared = common_prefix(self.tokens, text)
        self.truncate(shared)
        self.append(text[shared:])

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end; constant time each."""
        for token in tokens:
            # Only now has the stretch that ends here a successor.
            end = len(self.tokens)
            replaced = [-1] * _NUM_LENGTHS
            for place, key in enumerate(self._keys_of_end()):
                ends = self._ends[place]
                replaced[place] = ends.get(key, -1)
                ends[key] = end
            self._replaced.extend(replaced)
            self.tokens.append(token)
            self._keys_here = None

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        for end in range(len(self.tokens) - 1, length - 1, -1):
            for place, key in enumerate(self._keys(end)):
                before = self._replaced[end * _NUM_LENGTHS + place]
                if before < 0:
                    del self._ends[place][key]
                else:
                    self._ends[place][key] = before
        if length < len(self.tokens):
            del self.tokens[length:]
            del self._replaced[length * _NUM_LENGTHS :]
            self._last = (0, 0, 0)
            self._keys_here = None

    def match(self) -> tuple[int, int]:
        """The longest earlier occurrence of the end of the text, the latest among equals.

        Returns:
            How many tokens match (0: fewer than two do), and the index of the token that
            followed them.
        """
        text, here = self.tokens, len(self.tokens)
        length = found = 0
        for candidate, (place, key) in enumerate(enumerate(self._keys_of_end()), SHORTEST):
            end = self._ends[place].get(key, -1)
            if end < 0 or text[end - candidate : end] != text[here - candidate : here]:
                break
            length, found = candidate, end
        if length == LONGEST:
            length = self._extended(here, found)
        return length, found

    def copy(self, start: int, num_tokens: int) -> list[int]:
        """`num_tokens` tokens from index `start` on; past the end of the text it goes round."""
        tail = self.tokens[start : start + num_tokens]
        while len(tail) < num_tokens:
            tail += tail[: num_tokens - len(tail)]
        return tail

    def _keys_of_end(self) -> list[int]:
        if self._keys_here is None:
            self._keys_here = list(self._keys(len(self.tokens)))
        return self._keys_here

    def _keys(self, end: int) -> Iterator[int]:
        """Keys of the stretches of 2, 3, ... 16 tokens that end before index `end`."""
        key = 0
        stretch = self.tokens[max(0, end - LONGEST) : end]
        for length, token in enumerate(reversed(stretch), 1):
            key = hash((key, token))
            if length >= SHORTEST:
                yield key

    def _extended(self, here: int, found: int) -> int:
        """The length of a match of at least `LONGEST` tokens, in steps that are not repeated."""
        text, length = self.tokens, LONGEST
        before, end, known = self._last
        if known and here - before == found - end <= LONGEST:
            length = known + here - before  # the same match, some tokens later
        else:
            while length < found and text[found - length - 1] == text[here - length - 1]:
                length += 1
        self._last = (here, found, length)
        return length
