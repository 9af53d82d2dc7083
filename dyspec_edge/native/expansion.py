"""Greedy growth of a token tree (DySpec, Algorithms 1 and 2)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.evaluator import Evaluator
from dyspec_edge.native.library import ExpansionStruct, Int32s, lib, pointer

_SLOT = np.dtype([("value", np.float64), ("node", np.int32), ("rank", np.int32)])


class TreeArrays(Protocol):
    """What an expansion grows: arrays for `capacity` nodes (tree.TokenTree has them).

    token, parent, depth, num_children and num_candidates are int32[capacity], confidence
    float32[capacity], value float64[capacity], terminal uint8[capacity]; candidate_ids int32 and
    candidate_probs float32 are [capacity, K]; size_array is int32[1].
    """

    token: Int32s
    parent: Int32s
    depth: Int32s
    num_children: Int32s
    confidence: npt.NDArray[np.float32]
    value: npt.NDArray[np.float64]
    terminal: npt.NDArray[np.uint8]
    candidate_ids: Int32s
    candidate_probs: npt.NDArray[np.float32]
    num_candidates: Int32s

    @property
    def size_array(self) -> Int32s:
        """int32[1], the number of nodes, the root included."""
        ...


def tree_pointers(tree: TreeArrays) -> dict[str, int]:
    """The fields of a native struct that point into a tree."""
    capacity, num_ranks = tree.candidate_ids.shape
    return {
        "token": pointer(tree.token, np.int32, capacity),
        "parent": pointer(tree.parent, np.int32, capacity),
        "depth": pointer(tree.depth, np.int32, capacity),
        "n_children": pointer(tree.num_children, np.int32, capacity),
        "confidence": pointer(tree.confidence, np.float32, capacity),
        "value": pointer(tree.value, np.float64, capacity),
        "terminal": pointer(tree.terminal, np.uint8, capacity),
        "n_nodes": pointer(tree.size_array, np.int32, 1),
        "cand_ids": pointer(tree.candidate_ids, np.int32, capacity * num_ranks),
        "cand_probs": pointer(tree.candidate_probs, np.float32, capacity * num_ranks),
        "n_cand": pointer(tree.num_candidates, np.int32, capacity),
    }


class Expansion:
    """Greedy growth of a token tree (DySpec, Algorithms 1 and 2), evaluated lazily.

    A slot (node, rank) is worth value[node] times the probability not yet drawn there; it never
    depends on the token to be drawn.  Slots are drawn best first (ties: lower node, lower rank),
    or with `by_layer` shallower depths first.  A slot is dropped if its node is terminal or too
    deep, or if it would add a leaf too many.

    Args:
        tree: candidates stand in the order in which they are to be drawn, and their
            probabilities sum to at most 1 per node.  The arrays must not be replaced.
        eog: end-of-generation ids; a child that is one becomes terminal.
        max_nodes: of the tree, the root excluded; less than the capacity.
        max_leaves: at least 1.
        max_depth: of a node; the root has 0.
        threshold: slots at or below it are never drawn.
    """

    def __init__(
        self,
        tree: TreeArrays,
        *,
        max_nodes: int,
        max_leaves: int,
        max_depth: int,
        threshold: float = 0.0,
        by_layer: bool = False,
        eog: npt.ArrayLike = (),
    ) -> None:
        capacity, num_ranks = tree.candidate_ids.shape
        sorted_eog = np.unique(np.asarray(eog, np.int32))
        remaining = np.zeros(capacity, np.float64)
        heap = np.zeros(capacity + 1, _SLOT)
        scratch = np.zeros(capacity + 1, _SLOT)
        self._pending = np.zeros(capacity, np.int32)
        # What the pointers below point to lives as long as this object.
        self._arrays = (tree, tree.size_array, sorted_eog, remaining, heap, scratch)
        self._struct = ExpansionStruct(
            **tree_pointers(tree),
            remaining=remaining.ctypes.data,
            heap=heap.ctypes.data,
            scratch=scratch.ctypes.data,
            eog=sorted_eog.ctypes.data,
            n_eog=len(sorted_eog),
            capacity=capacity,
            n_ranks=num_ranks,
            by_layer=by_layer,
        )
        self._limits = (max_nodes, max_leaves, max_depth, threshold)
        self.reset()

    def reset(
        self,
        *,
        max_nodes: int | None = None,
        max_leaves: int | None = None,
        max_depth: int | None = None,
        threshold: float | None = None,
    ) -> None:
        """Start from the root alone, not evaluated; limits that are not given stay as they were.

        All of node 0 but its token is written: evaluate the root after this, not before.

        Raises:
            ValueError: limits that the arrays cannot hold.
        """
        given = (max_nodes, max_leaves, max_depth, threshold)
        limits = tuple(
            old if new is None else new for old, new in zip(self._limits, given, strict=True)
        )
        x = self._struct
        x.max_nodes, x.max_leaves, x.max_depth, x.threshold = limits
        if lib.dyspec_expansion_reset(x) < 0:
            raise ValueError(
                f"(max_nodes, max_leaves, max_depth, threshold) = {limits} "
                f"for a tree of {x.capacity} nodes"
            )
        self._limits = (int(x.max_nodes), int(x.max_leaves), int(x.max_depth), float(x.threshold))

    @property
    def num_leaves(self) -> int:
        """Leaves of the tree; the root alone is one."""
        return int(self._struct.n_leaves)

    def run(self) -> Int32s:
        """Draw nodes until candidates of a node are needed that is not evaluated yet.

        Returns:
            int32[n], the nodes to evaluate in one pass before the next call, best first: the one
            that is needed and those that will most likely be (with `by_layer`: of its depth).
            Empty when the tree is full or no slot is left above the threshold.
        """
        n = lib.dyspec_expansion_run(self._struct, self._pending.ctypes.data)
        pending: Int32s = self._pending[:n].copy()
        return pending

    def grow(self, evaluator: Evaluator) -> None:
        """`run` until it is finished, whose nodes `evaluator` evaluates.

        Raises:
            Whatever the evaluator does.
        """
        evaluator.check(
            lib.dyspec_expansion_grow(
                self._struct, evaluator.function, evaluator.data, self._pending.ctypes.data
            )
        )
