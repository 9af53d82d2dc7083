"""SpecInfer's expansion (arXiv 2305.09781): a tree of one shape, whose children are sampled.

    specinfer:2x2x1     every node of layer i gets K_i children, a layer per draft pass

        root ─┬─ a ─┬─ c ── g       4 leaves, 2 + 4 + 4 nodes
              │     └─ d ── h
              └─ b ─┬─ e ── i
                    └─ f ── j

Under `residual`, at temperature 0 too, children are drawn from the draft independently of one
another, so a token may come again.  As in the paper's token trees it is one node then, and the tree
is smaller: once refused, a second copy could not be accepted and would be checked for nothing.  The
draw is a round of verification all the same.  Under `match` the children are the K_i best.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.policy.interface import Nodes, Policy
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import ResidualVerifier, Verifier, with_replacement


class SpecInferPolicy(Policy):
    """`specinfer:K1xK2x...`.

    Args:
        widths: K_i, children of every node in layer i, each at least 1.
        end_tokens: int32 ids that end a text; nothing is drafted below them.
    """

    def __init__(self, widths: Sequence[int], end_tokens: npt.NDArray[np.int32]) -> None:
        self.name = "specinfer:" + "x".join(map(str, widths))
        layers = list(accumulate(widths, mul))
        self.max_nodes = sum(layers)
        self.max_leaves = layers[-1]
        self._widths = tuple(widths)
        self._end_tokens = frozenset(end_tokens.tolist())

    def narrow(self, num_nodes: int) -> None:
        """One child a node."""
        self._widths = (1,) * min(len(self._widths), num_nodes)
        super().narrow(len(self._widths))

    def residual_verifier(self) -> Verifier:
        """Multi-step speculative sampling: the draft's distribution stays from round to round."""
        return ResidualVerifier(with_replacement)

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Give every node of a layer its children, layer by layer."""
        layer = [0]
        for width in self._widths[:max_depth]:
            layer = [node for node in layer if not tree.terminal[node]]
            if not layer:
                break
            drafter.propose(tree, np.array(layer, np.int32))
            found = [self._expand(tree, drafter, node, width) for node in layer]
            layer = [child for children in found for child in children]
        return native.depth_first(tree.parent, tree.size)

    def _expand(self, tree: TokenTree, drafter: Drafter, node: int, width: int) -> list[int]:
        if tree.num_candidates[node] == 0:
            return []
        tree.sampled[node] = drafter.sample_children(tree, node, width)
        children = []
        for place in dict.fromkeys(tree.sampled[node].tolist()):  # each once, in order
            token = int(tree.candidate_ids[node, place])
            confidence = float(tree.candidate_probs[node, place])
            ends = token in self._end_tokens
            children.append(tree.add(node, token, confidence, terminal=ends))
        return children
