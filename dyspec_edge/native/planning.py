"""What to do next with a tree at measured prices: draft some nodes, or verify some."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import Int32s, PlannerStruct, lib, pointer
from dyspec_edge.native.proposer import Proposer
from dyspec_edge.native.tree import Tree

WIDTHS = (1, 4, 16)
"""Nodes of one draft pass that are considered, as planning.cpp has them."""


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
        target_seconds: float64[n + 1], seconds of a target pass by its rows, n of them at most;
            may change between calls, must not be replaced.
        num_children: children that enter per drafted node, K.
        max_leaves: leaves of a target pass and branches of the draft.
        max_confidence: confidences of drafted children are cut to it.
        eog: end-of-generation ids; a child that is one becomes terminal.
    """

    def __init__(
        self,
        tree: Tree,
        target_seconds: npt.NDArray[np.float64],
        *,
        num_children: int,
        max_leaves: int,
        max_confidence: float,
        eog: npt.ArrayLike = (),
    ) -> None:
        capacity = tree.struct.capacity
        num_rows = len(target_seconds) - 1
        sorted_eog = np.unique(np.asarray(eog, np.int32))
        order, flags = np.zeros(capacity, np.int32), np.zeros(capacity, np.uint8)
        chosen, scratch = np.zeros(num_rows, np.int32), np.zeros(3 * num_rows, np.int32)
        values = np.zeros(num_rows)
        self._nodes = np.zeros(max(num_rows, WIDTHS[-1]), np.int32)
        self._address = pointer(self._nodes, np.int32, len(self._nodes))
        self._tree = tree
        # What the pointers below point to lives as long as this object.
        working = (sorted_eog, order, flags, chosen, scratch, values)
        self._arrays = (target_seconds, working)
        self._struct = PlannerStruct(
            tree=ctypes.pointer(tree.struct),
            eog=sorted_eog.ctypes.data,
            target=pointer(target_seconds, np.float64, num_rows + 1),
            order=order.ctypes.data,
            chosen=chosen.ctypes.data,
            scratch=scratch.ctypes.data,
            values=values.ctypes.data,
            flags=flags.ctypes.data,
            n_eog=len(sorted_eog),
            n_rows=num_rows,
            n_children_max=num_children,
            max_leaves=max_leaves,
            max_confidence=max_confidence,
        )

    def set_prices(
        self,
        *,
        acceptance: float,
        worth: float,
        left: float,
        max_depth: int,
        first: Sequence[float] | None = None,
        later: Sequence[float] = (0.0, 0.0, 0.0),
    ) -> None:
        """Say what things cost now.

        Args:
            acceptance: chance that the draft's first child is right.
            worth: tokens that a second is worth.
            left: seconds that the step may still cost.
            max_depth: of a node; the root has 0.
            first: seconds of a draft pass over 1, 4 and 16 nodes now; None: nothing is drafted.
            later: and of a following pass.
        """
        x = self._struct
        x.acceptance, x.worth, x.left, x.max_depth = acceptance, worth, left, max_depth
        x.may_draft = first is not None
        x.first[:] = first or later
        x.later[:] = later

    def plan(self) -> Plan:
        """What is best now.

        Raises:
            ValueError: limits that the arrays cannot hold.
        """
        n = lib.dyspec_plan(self._struct, self._address)
        if n < 0:
            raise ValueError(
                f"a tree of {self._tree.struct.n_nodes} nodes, {self._struct.n_rows} rows"
            )
        return Plan(bool(self._struct.drafts), self._nodes[:n].copy())

    def enter(self, nodes: Int32s) -> None:
        """Add the children of nodes that the draft has evaluated, and compute P anew.

        Raises:
            ValueError: no room for them, or a node that does not exist.
        """
        if lib.dyspec_enter(self._struct, pointer(nodes, np.int32, len(nodes)), len(nodes)) < 0:
            raise ValueError(f"children of nodes {nodes.tolist()} cannot be entered")

    def grow(self, proposer: Proposer) -> Int32s:
        """Plan, draft and enter as long as drafting promises more than verifying.

        Returns:
            int32[n], the nodes to verify, the root first, depth first; valid until the next call.

        Raises:
            Whatever the proposer does.
            ValueError: limits that the arrays cannot hold.
        """
        n = lib.dyspec_planner_grow(self._struct, proposer.function, proposer.data, self._address)
        proposer.check(n)
        return self._nodes[:n]
