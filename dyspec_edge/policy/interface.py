"""What the step loop asks of a policy, and a policy of a drafter."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.tree import TokenTree


class Drafter(Protocol):
    """A source of candidates."""

    def evaluate(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
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

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> None:
        """Add nodes below the root, none deeper than `max_depth`."""
        ...
