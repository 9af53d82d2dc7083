"""Where the nodes of a tree live in a cache whose only mask is sequence membership; tree masks."""

from __future__ import annotations

import ctypes
from ctypes import c_int32
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import DyspecError
from dyspec_edge.native.library import OUT_OF_SEQUENCES, Int32s, lib, pointer


class Placement(NamedTuple):
    """Sequence ids of the rows of one batch.

    Attributes:
        offsets: int32[n + 1]; row i carries ids[offsets[i]:offsets[i + 1]], its own one first.
        ids: int32[offsets[n]].
        copies: int32[m, 3] of (source id, new id, depth): before the batch is decoded, the cells
            at depths 1..depth of the source are to be given to the new id.
        num_used: ids 0..num_used-1 are taken now.
    """

    offsets: Int32s
    ids: Int32s
    copies: Int32s
    num_used: int


def place(
    nodes: Int32s,
    parent: Int32s,
    depth: Int32s,
    seq: Int32s,
    continued: npt.NDArray[np.uint8],
    num_used: int,
    num_seq: int,
) -> Placement:
    """Give the nodes of one batch their sequence ids.

    A node's first child continues on its id, a later child takes the next unused id.  The root
    (node 0) counts as placed with id 0; if it is in `nodes`, it comes first and carries all ids.

    Args:
        nodes: int32[n], parents before children, each node's parent placed already or earlier.
        parent: int32[capacity].
        depth: int32[capacity].
        seq: int32[capacity], in and out, the id of each placed node, -1 elsewhere.
        continued: uint8[capacity], in and out, 1 where a child goes on with the node's id.
        num_used: ids that are taken already.
        num_seq: ids that there are.

    Raises:
        DyspecError: more leaves than ids; the arrays are unchanged.
        ValueError: an order that is not allowed; the arrays are unchanged.
    """
    n, capacity = len(nodes), len(seq)
    row_of = np.empty(capacity, np.int32)
    offsets = np.empty(n + 1, np.int32)
    ids = np.empty(n * max(num_seq, 1), np.int32)
    copies = np.empty((n, 3), np.int32)
    used = c_int32(num_used)
    num_copies = lib.dyspec_place(
        pointer(nodes, np.int32, n),
        n,
        pointer(parent, np.int32, capacity),
        pointer(depth, np.int32, capacity),
        capacity,
        pointer(seq, np.int32, capacity),
        pointer(continued, np.uint8, capacity),
        ctypes.byref(used),
        num_seq,
        row_of.ctypes.data,
        offsets.ctypes.data,
        ids.ctypes.data,
        copies.ctypes.data,
    )
    if num_copies == OUT_OF_SEQUENCES:
        raise DyspecError(
            f"the tree of {n} rows needs more leaves than the {num_seq} sequence ids of the "
            "context; use a smaller tree"
        )
    if num_copies < 0:
        raise ValueError(f"nodes {nodes.tolist()} cannot be placed in this order")
    return Placement(offsets, ids[: offsets[n]], copies[:num_copies], used.value)


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


def ancestor_mask(parent: Int32s, order: Int32s, n: int) -> npt.NDArray[np.uint64]:
    """Who sees whom: bit j of row i says that order[j] is order[i] or one of its ancestors.

    Returns:
        uint64[n, ceil(n / 64)], the lowest bit of the first word being j = 0.

    Raises:
        ValueError: `order` is no permutation with parents before children.
    """
    mask, scratch = np.empty((n, (n + 63) // 64), np.uint64), np.empty(n, np.int32)
    code = lib.dyspec_ancestor_mask(
        pointer(parent, np.int32, n),
        pointer(order, np.int32, n),
        n,
        scratch.ctypes.data,
        mask.ctypes.data,
    )
    if code < 0:
        raise ValueError("the order is no permutation with parents before children")
    return mask
