"""A grammar that a reply has to fit, and what it forbids in a tree.

llama.cpp's grammar sampler holds the state after the text so far; native code
(native/src/grammar.cpp) copies it along the paths of a tree:

    the target draws      what does not fit is drawn again from what does, with the same noise
    a draft proposes      candidates that cannot follow their node never enter the tree
    the text is copied    a copy ends where the grammar does
    nothing else fits     what the grammar leaves no choice about needs no draft at all

Under `match` the text is the one that plain decoding gives under the same grammar: what drafts
propose never changes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyspec_edge.llama import Model, create_grammar
from dyspec_edge.native import Handle, lib, pointer

MAX_CHARACTERS = 8
"""Of forced text that are looked at for each token that may come of it."""


class Grammar:
    """The grammar of one reply, at the end of what was written.

    Args:
        model: the target.
        gbnf: with a rule `root`.

    Attributes:
        handle: the dyspec_grammar, which the sampler that it is given to moves on.

    Raises:
        OptionError: llama.cpp cannot use the grammar.
    """

    def __init__(self, model: Model, gbnf: str) -> None:
        self.handle: Handle = create_grammar(model, gbnf)
        self._model = model
        self._characters = model.character_tokens()

    def num_following(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, one after the other, might follow the text."""
        ids = np.array(tokens, np.int32)
        n: int = lib.dyspec_grammar_follow(
            self.handle.address, pointer(ids, np.int32, len(ids)), len(ids)
        )
        return n

    def forced(self, most: int) -> list[int]:
        """Tokens that the grammar leaves no choice about, at most so many; ASCII text only.

        They are a guess still: the target may cut the same text into other tokens.
        """
        if most < 1 or not self._characters:
            return []
        ids = np.fromiter(self._characters, np.int32, len(self._characters))
        found = np.empty(most * MAX_CHARACTERS, np.int32)
        ends = self._model.end_tokens
        n = lib.dyspec_grammar_forced(
            self.handle.address,
            pointer(ids, np.int32, len(ids)),
            len(ids),
            ends.item(0) if len(ends) else -1,
            pointer(found, np.int32, len(found)),
            len(found),
        )
        if not n:
            return []
        text = "".join(self._characters[token] for token in found[:n].tolist())
        tokens = _cut(self._model, text)[:most]
        return tokens[: self.num_following(tokens)]

    def close(self) -> None:
        """Free all states.  Idempotent."""
        self.handle.close()


def _cut(model: Model, text: str) -> list[int]:
    """The tokens of a text in the middle of another; none if it cannot be told apart."""
    # Some tokenizers put a space before everything: another character takes it instead.
    for before in ("", text[0]):
        tokens = model.tokenize(before + text, add_special=False, parse_special=False)
        pieces = [model.piece(token) for token in tokens]
        while len(b"".join(pieces)) > len(text):
            del pieces[0]
        if b"".join(pieces) == text.encode():
            return tokens[len(tokens) - len(pieces) :]
    return []
