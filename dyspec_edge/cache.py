"""One model's KV cache as the step loop sees it: a committed prefix and a token tree on top.

llama.cpp lets row i see cell j if j belongs to i's first sequence id and stands no later.  So
the sets of ids are the tree mask.  Every committed token carries all S ids (standing
membership), hence all sequences always share the prefix and no step copies it:

    positions   0 .. n-1       n        n+1      n+2
    ids         all S          all S    {0}      {0}      first child goes on with its parent's id
                (committed)    (root)   {1, 2}   {1}      a later sibling takes a fresh id
                                                 {2}

The target evaluates root and tree in one pass, a draft layer by layer; both are `evaluate`.
This module knows positions and ids; it must not know probabilities or why a node exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.errors import Cancelled
from dyspec_edge.llama import UBATCH, Batch, Context
from dyspec_edge.tree import TokenTree


class TreeCache:
    """Prefix and tree of one context.

    Args:
        context: owned from now on; `close` closes it.
        tree_capacity: nodes of the largest tree, the root included.

    Attributes:
        tokens: ids of the committed prefix, one per position.
        decode_seconds, num_passes, num_rows: running totals of `evaluate`.
        prefill_seconds: running total of `prefill`.
    """

    def __init__(self, context: Context, tree_capacity: int) -> None:
        self.context = context
        self.num_sequences = context.num_sequences
        self.tokens: list[int] = []
        self.decode_seconds = 0.0
        self.prefill_seconds = 0.0
        self.num_passes = 0
        self.num_rows = 0
        self._batch = Batch(context.max_rows, context.num_sequences)
        self._seq = np.full(tree_capacity, -1, np.int32)
        self._continued = np.zeros(tree_capacity, np.uint8)
        self._row = np.zeros(tree_capacity, np.uint64)
        self._num_used = 1
        self._num_seen = 0
        self._row_bytes = 4 * context.model.num_vocab

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
            self._batch.add_shared(piece, done, self.num_sequences, output=False)
            self._decode(done)
            self.tokens.extend(piece)
            self.prefill_seconds += time.perf_counter() - started
        if on_progress is not None and len(tokens) > reused:
            on_progress(len(tokens) - reused, len(tokens) - reused)
        return reused

    def rewind(self, length: int) -> int:
        """Keep the first `length` committed tokens and return how many are left.

        A model whose state cannot be cut (a recurrent one) forgets everything instead.
        """
        if length < len(self.tokens) or self._num_seen:
            if not self.context.seq_rm(-1, min(length, len(self.tokens)), -1):
                self.clear()
            del self.tokens[length:]
            self._forget_tree()
        return len(self.tokens)

    def clear(self) -> None:
        """Forget everything."""
        self.context.clear()
        self.tokens.clear()
        self._forget_tree()

    def evaluate(
        self, tree: TokenTree, nodes: npt.NDArray[np.int32], unread: Sequence[int] = ()
    ) -> None:
        """One pass over `nodes`, whose logits rows `row` then gives.

        Args:
            nodes: int32[n], parents before children; a node's parent was evaluated in this step
                or stands earlier in `nodes`; the first call of a step starts with the root, 0.
            unread: tokens to commit in the same pass, before the root.

        Raises:
            DyspecError: more leaves than sequence ids.
            Cancelled, DecodeError: the cache is back at the committed prefix.
        """
        offsets, ids, copies, self._num_used = native.place(
            nodes,
            tree.parent,
            tree.depth,
            self._seq,
            self._continued,
            self._num_used,
            self.num_sequences,
        )
        self._num_seen = max(self._num_seen, int(nodes.max()) + 1)
        first = len(self.tokens)
        root_pos = first + len(unread)
        batch = self._batch
        try:
            for source, fresh, depth in copies.tolist():
                self.context.seq_cp(source, fresh, root_pos + 1, root_pos + depth + 1)
            batch.clear()
            if unread:
                batch.add_shared(unread, first, self.num_sequences, output=False)
            positions = root_pos + tree.depth[nodes]
            batch.add(tree.token[nodes], positions, offsets, ids, output=True)
            started = time.perf_counter()
            self.context.decode(batch)
        except Exception:
            self._roll_back(first)
            raise
        self.decode_seconds += time.perf_counter() - started
        self.num_passes += 1
        self.num_rows += batch.size
        self.tokens.extend(unread)
        base = self.context.logits_address()
        self._row[nodes] = base + self._row_bytes * np.arange(len(nodes), dtype=np.uint64)

    def row(self, node: int) -> int:
        """Address of a node's float32[num_vocab] logits, 0 if this step has not evaluated it.

        Valid until the next `evaluate`.
        """
        return int(self._row[node])

    def rows(self, nodes: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
        """Addresses of the logits of several nodes."""
        return self._row[nodes]

    def commit(self, tree: TokenTree, path: Sequence[int]) -> int:
        """Keep the evaluated part of `path` (from the root down) and drop the rest of the tree.

        Only cells of the tree are touched.

        Returns:
            The number of nodes of `path` that are now part of the prefix.
        """
        kept = [node for node in path if self._seq[node] >= 0]
        context, root_pos = self.context, len(self.tokens)
        end = root_pos + len(kept)
        if kept:
            winner = int(self._seq[kept[-1]])
            for seq in range(self._num_used):
                if seq != winner:
                    context.seq_rm(seq, root_pos + 1, -1)
            context.seq_rm(winner, end, -1)
            if end > root_pos + 1:
                for seq in range(self.num_sequences):
                    if seq != winner:
                        context.seq_cp(winner, seq, root_pos + 1, end)
            self.tokens.extend(tree.token[kept].tolist())
        self._forget_tree()
        return len(kept)

    def time_pass(self, num_rows: int) -> float:
        """Seconds of one pass over `num_rows` rows after the prefix; the cache stays as it was."""
        first = len(self.tokens)
        self._batch.clear()
        self._batch.add_shared([0] * num_rows, first, self.num_sequences, output=True)
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
        self._forget_tree()

    def _forget_tree(self) -> None:
        self._seq[: self._num_seen] = -1
        self._row[: self._num_seen] = 0
        self._continued[: self._num_seen] = 0
        self._num_seen = 0
        self._num_used = 1


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading ids that two sequences share."""
    n = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(different[0]) if len(different) else n
