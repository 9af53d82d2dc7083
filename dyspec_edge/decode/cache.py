"""One model's KV cache as the step loop sees it: a committed prefix and a token tree on top.

llama.cpp lets row i see cell j if j belongs to i's first sequence id and stands no later.  So
the sets of ids are the tree mask.  Sequence 0 holds the committed prefix; another id shares it
as far as it has been needed, and catches up when the tree takes it:

    positions   0 .. n-1       n         n+1      n+2
    ids         0              {0,1,2}   {0}      {0}      first child goes on with its parent's id
                (1, 2 share)   (root)    {1, 2}   {1}      a later sibling takes a fresh id
                                                  {2}

The target evaluates root and tree in one pass, a draft layer by layer; both are `evaluate`, in
native code (native/src/cache.cpp).  This module knows positions and ids; it must not know
probabilities or why a node exists.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import Cancelled
from dyspec_edge.llama import UBATCH, Batch, Context

NOTHING = np.zeros(0, np.int32)


class TreeCache:
    """Prefix and tree of one context.

    Args:
        context: owned from now on; `close` closes it.
        tree_capacity: nodes of the largest tree, the root included.

    Attributes:
        tokens: ids of the committed prefix, one per position.
        prefill_seconds: running total of `prefill`.
    """

    def __init__(self, context: Context, tree_capacity: int) -> None:
        self.context = context
        self.tree_capacity = tree_capacity
        self.tokens: list[int] = []
        self.prefill_seconds = 0.0
        self._cells = context.sequence_cache(tree_capacity)
        self._batch = Batch(context.max_rows)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Make `tokens` the committed prefix, evaluating only what is not there yet.

        Returns:
            The number of tokens that were in the cache already.

        Raises:
            Cancelled: the context's abort flag was set; whole chunks that were read are kept.
            DecodeError: llama.cpp failed; the prefix is what it was able to read.
        """
        reused = self.rewind(common_prefix(self.tokens, tokens))
        while len(self.tokens) < len(tokens):
            done = len(self.tokens)
            if on_progress is not None:
                on_progress(done - reused, len(tokens) - reused)
            piece = tokens[done : done + UBATCH]
            if self.context.abort_flag.is_set:  # on a GPU nobody looks at it inside a pass
                raise Cancelled("stopped")
            started = time.perf_counter()
            self._batch.clear()
            self._batch.add(piece, done, output=False)
            self._decode(done)
            self.tokens.extend(piece)
            self._cells.num_past = len(self.tokens)
            self.prefill_seconds += time.perf_counter() - started
        if on_progress is not None and len(tokens) > reused:
            on_progress(len(tokens) - reused, len(tokens) - reused)
        return reused

    def rewind(self, length: int) -> int:
        """Keep the first `length` committed tokens and return how many are left.

        A model whose state cannot be cut (a recurrent one) forgets everything instead.
        """
        # An interrupt may have come when native code had committed what nobody has noted yet.
        if length < max(len(self.tokens), self._cells.num_past) or self._cells.has_tree:
            if not self.context.seq_rm(-1, min(length, len(self.tokens)), -1):
                self.clear()
            del self.tokens[length:]
            self._cells.forget(len(self.tokens))
        return len(self.tokens)

    def clear(self) -> None:
        """Forget everything."""
        self.context.clear()
        self.tokens.clear()
        self._cells.forget(0)

    def evaluate(
        self, tree: TokenTree, nodes: npt.NDArray[np.int32], unread: Sequence[int] = ()
    ) -> None:
        """One pass over `nodes`, whose logits `rows` then gives.

        Args:
            nodes: int32[n], parents before children; a node's parent was evaluated in this step
                or stands earlier in `nodes`; the first call of a step starts with the root, 0.
            unread: tokens to commit before the root.

        Raises:
            DyspecError: more leaves than sequence ids.
            Cancelled, DecodeError: the cache is back at the committed prefix.
        """
        self.context.require_outputs(len(nodes))
        code = self._cells.evaluate(tree, nodes, np.array(unread, np.int32) if unread else NOTHING)
        self.hold(unread)
        if code < 0:
            self.check(code, len(nodes))

    @property
    def address(self) -> int:
        """Of the dyspec_cache; valid as long as this object lives."""
        return ctypes.addressof(self._cells.struct)

    def verification(
        self, draft: TreeCache | None, sampler: native.TargetSampler, tree: TokenTree
    ) -> native.Verification:
        """Passes of a target over `tree` that go on to what both caches keep.

        `check` a negative code; let both `hold` what they kept.
        """
        cells = draft._cells if draft is not None else None
        return native.Verification(self._cells, cells, sampler, tree)

    def hold(self, tokens: Sequence[int]) -> None:
        """Take note of those first ones of `tokens` that native code has committed."""
        self.tokens += tokens[: self._cells.struct.n_past - len(self.tokens)]

    def check(self, code: int, num_nodes: int) -> None:
        """Raise what the negative code of a pass means.

        Raises:
            DyspecError, Cancelled, DecodeError: as `evaluate`; the tree is gone.
        """
        try:
            self._cells.check(code, num_nodes)
        except native.DecodeFailed as failure:
            self._roll_back(len(self.tokens))
            raise self.context.failure(failure.code, failure.num_rows) from None
        except Exception:
            self._roll_back(len(self.tokens))
            raise

    @property
    def rows(self) -> npt.NDArray[np.uint64]:
        """uint64[tree_capacity], by node the address of float32[num_vocab] logits.

        0 for a node that this step has not evaluated.  Valid until the next `evaluate`.
        """
        return self._cells.rows

    @property
    def decode_seconds(self) -> float:
        """Running total of passes over trees."""
        return float(self._cells.struct.decode_seconds)

    @property
    def sequence_seconds(self) -> float:
        """Running total of copying and removing sequence ids; not part of `decode_seconds`."""
        return float(self._cells.struct.sequence_seconds)

    @property
    def num_passes(self) -> int:
        """Passes over trees."""
        return int(self._cells.struct.n_passes)

    @property
    def num_rows(self) -> int:
        """Their rows, padding included."""
        return int(self._cells.struct.n_rows)

    def pad_to(self, sizes: Sequence[int]) -> None:
        """From now on the rows of a pass are filled up to the next of `sizes`."""
        self._cells.pad_to(sizes)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> int:
        """Keep the evaluated part of `path` (from the root down) and drop the rest of the tree.

        Only cells of the tree are touched.

        Returns:
            The number of nodes of `path` that are now part of the prefix.
        """
        kept = self._cells.commit(np.array(path, np.int32))
        self.hold([tree.token.item(node) for node in path])
        return kept

    def time_pass(self, num_rows: int) -> float:
        """Seconds of one pass over `num_rows` rows after the prefix; the cache stays as it was."""
        first = len(self.tokens)
        self._batch.clear()
        read = max(0, num_rows - self.context.num_outputs)  # rows that only a prompt has
        self._batch.add([0] * read, first, output=False)
        self._batch.add([0] * (num_rows - read), first + read, output=True)
        started = time.perf_counter()
        self._decode(first)
        seconds = time.perf_counter() - started
        if not self.context.seq_rm(-1, first, -1):
            self.clear()
        return seconds

    def close(self) -> None:
        """Close the context.  Idempotent."""
        self.context.close()

    def _decode(self, first: int) -> None:
        try:
            self.context.decode(self._batch)
        except Exception:
            self._roll_back(first)
            raise

    def _roll_back(self, first: int) -> None:
        # llama.cpp itself rolls back only the first id of each row.
        if not self.context.seq_rm(-1, first, -1):
            self.clear()
        self._cells.forget(first)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading ids that two sequences share."""
    n = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(different[0]) if len(different) else n
