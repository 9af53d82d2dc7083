"""The two exact verifiers: which path of a drafted tree the target agrees with.

`match` draws the target's own token at each node and goes down while a child equals it.
`residual` (Algorithm 3 of the DySpec paper, multi-round rejection) tests the children against
the target's distribution one after another.  Both emit at least one token a step: the one below
the last accepted node, the *bonus token*.  Nothing here knows who drafted the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.sampling import Sampler
from dyspec_edge.tree import TokenTree

Row = Callable[[int], int]
"""The address of a node's target logits, float32[num_vocab]; 0 if they were not asked for."""


class Verifier(Protocol):
    """What the step loop asks of a verifier."""

    name: str

    def walk(
        self, tree: TokenTree, row: Row, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """Walk down from the root.

        Args:
            tree: evaluated by the target.
            row: gives the logits of a node.
            sampler: draws; every emitted token is accepted into it.
            index: index in the reply of the token below the root.

        Returns:
            The accepted path (node indices, the root first) and the bonus token; when the path
            ends in a terminal node, the bonus token is that node's own and the node is left out.
        """
        ...


class MatchVerifier:
    """The text is what plain decoding with the same seed gives."""

    name = "match"

    def walk(
        self, tree: TokenTree, row: Row, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """As `Verifier.walk`: one draw per emitted token, nothing else."""
        path = [0]
        while True:
            token = sampler.draw(row(path[-1]), index + len(path) - 1)
            sampler.accept(token)
            child = tree.child(path[-1], token)
            if child < 0 or not row(child) or tree.terminal[child]:
                return path, token
            path.append(child)


class ResidualVerifier:
    """The text follows the target's distribution; children must have been drawn from the draft.

    A node's children y1, y2, ... were drawn from its candidates' distribution D without
    replacement.  With R = P and Q = D: accept y with probability min(1, R[y] / Q[y]), else
    R = normalise(max(R - Q, 0)), Q without y, renormalised, next child.  No child left: draw the
    bonus token from R.
    """

    name = "residual"

    def walk(
        self, tree: TokenTree, row: Row, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """As `Verifier.walk`."""
        path = [0]
        while True:
            node, position = path[-1], index + len(path) - 1
            ids, probs = sampler.distribution(row(node))
            child, left = self._choose(tree, node, ids, probs, sampler, position)
            token = int(tree.token[child]) if child >= 0 else sampler.pick(ids, left, position)
            sampler.accept(token)
            if child < 0 or tree.terminal[child]:
                return path, token
            path.append(child)

    @staticmethod
    def _choose(
        tree: TokenTree,
        node: int,
        ids: npt.NDArray[np.int32],
        probs: npt.NDArray[np.float64],
        sampler: Sampler,
        position: int,
    ) -> tuple[int, npt.NDArray[np.float64]]:
        """The accepted child or -1, and what is left of the target's distribution."""
        children = tree.children(node)
        if not children:
            return -1, probs
        num = int(tree.num_candidates[node])
        drafted = tree.candidate_ids[node, :num]
        mass = tree.candidate_probs[node, :num].astype(np.float64)
        mass /= mass.sum()
        # Where the draft's candidates stand among the target's; len(ids) is "nowhere".
        place = np.searchsorted(ids, drafted)
        place[place < len(ids)] = np.where(
            ids[place[place < len(ids)]] == drafted[place < len(ids)],
            place[place < len(ids)],
            len(ids),
        )
        known = place < len(ids)
        left = probs.copy()
        for rank, child in enumerate(children):  # child number r is candidate number r
            total = mass[rank:].sum()
            share = mass[rank] / total if total > 0 else 0.0
            wanted = left[place[rank]] if known[rank] else 0.0
            if wanted > 0 and sampler.chance(position, rank, int(drafted[rank])) * share < wanted:
                return child, left
            if total > 0:
                rest = known & (np.arange(num) >= rank)
                left[place[rest]] = np.maximum(left[place[rest]] - mass[rest] / total, 0.0)
            if left.sum() <= 0:  # rounding: the draft equals the target and was still refused
                left = probs.copy()
            left /= left.sum()
        return -1, left
