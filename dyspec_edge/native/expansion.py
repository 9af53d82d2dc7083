"""Greedy growth of a token tree (DySpec, Algorithms 1 and 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.handle import Handle
from dyspec_edge.native.library import Int32s, lib, pointer
from dyspec_edge.native.proposer import Proposer
from dyspec_edge.native.tree import Tree


class Expansion:
    """Greedy growth of a token tree (DySpec, Algorithms 1 and 2), evaluated lazily.

    A slot (node, rank) is worth value[node] times the probability not yet drawn there; it never
    depends on the token to be drawn.  Slots are drawn best first (ties: lower node, lower rank),
    or with `by_layer` shallower depths first.  A slot is dropped if its node is terminal or too
    deep, or if it would add a leaf too many.

    Args:
        tree: candidates stand in the order in which they are to be drawn, and their
            probabilities sum to at most 1 per node.
        eog: end-of-generation ids; a child that is one becomes terminal.
        max_nodes: of the tree, the root excluded; less than the capacity.
        max_leaves: at least 1.
        max_depth: of a node; the root has 0.
        threshold: slots at or below it are never drawn.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        max_nodes: int,
        max_leaves: int,
        max_depth: int,
        threshold: float = 0.0,
        by_layer: bool = False,
        eog: npt.ArrayLike = (),
    ) -> None:
        ends = np.unique(np.asarray(eog, np.int32))
        address = lib.dyspec_expansion_create(
            tree.struct,
            max_nodes,
            max_leaves,
            by_layer,
            pointer(ends, np.int32, len(ends)),
            len(ends),
        )
        self._handle = Handle(address, lib.dyspec_expansion_free)
        self._tree = tree  # the native object points to it
        self._limits = max_nodes, max_leaves
        self._nodes = np.zeros(tree.struct.capacity, np.int32)
        self._pointer = pointer(self._nodes, np.int32, len(self._nodes))
        self.reset(max_depth=max_depth, threshold=threshold)

    def reset(self, *, max_depth: int, threshold: float = 0.0) -> None:
        """Start from the root alone, not evaluated.

        All of node 0 but its token is written: evaluate the root after this, not before.

        Raises:
            ValueError: limits that the arrays cannot hold.
        """
        if lib.dyspec_expansion_reset(self._handle.address, max_depth, threshold) < 0:
            num_nodes, num_leaves = self._limits
            raise ValueError(
                f"{num_nodes} nodes, {num_leaves} leaves, {max_depth} layers "
                f"for a tree of {self._tree.struct.capacity} nodes"
            )

    @property
    def num_leaves(self) -> int:
        """Leaves of the tree; the root alone is one."""
        return int(lib.dyspec_expansion_n_leaves(self._handle.address))

    def run(self) -> Int32s:
        """Draw nodes until candidates of a node are needed that is not evaluated yet.

        Returns:
            int32[n], the nodes to evaluate in one pass before the next call, best first: the one
            that is needed and those that will most likely be (with `by_layer`: of its depth).
            Empty when the tree is full or no slot is left above the threshold.
        """
        n = lib.dyspec_expansion_run(self._handle.address, self._pointer)
        pending: Int32s = self._nodes[:n].copy()
        return pending

    def grow(self, proposer: Proposer) -> Int32s:
        """`run` until it is finished; `proposer` evaluates what that asks for.

        Returns:
            int32[n], the nodes of the tree, the root first, depth first; valid until the next call.

        Raises:
            Whatever the proposer does.
        """
        n = lib.dyspec_expansion_grow(
            self._handle.address, proposer.function, proposer.data, self._pointer
        )
        proposer.check(n)
        return self._nodes[:n]

    def close(self) -> None:
        """Free the native object.  Idempotent."""
        self._handle.close()
