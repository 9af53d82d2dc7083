"""What the step loop asks of a policy, and a policy of a drafter."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.tree import TokenTree

Nodes = npt.NDArray[np.int32]


class Drafter(Protocol):
    """A source of candidates."""

    def evaluate(self, tree: TokenTree, nodes: Nodes) -> None:
        """Write the candidates of `nodes` into the tree, in one draft pass."""
        ...


class Policy(Protocol):
    """Grows trees.

    Attributes:
        name: as --policy spells it.
        max_nodes: drafted nodes of the largest tree.
        max_leaves: leaves of the largest tree, hence sequence ids that it needs.
    """

    name: str
    max_nodes: int
    max_leaves: int

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Add nodes below the root, none deeper than `max_depth`.

        Returns:
            int32[n], the nodes that the target shall check: the root and what is below it, depth
            first, every node's parent among them.
        """
        ...
