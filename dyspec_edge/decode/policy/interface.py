"""What the step loop asks of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import ResidualVerifier, Verifier

Nodes = npt.NDArray[np.int32]

ROOT: Nodes = np.zeros(1, np.int32)
"""What the target checks in a plain step."""


class Policy(Protocol):
    """Grows trees.  What is not abstract has a default for policies that learn nothing.

    Attributes:
        name: as --policy spells it.
        max_nodes: drafted nodes of the largest tree.
        max_leaves: leaves of the largest tree, hence sequence ids that it needs.
    """

    name: str
    max_nodes: int
    max_leaves: int

    def residual_verifier(self) -> Verifier:
        """What keeps the text exact under `residual`, seeing how this policy draws children."""
        return ResidualVerifier()

    @property
    def tree_capacity(self) -> int:
        """Nodes that a tree may have while it grows, the root and those not checked included."""
        return 1 + self.max_nodes

    def begin(self, text: Sequence[int], drafter: Drafter | None) -> bool:
        """Hear of a new reply.

        Args:
            text: all tokens so far, the root among them.
            drafter: which has read of them what it knew already.

        Returns:
            Whether the drafter shall read the rest now; else it does when it is first asked.
        """
        return True

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Add nodes below the root, none deeper than `max_depth`.

        Returns:
            int32[n], the nodes that the target shall check: the root and what is below it, depth
            first, every node's parent among them.
        """
        ...

    def learn(
        self,
        tree: TokenTree,
        path: Sequence[int],
        tokens: Sequence[int],
        cost: StepCost,
    ) -> None:
        """Hear how a step ended.

        Args:
            tree: as grown.
            path: accepted nodes, the root first.
            tokens: what was emitted; tokens[i] follows path[i].
            cost: what the step took.
        """
        return

    def figures(self) -> Mapping[str, float]:
        """What was learned, by name."""
        return {}
