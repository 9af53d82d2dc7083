"""What the step loop asks of a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.prices import LivePrices
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import ResidualVerifier, Verifier

Nodes = npt.NDArray[np.int32]

ROOT: Nodes = np.zeros(1, np.int32)
"""What the target checks in a plain step."""


class Policy(ABC):
    """Grows trees.  What is not abstract has a default for policies that learn nothing.

    Attributes:
        name: as --policy spells it.
        max_nodes: drafted nodes of the largest tree.
        max_leaves: leaves of the largest tree, hence sequence ids that it needs.
        wide_leaves: how many they may be where rows are nearly free; None: not more.
        needs_draft: without a draft it cannot run.
        needs_prices: `set_prices` comes before the first reply, and passes are filled up to the
            sizes whose prices are known.
        weighs_forced: what a grammar forces enters its trees, at the price of its rows; for others
            the step loop decides.
        allows_residual: it never looks at tokens before it decides about them.
        longest_read: of more unread tokens than that its drafter reads only the first and the last
            ones; None for all.
        prices: those that it goes by, if it needs any.
    """

    name: str
    max_nodes: int
    max_leaves: int
    wide_leaves: int | None = None
    needs_draft: bool = True
    needs_prices: bool = False
    weighs_forced: bool = False
    allows_residual: bool = True
    longest_read: int | None = None
    prices: LivePrices | None = None

    def narrow(self, num_nodes: int) -> None:
        """Grow chains of at most so many nodes from now on, for a target whose state cannot branch.

        Before `set_prices`, and before the first tree.
        """
        self.max_nodes = min(self.max_nodes, num_nodes)
        self.max_leaves = 1

    def widen(self, num_leaves: int) -> None:
        """Grow trees of at most so many leaves, for a target whose rows are nearly free.

        Before `set_prices`, and before the first tree.
        """
        if self.wide_leaves is not None:
            self.max_leaves = max(self.max_leaves, min(self.wide_leaves, num_leaves))

    def residual_verifier(self) -> Verifier:
        """What keeps the text exact under `residual`, seeing how this policy draws children."""
        return ResidualVerifier()

    @property
    def tree_capacity(self) -> int:
        """Nodes that a tree may have while it grows, the root and those not checked included."""
        return 1 + self.max_nodes

    @property
    def uses_draft(self) -> bool:
        """Whether a draft is worth having, at the prices that it knows."""
        return True

    def set_prices(self, prices: LivePrices) -> None:
        """Go by these prices, which other policies may use and correct as well."""
        return

    @property
    def explanation(self) -> str | None:
        """One line about what it does here and why, to be shown at load."""
        return None

    def begin(self, text: Sequence[int], drafter: Drafter) -> bool:
        """Hear of a new reply.

        Args:
            text: all tokens so far, the root among them.
            drafter: which has read of them what it knew already.

        Returns:
            Whether the drafter shall read the rest now; else it does when it is first asked.
        """
        return True

    @abstractmethod
    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Add nodes below the root, none deeper than `max_depth`.

        Returns:
            int32[n], the nodes that the target shall check: the root and what is below it, depth
            first, every node's parent among them.
        """

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

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping for the next run, for JSON; empty if there is nothing."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take what `as_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return
