"""The token tree of one step, as a structure of arrays that Python and native code share.

    node      0 (root)      1        2        3        4
    token     "the"       " cat"   " dog"   " sat"   " ran"
    parent      -1          0        0        1        1
    depth        0          1        1        2        2

Parents stand before their children.  Beside every node stand the *candidates* that the draft
found for its children, in the order in which they are to be drawn.  The module knows token ids
and probabilities; it must not know models, caches or why a node was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge import native

NUM_CANDIDATES = 64
"""Most probable tokens kept of a row of a draft's logits."""


class TokenTree:
    """A root and the drafted tokens below it, in arrays that are reused from step to step.

    Args:
        capacity: nodes the arrays hold, the root included.
        num_candidates: candidates kept per node.

    Attributes:
        struct: what native code works on, the size included.
        token, parent, depth, num_children: int32[capacity].
        confidence: float32[capacity], the draft's probability of the node among its siblings.
        value: float64[capacity], the product of the confidences along the path; the root has 1.
        terminal: uint8[capacity], 1 where a node must not get children.
        candidate_ids, candidate_probs: int32 and float32 [capacity, num_candidates].
        num_candidates: int32[capacity]; -1 where the draft has not evaluated the node.
        num_forced: so many nodes behind the root are a chain without which no text fits a grammar.
        sampled: by node, where children were drawn with replacement (`Drafter.sample_children`):
            the places int32[n] of the draws among its candidates, in their order.  A token that
            came again is one child still.
    """

    def __init__(self, capacity: int, num_candidates: int) -> None:
        self.capacity = capacity
        self.token = np.zeros(capacity, np.int32)
        self.parent = np.full(capacity, -1, np.int32)
        self.depth = np.zeros(capacity, np.int32)
        self.num_children = np.zeros(capacity, np.int32)
        self.confidence = np.ones(capacity, np.float32)
        self.value = np.ones(capacity, np.float64)
        self.terminal = np.zeros(capacity, np.uint8)
        self.candidate_ids = np.zeros((capacity, num_candidates), np.int32)
        self.candidate_probs = np.zeros((capacity, num_candidates), np.float32)
        self.num_candidates = np.full(capacity, -1, np.int32)
        self.num_forced = 0
        self.sampled: dict[int, npt.NDArray[np.int32]] = {}
        self.struct = native.tree_struct(
            token=self.token,
            parent=self.parent,
            depth=self.depth,
            num_children=self.num_children,
            confidence=self.confidence,
            value=self.value,
            terminal=self.terminal,
            candidate_ids=self.candidate_ids,
            candidate_probs=self.candidate_probs,
            num_candidates=self.num_candidates,
        )
        self.reset(0)

    @property
    def size(self) -> int:
        """Nodes, the root included."""
        return int(self.struct.n_nodes)

    @property
    def num_drafted(self) -> int:
        """Nodes below the root."""
        return self.size - 1

    @property
    def num_leaves(self) -> int:
        """Nodes without children."""
        return int(np.count_nonzero(self.num_children[: self.size] == 0))

    def reset(self, root: int) -> None:
        """Start again with the token `root` alone."""
        self.num_children[0] = 0
        self.terminal[0] = 0
        self.num_candidates[0] = -1
        self.num_forced = 0
        self.sampled.clear()
        self.token[0] = root
        self.struct.n_nodes = 1

    def add(self, parent: int, token: int, confidence: float, *, terminal: bool = False) -> int:
        """Append a child and return its index.

        Raises:
            IndexError: the arrays are full.
        """
        node = self.size
        if node == self.capacity:
            raise IndexError(f"a tree of {self.capacity} nodes is full")
        self.token[node] = token
        self.parent[node] = parent
        self.depth[node] = self.depth[parent] + 1
        self.confidence[node] = confidence
        self.value[node] = self.value[parent] * confidence
        self.num_children[node] = 0
        self.terminal[node] = terminal
        self.num_candidates[node] = -1
        self.num_children[parent] += 1
        self.struct.n_nodes = node + 1
        return node

    def add_chain(self, tokens: Sequence[int], confidence: float) -> None:
        """Append tokens below the root, one below the other."""
        node = 0
        for token in tokens:
            node = self.add(node, token, confidence)

    def children(self, node: int) -> list[int]:
        """The children of `node` in the order in which they were drawn."""
        if not self.num_children[node]:
            return []
        found = np.flatnonzero(self.parent[node + 1 : self.size] == node)
        return [int(i) + node + 1 for i in found]

    def child(self, node: int, token: int) -> int:
        """The child of `node` that holds `token`, or -1."""
        return next((c for c in self.children(node) if self.token[c] == token), -1)

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = int(self.parent[node])
        return nodes[::-1]
