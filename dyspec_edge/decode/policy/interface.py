"""What the step loop asks of a policy, and a policy of a drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import ResidualVerifier, Verifier

Nodes = npt.NDArray[np.int32]

ROOT: Nodes = np.zeros(1, np.int32)
"""What the target checks in a plain step."""


class Drafter(Protocol):
    """A source of candidates."""

    def evaluate(self, tree: TokenTree, nodes: Nodes) -> None:
        """Write the candidates of `nodes` into the tree, in one draft pass."""
        ...

    def evaluator(self, tree: TokenTree) -> native.Evaluator:
        """The same for native code that grows the tree."""
        return native.Evaluator.calling(lambda nodes: self.evaluate(tree, nodes))

    def draw(self, tree: TokenTree, node: int, count: int) -> Nodes:
        """Draw candidates of an evaluated node with replacement; where ranks decide, the first.

        Returns:
            Their places int32[n] among the candidates, in the order of drawing, n at most `count`.
        """
        return np.arange(min(count, tree.num_candidates[node]), dtype=np.int32)


class ReadingDrafter(Drafter, Protocol):
    """A drafter that has to read the text before it can propose anything."""

    @property
    def ranking(self) -> Ranking | None:
        """The rule of the present reply."""
        ...

    @property
    def num_behind(self) -> int:
        """Tokens before the root that the next pass would have to read first."""
        ...

    def read(self) -> None:
        """Read them now."""
        ...

    def passes(self) -> Sequence[tuple[int, float]]:
        """Rows and seconds of this step's passes so far."""
        ...


class NoDrafter(Drafter):
    """Stands where there is no draft: it proposes nothing."""

    def evaluate(self, tree: TokenTree, nodes: Nodes) -> None:
        """Find no candidates."""
        tree.num_candidates[nodes] = 0


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

    def begin(self, text: Sequence[int], drafter: ReadingDrafter | None) -> bool:
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
        *,
        num_rows: int,
        target_seconds: float,
        seconds: float,
    ) -> None:
        """Hear how a step ended.

        Args:
            tree: as grown.
            path: accepted nodes, the root first.
            tokens: what was emitted; tokens[i] follows path[i].
            num_rows: rows of the target's pass.
            target_seconds: of that pass.
            seconds: of the whole step, but for drawing tokens, which plain decoding does as well,
                and for a draft that read the prompt: that is an investment, not decoding.
        """
        return

    def figures(self) -> Mapping[str, float]:
        """What was learned, by name."""
        return {}
