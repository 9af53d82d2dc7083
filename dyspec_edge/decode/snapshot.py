"""The tree of a step, kept apart from the arrays that the next step overwrites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.tree import TokenTree


@dataclass(frozen=True, slots=True, eq=False)
class TreeSnapshot:
    """A tree as it was when the target had checked it.

    Attributes:
        token, parent: int32[n]; the root is the first, its parent -1; parents stand before their
            children.
        confidence: float32[n], the draft's probability of the node among its siblings.
        checked: bool[n], the target's pass had a row for the node.
        accepted: bool[n], the node is on the accepted path.
    """

    token: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int32]
    confidence: npt.NDArray[np.float32]
    checked: npt.NDArray[np.bool_]
    accepted: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tree: TokenTree, nodes: npt.NDArray[np.int32], path: Sequence[int]) -> TreeSnapshot:
        """A copy of `tree`, of which the target checked `nodes` and accepted `path`."""
        size = tree.size
        checked, accepted = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        checked[nodes] = True
        accepted[list(path)] = True
        return cls(
            tree.token[:size].copy(),
            tree.parent[:size].copy(),
            tree.confidence[:size].copy(),
            checked,
            accepted,
        )

    def render(self, piece: Callable[[int], str]) -> str:
        """What was checked as text, one node a line, the accepted path marked with a star.

        Args:
            piece: the text of a token id.
        """
        below: dict[int, list[int]] = {}
        for node in np.flatnonzero(self.checked).tolist():
            below.setdefault(int(self.parent[node]), []).append(node)
        lines: list[str] = []
        waiting = [(0, "", "")]  # not by recursion: a chain can be deeper than Python's stack
        while waiting:
            node, prefix, branch = waiting.pop()
            star = "*" if self.accepted[node] else " "
            chance = "" if node == 0 else f"  {self.confidence[node]:.2f}"
            lines.append(f"{star} {prefix}{branch}{piece(int(self.token[node]))!r}{chance}")
            indent = prefix + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
            children = below.get(node, [])
            waiting.extend(
                (child, indent, "└─ " if child == children[-1] else "├─ ")
                for child in children[::-1]
            )
        return "\n".join(lines)
