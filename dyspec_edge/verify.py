"""The two exact verifiers: which path of a drafted tree the target agrees with.

`match` draws the target's own token at each node and goes down while a child equals it.
`residual` (multi-round rejection) tests the children against the target's distribution one after
another; how they were drawn, with or without replacement, is the policy's to say.  Both emit at
least one token a step: the one below the last accepted node, the *bonus token*.  Nothing here
knows who drafted the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.sampling import Sampler
from dyspec_edge.tree import TokenTree

Rows = npt.NDArray[np.uint64]
"""By node, the address of the target's logits float32[num_vocab]; 0 if they were not asked for."""


class Verifier(Protocol):
    """What the step loop asks of a verifier."""

    name: str

    def walk(
        self, tree: TokenTree, rows: Rows, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """Walk down from the root.

        Args:
            tree: evaluated by the target.
            rows: uint64[capacity of the tree].
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
        self, tree: TokenTree, rows: Rows, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """As `Verifier.walk`: one draw per emitted token, nothing else."""
        return sampler.match(tree, rows, index)


Rounds = Iterator[tuple[int, npt.NDArray[np.float64]]]
"""The drafted tokens of a node in the order of drawing: the place of each among the candidates, and
the probabilities float64[K] of all candidates when it was drawn."""


def without_replacement(tree: TokenTree, node: int) -> Rounds:
    """DySpec's rounds: child r is candidate r, drawn when those before it could not come again."""
    num = max(0, int(tree.num_candidates[node]))
    mass = tree.candidate_probs[node].astype(np.float64)
    mass[num:] = 0.0
    for rank in range(min(num, int(tree.num_children[node]))):
        yield rank, mass / mass.sum()
        mass[rank] = 0.0


def then_uniform(tree: TokenTree, node: int) -> Rounds:
    """Sequoia's rounds: when no candidate with a probability is left, uniformly from the others."""
    yield from without_replacement(tree, node)
    allowed = tree.candidate_ids[node] >= 0
    for rank in range(int(tree.num_candidates[node]), int(tree.num_children[node])):
        allowed[:rank] = False
        yield rank, allowed / allowed.sum()


def with_replacement(tree: TokenTree, node: int) -> Rounds:
    """SpecInfer's rounds: each time from all candidates; a token may come again."""
    mass = tree.candidate_probs[node].astype(np.float64)
    mass[max(0, int(tree.num_candidates[node])) :] = 0.0
    for place in tree.draws.get(node, ()):
        yield int(place), mass / mass.sum()


class ResidualVerifier:
    """The text follows the target's distribution; children must have been drawn from the draft.

    With R = P, the target's distribution, and for each round (y, Q) of a node: accept y with
    probability min(1, R[y] / Q[y]), else R = normalise(max(R - Q, 0)), next round.  No round left:
    draw the bonus token from R.  How Q goes on from round to round is all in which DySpec
    (Algorithm 3), Sequoia (Algorithm 2) and SpecInfer (Algorithm 2) differ.

    Args:
        rounds: how the children of a node were drawn.
    """

    name = "residual"

    def __init__(self, rounds: Callable[[TokenTree, int], Rounds] = without_replacement) -> None:
        self._rounds = rounds

    def walk(
        self, tree: TokenTree, rows: Rows, sampler: Sampler, index: int
    ) -> tuple[list[int], int]:
        """As `Verifier.walk`."""
        path = [0]
        while True:
            node, position = path[-1], index + len(path) - 1
            ids, probs = sampler.distribution(int(rows[node]))
            child, left = self._choose(tree, node, ids, probs, sampler, position)
            token = int(tree.token[child]) if child >= 0 else sampler.pick(ids, left, position)
            sampler.accept(token)
            if child < 0 or not rows[child] or tree.terminal[child]:
                return path, token
            path.append(child)

    def _choose(
        self,
        tree: TokenTree,
        node: int,
        ids: npt.NDArray[np.int32],
        probs: npt.NDArray[np.float64],
        sampler: Sampler,
        position: int,
    ) -> tuple[int, npt.NDArray[np.float64]]:
        """The accepted child or -1, and what is left of the target's distribution."""
        if not tree.num_children[node]:
            return -1, probs
        drafted = tree.candidate_ids[node]
        # Where the draft's candidates stand among the target's tokens, if they do.
        place = np.minimum(np.searchsorted(ids, drafted), len(ids) - 1)
        known = ids[place] == drafted
        left = probs.copy()
        for number, (y, share) in enumerate(self._rounds(tree, node)):
            token = int(drafted[y])
            wanted = left[place[y]] if known[y] else 0.0
            if wanted > 0 and sampler.chance(position, number, token) * share[y] < wanted:
                return tree.child(node, token), left
            drawable = known & (share > 0)
            left[place[drawable]] = np.maximum(left[place[drawable]] - share[drawable], 0.0)
            if left.sum() <= 0:  # rounding: the draft equals the target and was still refused
                left = probs.copy()
            left /= left.sum()
        return -1, left
