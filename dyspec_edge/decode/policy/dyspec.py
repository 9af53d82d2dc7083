"""DySpec's two algorithms (arXiv 2410.11744): trees grown by the draft's own confidence.

A *slot* is the place of a node's next child.  Its value is the draft mass that reaches it: the
path's probability times what is still undrawn at the node.  Algorithm 1 always fills the most
valuable slot, until the tree has N nodes.  Algorithm 2 fills every slot above a threshold, a
whole layer per draft pass.  Both look at a slot's value only, never at the token to be drawn, so
the residual verifier stays exact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.policy.interface import Nodes, Policy
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.native import MAX_SEQUENCES


class _TreePolicy(Policy):
    """What both algorithms do: fill slots (native), evaluate the nodes that come next, repeat."""

    by_layer: bool

    def __init__(self, num_nodes: int, end_tokens: npt.NDArray[np.int32]) -> None:
        self.max_nodes = num_nodes
        self.max_leaves = min(num_nodes, MAX_SEQUENCES)
        self._end_tokens = end_tokens
        self._expansion: tuple[TokenTree, native.Expansion] | None = None

    def _fill(
        self, tree: TokenTree, drafter: Drafter, max_depth: int, threshold: float = 0.0
    ) -> Nodes:
        if self._expansion is None or self._expansion[0] is not tree:
            expansion = native.Expansion(
                tree,
                max_nodes=self.max_nodes,
                max_leaves=self.max_leaves,
                max_depth=max_depth,
                by_layer=self.by_layer,
                eog=self._end_tokens,
            )
            self._expansion = tree, expansion
        expansion = self._expansion[1]
        expansion.reset(max_depth=max_depth, threshold=threshold)
        return expansion.grow(drafter.proposer(tree))


class DySpecPolicy(_TreePolicy):
    """`dyspec:N`, Algorithm 1: a fixed number of nodes, best slot first."""

    by_layer = False

    def __init__(self, num_nodes: int, end_tokens: npt.NDArray[np.int32]) -> None:
        super().__init__(num_nodes, end_tokens)
        self.name = f"dyspec:{num_nodes}"

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Fill the best slots until the tree has its size."""
        return self._fill(tree, drafter, max_depth)


class ThresholdPolicy(_TreePolicy):
    """`dyspec-threshold:N[:t]`, Algorithm 2: every slot above t, layer by layer.

    t starts at 1/N and is adapted from step to step toward N nodes, always before a draw; N also
    caps the tree.  A t that was given stays fixed.
    """

    by_layer = True

    ADAPT = 0.5
    """Exponent of (size / N) by which the threshold follows the size of the last tree."""

    LARGEST = 0.5

    def __init__(
        self, num_nodes: int, end_tokens: npt.NDArray[np.int32], threshold: float | None = None
    ) -> None:
        super().__init__(num_nodes, end_tokens)
        suffix = "" if threshold is None else f":{threshold:g}"
        self.name = f"dyspec-threshold:{num_nodes}{suffix}"
        self.threshold = min(self.LARGEST, 1.0 / num_nodes) if threshold is None else threshold
        self._adapts = threshold is None

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Fill the slots above the threshold, then adapt it to the size that came out."""
        nodes = self._fill(tree, drafter, max_depth, self.threshold)
        # A tree that was cut at max_depth, or never begun, says nothing about the threshold.
        deepest = int(tree.depth[: tree.size].max())
        if self._adapts and deepest < max_depth and tree.num_candidates[0] > 0:
            # At the cap, a tree says only that more would have fitted: raise t a little.
            fill = max(1, tree.num_drafted) / self.max_nodes
            step = 1.1 if fill >= 1 else fill**self.ADAPT
            self.threshold = float(np.clip(self.threshold * step, 1e-6, self.LARGEST))
        return nodes
