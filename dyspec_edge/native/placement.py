"""Orders and masks of trees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import Int32s, lib, pointer


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
