"""The text's own repetitions: what followed when the same tokens stood here before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import common_prefix
from dyspec_edge.decode.draft.lookup import Lookup
from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.decode.tree import TokenTree

KAP, KW = 2.0, 4.0
"""A copy that has matched m tokens breaks with chance kappa / m: start, and its weight."""

LEAST_CONFIDENCE, LEAST_P = 0.02, 0.004
"""The least confidence in a copied token; a copy ends where its P falls below the second."""

FORCED_CONFIDENCE = 0.98
"""In a token of text that the grammar forces: the target may cut it into other tokens."""


class Copies:
    """A chain copied from the text, and how often such chains were right.

    Args:
        end_tokens: int32 ids that end a text; nothing is copied beyond them.

    Attributes:
        lookup: of the text.
        miss, seen: kappa is their ratio.
    """

    def __init__(self, end_tokens: npt.NDArray[np.int32]) -> None:
        self.lookup = Lookup()
        self.miss, self.seen = KAP * KW, KW
        self._ends = frozenset(end_tokens.tolist())

    @property
    def kappa(self) -> float:
        """A copy that has matched m tokens breaks with chance kappa / m."""
        return self.miss / self.seen

    def follow(self, text: Sequence[int]) -> int:
        """Take a text; returns how many of its tokens are new."""
        num_new = len(text) - common_prefix(self.lookup.tokens, text)
        self.lookup.follow(text)
        return num_new

    def add_to(self, tree: TokenTree, max_nodes: int, grammar: Grammar | None = None) -> None:
        """Add what followed the longest match, as far as it may be right and fits the grammar.

        What the grammar leaves no choice about comes before a copy that says otherwise.
        """
        length, start = self.lookup.match()
        tokens = self.lookup.copy(start, max_nodes) if length else []
        forced: list[int] = []
        if grammar is not None:
            tokens = tokens[: grammar.num_following(tokens)]
            forced = grammar.forced(max_nodes)
            if tokens[: len(forced)] != forced:
                tokens = forced
        node, tree.num_forced = 0, len(forced)
        for j, token in enumerate(tokens):
            confidence = max(LEAST_CONFIDENCE, 1.0 - self.kappa / (length + j)) if length else 0.0
            if j < len(forced):
                confidence = FORCED_CONFIDENCE
            if tree.value[node] * confidence < LEAST_P:
                return
            ends = token in self._ends
            node = tree.add(node, token, confidence, terminal=ends)
            if ends:
                return

    def learn(self, tokens: Sequence[int]) -> None:
        """Append what was emitted, and count where a copy would have been wrong."""
        for token in tokens:
            length, start = self.lookup.match()
            if length:
                self.miss += self.lookup.tokens[start] != token
                self.seen += 1.0 / length
            self.lookup.append((token,))
