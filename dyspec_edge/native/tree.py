"""The arrays of a token tree, as native code sees them, and their order."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import Int32s, TreeStruct, lib, pointer


class Tree(Protocol):
    """Owns the arrays that its `struct` points to, and never replaces them (tree.TokenTree)."""

    struct: TreeStruct


def tree_struct(
    *,
    token: Int32s,
    parent: Int32s,
    depth: Int32s,
    num_children: Int32s,
    confidence: npt.NDArray[np.float32],
    value: npt.NDArray[np.float64],
    terminal: npt.NDArray[np.uint8],
    candidate_ids: Int32s,
    candidate_probs: npt.NDArray[np.float32],
    num_candidates: Int32s,
) -> TreeStruct:
    """A dyspec_tree without nodes; arrays are [capacity], candidates [capacity, ranks]."""
    capacity, num_ranks = candidate_ids.shape

    def per_node(array: npt.NDArray[Any], dtype: Any, entries: int = 1) -> int:
        return pointer(array, dtype, capacity * entries)

    return TreeStruct(
        token=per_node(token, np.int32),
        parent=per_node(parent, np.int32),
        depth=per_node(depth, np.int32),
        n_children=per_node(num_children, np.int32),
        confidence=per_node(confidence, np.float32),
        value=per_node(value, np.float64),
        terminal=per_node(terminal, np.uint8),
        cand_ids=per_node(candidate_ids, np.int32, num_ranks),
        cand_probs=per_node(candidate_probs, np.float32, num_ranks),
        n_cand=per_node(num_candidates, np.int32),
        n_nodes=0,
        capacity=capacity,
        n_ranks=num_ranks,
    )


def depth_first(parent: Int32s, n: int) -> Int32s:
    """Depth-first order of the first n nodes, earlier children first: int32[n].

    Raises:
        ValueError: a parent does not stand before its child.
    """
    order, scratch = np.empty(n, np.int32), np.empty(2 * n, np.int32)
    code = lib.dyspec_depth_first(
        pointer(parent, np.int32, n), n, scratch.ctypes.data, order.ctypes.data
    )
    if code < 0:
        raise ValueError("a parent does not stand before its child")
    return order
