"""A grammar that a reply has to fit, and what it forbids in a tree.

llama.cpp's grammar sampler holds the state after the text so far; native code
(native/src/grammar.cpp) copies it along the paths of a tree:

    the target draws      what does not fit is drawn again from what does, with the same noise
    a draft proposes      candidates that cannot follow their node never enter the tree
    the text is copied    a copy ends where the grammar does

Under `match` the text is the one that plain decoding gives under the same grammar: what drafts
propose never changes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyspec_edge.llama import Model, create_grammar
from dyspec_edge.native import Handle, lib, pointer


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

    def num_following(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, one after the other, might follow the text."""
        ids = np.array(tokens, np.int32)
        n: int = lib.dyspec_grammar_follow(
            self.handle.address, pointer(ids, np.int32, len(ids)), len(ids)
        )
        return n

    def close(self) -> None:
        """Free all states.  Idempotent."""
        self.handle.close()
