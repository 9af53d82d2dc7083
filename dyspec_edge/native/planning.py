"""What to do next with a tree at measured prices: draft some nodes, or verify some."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.handle import Handle
from dyspec_edge.native.library import Int32s, lib, pointer
from dyspec_edge.native.proposer import Proposer
from dyspec_edge.native.tree import Tree

WIDTHS = (1, 4, 16)
"""Nodes of one draft pass that are considered, as planning.cpp has them."""


_PRICES = ctypes.c_double * len(WIDTHS)


class Plan(NamedTuple):
    """What to do with which nodes.

    Attributes:
        drafts: evaluate `nodes` with the draft in one pass, then `Planner.enter` them; else
            verify them.
        nodes: int32[n]; to be verified, the root first, depth first.
    """

    drafts: bool
    nodes: Int32s


class Planner:
    """Weighs drafting against verifying.

    Args:
        tree: to be grown.
        num_rows: of the largest target pass.
        num_children: children that enter per drafted node, K.
        max_leaves: leaves of a target pass and branches of the draft.
        max_confidence: confidences of drafted children are cut to it.
        eog: end-of-generation ids; a child that is one becomes terminal.
    """

    def __init__(
        self,
        tree: Tree,
        num_rows: int,
        *,
        num_children: int,
        max_leaves: int,
        max_confidence: float,
        eog: npt.ArrayLike = (),
    ) -> None:
        ends = np.unique(np.asarray(eog, np.int32))
        address = lib.dyspec_planner_create(
            tree.struct,
            num_rows,
            num_children,
            max_leaves,
            max_confidence,
            pointer(ends, np.int32, len(ends)),
            len(ends),
        )
        self._handle = Handle(address, lib.dyspec_planner_free)
        self._tree = tree  # the native object points to it
        self._num_rows = num_rows
        self._nodes = np.zeros(max(num_rows, WIDTHS[-1]), np.int32)
        self._pointer = pointer(self._nodes, np.int32, len(self._nodes))
        self._drafts = ctypes.c_int32()

    def set_prices(
        self,
        *,
        target: npt.NDArray[np.float64],
        acceptance: float,
        worth: float,
        left: float,
        max_depth: int,
        first: Sequence[float] | None = None,
        later: Sequence[float] = (0.0, 0.0, 0.0),
    ) -> None:
        """Say what things cost now.

        Args:
            target: float64[num_rows + 1], seconds of a target pass by its rows.
            acceptance: chance that the draft's first child is right.
            worth: tokens that a second is worth.
            left: seconds that the step may still cost.
            max_depth: of a node; the root has 0.
            first: seconds of a draft pass over 1, 4 and 16 nodes now; None: nothing is drafted.
            later: and of a following pass.
        """
        lib.dyspec_planner_set_prices(
            self._handle.address,
            pointer(target, np.float64, self._num_rows + 1),
            acceptance,
            worth,
            left,
            max_depth,
            _PRICES(*first) if first is not None else None,
            _PRICES(*later),
        )

    def plan(self) -> Plan:
        """What is best now.

        Raises:
            ValueError: limits that the arrays cannot hold.
        """
        n = lib.dyspec_planner_plan(self._handle.address, self._pointer, self._drafts)
        if n < 0:
            raise ValueError(f"a tree of {self._tree.struct.n_nodes} nodes, {self._num_rows} rows")
        return Plan(bool(self._drafts.value), self._nodes[:n].copy())

    def enter(self, nodes: Int32s) -> None:
        """Add the children of nodes that the draft has evaluated, and compute P anew.

        Raises:
            ValueError: no room for them, or a node that does not exist.
        """
        address = pointer(nodes, np.int32, len(nodes))
        if lib.dyspec_planner_enter(self._handle.address, address, len(nodes)) < 0:
            raise ValueError(f"children of nodes {nodes.tolist()} cannot be entered")

    def grow(self, proposer: Proposer) -> Int32s:
        """Plan, draft and enter as long as drafting promises more than verifying.

        Returns:
            int32[n], the nodes to verify, the root first, depth first; valid until the next call.

        Raises:
            Whatever the proposer does.
            ValueError: limits that the arrays cannot hold.
        """
        n = lib.dyspec_planner_grow(
            self._handle.address, proposer.function, proposer.data, self._pointer
        )
        proposer.check(n)
        return self._nodes[:n]

    def close(self) -> None:
        """Free the native object.  Idempotent."""
        self._handle.close()
