"""How a draft with another vocabulary reads the target's tokens that it lacks: by their bytes.

Tokenizers disagree about spaces, bytes and special marks in the texts of their tokens, but not
about the bytes that tokens stand for, which llama.cpp tells of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from dyspec_edge import llama
from dyspec_edge.decode.draft.translation import Translation
from dyspec_edge.files.pair import PairReport


class Speller:
    """Spells the target's tokens in the draft's.

    Args:
        target, draft: open; both outlive it.
        substitute: the draft's id for what has no bytes, or bytes that the draft has no token for.
    """

    def __init__(self, target: llama.Model, draft: llama.Model, substitute: int) -> None:
        self._target, self._draft, self._substitute = target, draft, substitute
        self._ids: dict[bytes, int] = {}
        self._longest = 0

    def __call__(self, token: int) -> Sequence[int]:
        """The draft's ids, at least one: the longest token that fits, again and again."""
        if not self._ids:
            self._read_pieces()
        text, found = self._target.piece(token), list[int]()
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            length = next((n for n in lengths if text[:n] in self._ids), 0)
            found.append(self._ids[text[:length]] if length else self._substitute)
            text = text[max(length, 1) :]
        return found or [self._substitute]

    def _read_pieces(self) -> None:
        for token in range(self._draft.num_vocab - 1, -1, -1):  # the lowest id of a text wins
            self._ids[self._draft.piece(token)] = token
        self._ids.pop(b"", None)
        self._longest = max(map(len, self._ids), default=0)


def translation(target: llama.Model, draft: llama.Model, pair: PairReport) -> Translation | None:
    """Between the ids of a pair; None where both have the same."""
    if pair.target_ids is None:
        return None
    spell = Speller(target, draft, pair.substitute_id)
    return Translation(pair.target_ids, target.num_vocab, spell)
