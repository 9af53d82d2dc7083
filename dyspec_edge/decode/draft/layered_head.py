"""Candidates from a multi-token-prediction head of several layers, one for each depth.

    depth        0          1          2
    layer 0      root                            its candidates stand at depth 1
    layer 1      root       c                    at depth 2
    layer 2      root       c          d         at depth 3, and there the tree ends
    state        h(b)       h0(root)   h1(c)     h: the target's, hk: what layer k has left

Each layer has a cache of its own, and reads the text, with the target's states, as the only layer
of another head does (head.py).  What stands above the nodes that it is asked about it reads with
them: so layer k's rows are those that llama.cpp's own programs give it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft.head import HeadDrafter
from dyspec_edge.decode.draft.interface import Drafter, DraftTotals
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.tree import TokenTree


class LayeredHeadDrafter(Drafter):
    """Drafts with the layers of a head, trees no deeper than their number.

    Args:
        caches: by layer, over contexts of their own; closed by `close`.
        options: as for a model.

    Attributes:
        layers: a drafter for each.
    """

    hears = True

    def __init__(self, caches: Sequence[Cache], **options: Any) -> None:
        self.layers = [HeadDrafter(cache, **options) for cache in caches]
        self.temperature = self.layers[0].temperature
        first, *others = (cache.handle.address for cache in caches)
        for address in others:
            native.lib.dyspec_cache_share_states(address, first)

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        """Take a new text, of which each layer keeps what it has in common with what was heard."""
        self.ranking = ranking
        for layer in self.layers:
            layer.begin(text, ranking)

    def hear(self, first: int, tokens: Sequence[int], states: npt.NDArray[np.float32]) -> None:
        """Keep what was not known yet, for every layer."""
        for layer in self.layers:
            layer.hear(first, tokens, states)

    def read(self, *, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read what was heard, layer by layer."""
        for layer in self.layers:
            layer.longest_read = self.longest_read
            layer.read(on_progress=on_progress)

    def start_step(self, text: Sequence[int], index: int) -> None:
        """Take the tokens before the root, and the reply index of the token below the root."""
        for layer in self.layers:
            layer.start_step(text, index)

    def propose(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        """Write the candidates of `nodes` into the tree, in one pass for each depth.

        Raises:
            Cancelled, DecodeError: the caches stay valid.
        """
        depths = tree.depth[nodes]
        for depth in np.unique(depths).tolist():
            asked = nodes[depths == depth]
            if depth < len(self.layers):
                self.layers[depth].propose(tree, asked)
            else:
                tree.num_candidates[asked] = 0

    def sample_children(self, tree: TokenTree, node: int, count: int) -> npt.NDArray[np.int32]:
        """Draw candidates of a node with replacement (Ranking.sample_children)."""
        return self.layers[0].sample_children(tree, node, count)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep the root in those layers that have read it; the rest is still to be heard."""
        for layer in self.layers:
            layer.commit(tree, path)

    def rewind(self, length: int) -> None:
        """Keep nothing beyond the first `length` tokens of the text."""
        for layer in self.layers:
            layer.rewind(length)

    @property
    def num_behind(self) -> int:
        """Tokens before the root that the first layer would have to read first."""
        return self.layers[0].num_behind

    @property
    def read_seconds(self) -> float:
        """Running total of reading tokens without evaluating any node."""
        return sum(layer.read_seconds for layer in self.layers)

    @property
    def totals(self) -> DraftTotals:
        """What the passes of all layers have cost so far."""
        parts = zip(*(layer.totals for layer in self.layers), strict=True)
        pass_seconds, rows_seconds, num_passes, num_rows = map(sum, parts)
        return DraftTotals(pass_seconds, rows_seconds, int(num_passes), int(num_rows))

    def passes(self) -> list[tuple[int, float]]:
        """Rows and seconds of this step's passes."""
        return [found for layer in self.layers for found in layer.passes()]

    def time_pass(self, num_rows: int) -> float:
        """Seconds of a pass of one layer over `num_rows` rows that leaves nothing."""
        return self.layers[0].time_pass(num_rows)

    def poll(self, flag: native.AbortFlag) -> None:
        """From now on stop a running pass as soon as possible once `flag` is set."""
        for layer in self.layers:
            layer.poll(flag)

    def close(self) -> None:
        """Give the cells back to their contexts.  Idempotent."""
        for layer in self.layers:
            layer.close()
