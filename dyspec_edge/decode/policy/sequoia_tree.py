"""Sequoia's dynamic programme (arXiv 2402.12374, section 3.1, bounded depth): the best static tree.

If the k-th child of an accepted node is accepted with a chance p_k that depends on k alone, a tree
gives as many tokens as its nodes' chances sum to, the root's being 1 (the bonus token).  Then

    F_d(n)    most tokens of a tree of n nodes, the root among them, at most d layers below it
    G_b(n)    the same, if the root has b children

    G_0(1) = 1,    G_b(n) = max over m of G_{b-1}(n - m) + p_b F_{d-1}(m),    F_d(n) = max of G_b(n)

m being the nodes of the b-th child's subtree.  Nothing here knows tokens or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree without tokens.

    Attributes:
        children: by node, breadth first from the root 0, the numbers of its children.
    """

    children: tuple[tuple[int, ...], ...]

    @property
    def num_leaves(self) -> int:
        """Nodes without children; the root alone is one."""
        return sum(not below for below in self.children)

    def layers(self) -> list[list[int]]:
        """The nodes with children, by depth: what each draft pass evaluates."""
        layers, layer = [], [0]
        while inner := [node for node in layer if self.children[node]]:
            layers.append(inner)
            layer = [child for node in inner for child in self.children[node]]
        return layers


class Programme:
    """The tables for all trees up to a size.

    Args:
        acceptance: p_1, p_2, ...; nodes get no more children than it has entries.
        num_nodes: of the largest tree, the root among them.
        max_depth: layers below the root; None for as many as are of use.

    Attributes:
        tokens: float64[num_nodes + 1] by depth limit 0, 1, ...: F_d(n), -inf where there is no
            such tree.  It ends where deeper trees are no better.
    """

    def __init__(
        self, acceptance: Sequence[float], num_nodes: int, max_depth: int | None = None
    ) -> None:
        self._acceptance = tuple(acceptance[: num_nodes - 1])
        alone = np.full(num_nodes + 1, -np.inf)
        alone[1] = 1.0
        self.tokens = [alone]
        self._num_children = [np.zeros(num_nodes + 1, np.int64)]
        self._subtree = [np.zeros((1, num_nodes + 1), np.int64)]  # m by depth, b and n
        while max_depth is None or len(self.tokens) <= max_depth:
            if not self._deepen():
                break

    def tree(self, num_nodes: int, max_depth: int) -> Shape:
        """The best tree of `num_nodes` nodes, the root among them, of at most that depth."""
        children: list[tuple[int, ...]] = []
        states = [(num_nodes, min(max_depth, len(self.tokens) - 1))]
        for n, depth in states:  # which grows: breadth first
            below = []
            for b in range(int(self._num_children[depth][n]), 0, -1):
                m = int(self._subtree[depth][b, n])
                below.append((m, depth - 1))
                n -= m
            children.append(tuple(range(len(states), len(states) + len(below))))
            states.extend(reversed(below))
        return Shape(tuple(children))

    def _deepen(self) -> bool:
        """Allow one more layer; False if that is of no use."""
        last = self.tokens[-1]
        size = len(last)
        each = np.arange(size)
        best, found = self.tokens[0], [self.tokens[0]]
        subtree = [np.zeros(size, np.int64)]
        for chance in self._acceptance:
            gain = np.where(np.isfinite(last), chance * np.maximum(last, 0.0), -np.inf)
            padded = np.concatenate([np.full(size - 1, -np.inf), best])
            rest = sliding_window_view(padded, size)[:, ::-1]  # [n, m]: best[n - m]
            tokens = rest + gain
            subtree.append(np.argmax(tokens, axis=1))
            best = tokens[each, subtree[-1]]
            found.append(best)
        tokens = np.max(found, axis=0)
        if np.array_equal(tokens, last):
            return False
        self.tokens.append(tokens)
        self._num_children.append(np.argmax(found, axis=0))
        self._subtree.append(np.array(subtree))
        return True


def fastest(
    programme: Programme, target: Callable[[int], float], draft: Callable[[int], float]
) -> Shape:
    """The tree that gives most tokens a second (section 3.3 of the paper).

    Its size n and depth d are chosen to maximise F_d(n) T(1) / (T(n) + the draft's passes); where
    no tree is faster than plain decoding, that is the root alone.

    Args:
        target, draft: seconds of a pass by its rows.
    """
    best, shape = 1.0 / target(1), Shape(((),))
    for depth, tokens in enumerate(programme.tokens):
        for n in np.flatnonzero(np.isfinite(tokens)).tolist():
            seconds = target(n) + depth * draft(1)  # at least
            if tokens[n] <= best * seconds:
                continue
            found = programme.tree(n, depth)
            seconds = target(n) + sum(draft(len(layer)) for layer in found.layers())
            if tokens[n] > best * seconds:
                best, shape = tokens[n] / seconds, found
    return shape
