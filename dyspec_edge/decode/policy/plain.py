"""Plain decoding: the target checks the root alone."""

from __future__ import annotations

from collections.abc import Sequence

from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.policy.interface import ROOT, Nodes, Policy
from dyspec_edge.decode.tree import TokenTree


class PlainPolicy(Policy):
    """`none`: nothing is drafted."""

    name = "none"
    max_nodes = 0
    max_leaves = 1
    needs_draft = False
    uses_draft = False

    def begin(self, _text: Sequence[int], _drafter: Drafter) -> bool:
        """A draft that other policies use has nothing to read for this one."""
        return False

    def grow(self, _tree: TokenTree, _drafter: Drafter, _max_depth: int) -> Nodes:
        """Leave the tree as it is."""
        return ROOT
