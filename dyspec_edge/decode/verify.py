"""The two exact verifiers: which path of a drafted tree the target agrees with.

`match` draws the target's own token at each node and goes down while a child equals it.
`residual` (multi-round rejection) tests the children against the target's distribution one after
another; how they were drawn, with or without replacement, is the policy's to say.  Both emit at
least one token a step: the one below the last accepted node, the *bonus token*.  Nothing here
knows who drafted the tree.

The end of a step, `verify`, is the target's pass, the walk, and the commit of what it reached;
`match` does it in one native call.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from ctypes import c_double, c_int32
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.native import lib, pointer

Rows = npt.NDArray[np.uint64]
"""By node, the address of the target's logits float32[num_vocab]; 0 if they were not asked for."""


class Walk(NamedTuple):
    """What the target agrees with.

    Attributes:
        path: the accepted nodes that are to be committed, the root first.
        tokens: what is emitted; tokens[i] stands below path[i].
        num_accepted: those that the target found in the tree.
    """

    path: list[int]
    tokens: list[int]
    num_accepted: int


class Verified(NamedTuple):
    """How a tree was checked.

    Attributes:
        path, tokens, num_accepted: as in `Walk`; the target holds `path` now.
        draw_seconds: of drawing the tokens, which plain decoding does as well.
    """

    path: list[int]
    tokens: list[int]
    num_accepted: int
    draw_seconds: float


class Verifier(ABC):
    """What the step loop asks of a verifier."""

    name: str

    def verify(
        self,
        target: Cache,
        drafter: Drafter,  # noqa: ARG002 (its cache is committed by itself here)
        tree: TokenTree,
        nodes: npt.NDArray[np.int32],
        sampler: Sampler,
        index: int,
    ) -> Verified:
        """Let the target check `nodes`, and commit what it agrees with.

        `drafter.commit` has to follow.

        Args:
            target: what the target has read.
            drafter: whose `shared_cache` may be committed as well.
            tree: grown from a root that the target has not read.
            nodes: int32[n], as `Cache.evaluate` takes them.
            sampler, index: as `walk` takes them.

        Raises:
            DyspecError: a row of logits holds no finite value.
            Cancelled, DecodeError: the caches are as they were.
        """
        target.evaluate(tree, nodes)
        started = time.perf_counter()
        walk = self.walk(tree, target.rows, sampler, index)
        draw_seconds = time.perf_counter() - started
        target.commit(tree, walk.path)
        return Verified(*walk, draw_seconds)

    def walk(self, tree: TokenTree, rows: Rows, sampler: Sampler, index: int) -> Walk:
        """Walk down from the root as long as the target accepts a child.

        Args:
            tree: evaluated by the target.
            rows: uint64[capacity of the tree].
            sampler: draws; every emitted token is accepted into it.
            index: index in the reply of the token below the root.
        """
        path, tokens = [0], list[int]()
        while True:
            node = path[-1]
            child, token = self.choose(tree, node, int(rows[node]), sampler, index + len(tokens))
            sampler.accept([token])
            tokens.append(token)
            is_checked = child >= 0 and rows[child] != 0
            # A terminal node is accepted, but nothing is emitted below it: it is not committed.
            if not is_checked or tree.terminal[child]:
                return Walk(path, tokens, len(path) - 1 + int(is_checked))
            path.append(child)

    @abstractmethod
    def choose(
        self, tree: TokenTree, node: int, row_address: int, sampler: Sampler, index: int
    ) -> tuple[int, int]:
        """The child of `node` that is accepted, or -1, and the token that is emitted below it.

        Args:
            row_address: of the target's logits at `node`.
            index: of the token in the reply.
        """


class MatchVerifier(Verifier):
    """The text is what plain decoding with the same seed gives.

    Args:
        in_parts: the step goes the way that `Verifier` shows instead of through one native call:
            for tests, and for targets that are no native cache.
    """

    name = "match"

    def __init__(self, *, in_parts: bool = False) -> None:
        self._in_parts = in_parts
        self._out = np.zeros((2, 0), np.int32)  # the path, and what was emitted below its nodes
        self._addresses: tuple[int, ...] = ()
        self._num_accepted, self._draw_seconds = c_int32(), c_double()

    def verify(
        self,
        target: Cache,
        drafter: Drafter,
        tree: TokenTree,
        nodes: npt.NDArray[np.int32],
        sampler: Sampler,
        index: int,
    ) -> Verified:
        """As `Verifier.verify`; after every pass Python finds the processor's caches empty."""
        if self._in_parts:
            return super().verify(target, drafter, tree, nodes, sampler, index)
        if self._out.shape[1] < tree.capacity:
            self._out = np.zeros((2, tree.capacity), np.int32)
            self._addresses = tuple(pointer(row, np.int32, tree.capacity) for row in self._out)
        draft = drafter.shared_cache
        code = lib.dyspec_verify(
            target.handle.address,
            draft.handle.address if draft is not None else None,
            sampler.handle.address,
            tree.struct,
            pointer(nodes, np.int32, len(nodes)),
            len(nodes),
            index,
            *self._addresses,
            self._num_accepted,
            self._draw_seconds,
        )
        if code < 0:
            sampler.check(code)
            target.check(code, len(nodes))
        path, tokens = self._out[:, :code].tolist()
        target.note_committed([tree.token.item(0), *tokens[:-1]])
        return Verified(path, tokens, self._num_accepted.value, self._draw_seconds.value)

    def choose(
        self, tree: TokenTree, node: int, row_address: int, sampler: Sampler, index: int
    ) -> tuple[int, int]:
        """As `Verifier.choose`: one draw, nothing else."""
        token = sampler.sample(row_address, index)
        return tree.child(node, token), token


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
    for place in tree.sampled.get(node, ()):
        yield int(place), mass / mass.sum()


class ResidualVerifier(Verifier):
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

    def choose(
        self, tree: TokenTree, node: int, row_address: int, sampler: Sampler, index: int
    ) -> tuple[int, int]:
        """As `Verifier.choose`."""
        ids, probs = sampler.distribution(row_address)
        child, left = self._test(tree, node, ids, probs, sampler, index)
        return child, int(tree.token[child]) if child >= 0 else sampler.pick(ids, left, index)

    def _test(
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
