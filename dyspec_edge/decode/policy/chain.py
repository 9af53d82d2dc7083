"""A chain of the draft's first choices, K tokens long: what every llama.cpp front end does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.policy.interface import Nodes, Policy
from dyspec_edge.decode.tree import TokenTree

FLOOR_OF = 10
"""llama.cpp's draft sampler keeps so many tokens, and its probabilities are among those."""


class ChainPolicy(Policy):
    """`chain:K[:P]`, as llama.cpp's --draft-max K and --draft-p-min P.

    Args:
        length: tokens to draft, at least 1.
        end_tokens: int32 ids that end a text; nothing is drafted below them.
        floor: where the draft's best token is less probable among its 10 best, the chain ends
            before it.  At temperature 0 that is llama.cpp's rule to the letter; the token that was
            drawn is never looked at, so `residual` stays exact.
    """

    def __init__(
        self, length: int, end_tokens: npt.NDArray[np.int32], floor: float | None = None
    ) -> None:
        self.name = f"chain:{length}" + ("" if floor is None else f":{floor:g}")
        self.max_nodes = length
        self.max_leaves = 1
        self._end_tokens = frozenset(end_tokens.tolist())
        self._floor = 0.0 if floor is None else floor

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Draft until the chain is long enough, the draft unsure or the text would end."""
        node = 0
        for _ in range(min(self.max_nodes, max_depth)):
            drafter.propose(tree, np.array([node], np.int32))
            if tree.num_candidates[node] == 0 or self._best(tree, node) < self._floor:
                break
            token = int(tree.candidate_ids[node, 0])
            ends = token in self._end_tokens
            node = tree.add(node, token, float(tree.candidate_probs[node, 0]), terminal=ends)
            if ends:
                break
        return np.arange(tree.size, dtype=np.int32)

    @staticmethod
    def _best(tree: TokenTree, node: int) -> float:
        """The largest probability as llama.cpp counts it."""
        likeliest = np.sort(tree.candidate_probs[node, : tree.num_candidates[node]])[-FLOOR_OF:]
        return float(likeliest[-1] / likeliest.sum())
