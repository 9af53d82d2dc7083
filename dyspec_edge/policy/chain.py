"""A chain of the draft's first choices, K tokens long: what every llama.cpp front end does."""

from __future__ import annotations

import numpy as np

from dyspec_edge.policy.interface import Drafter, Nodes, Policy
from dyspec_edge.tree import TokenTree


class ChainPolicy(Policy):
    """`chain:K`.

    Args:
        length: tokens to draft, at least 1.
        end_tokens: int32 ids that end a text; nothing is drafted below them.
    """

    def __init__(self, length: int, end_tokens: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        self.name = f"chain:{length}"
        self.max_nodes = length
        self.max_leaves = 1
        self._end_tokens = frozenset(end_tokens.tolist())

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Draft until the chain is long enough or the text would end."""
        node = 0
        for _ in range(min(self.max_nodes, max_depth)):
            drafter.evaluate(tree, np.array([node], np.int32))
            if tree.num_candidates[node] == 0:
                break
            token = int(tree.candidate_ids[node, 0])
            ends = token in self._end_tokens
            node = tree.add(node, token, float(tree.candidate_probs[node, 0]), terminal=ends)
            if ends:
                break
        return np.arange(tree.size, dtype=np.int32)
