"""One model's KV cache as the step loop sees it: a committed prefix and a token tree on top.

llama.cpp lets row i see cell j if j belongs to i's first sequence id and stands no later.  So
the sets of ids are the tree mask.  A cache has a block of ids.  Their first one, here 0, holds the
committed prefix; another one shares it as far as it has been needed, and catches up when the tree
takes it:

    positions   0 .. n-1       n         n+1      n+2
    ids         0              {0,1,2}   {0}      {0}      first child goes on with its parent's id
                (1, 2 share)   (root)    {1, 2}   {1}      a later sibling takes a fresh id
                                                  {2}

A recurrent state cannot be cut: there the tree is a chain, the last tokens of a pass come off by
snapshots that llama.cpp keeps or by copies that are made within the step, and what lies further
back is read again from a saved copy of the state (native/src/state.cpp).

The target evaluates root and tree in one pass, a draft layer by layer; both are `evaluate`, in
native code (native/src/cache.cpp).  This module knows positions and ids; it must not know
probabilities or why a node exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int32

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import Cancelled, DyspecError
from dyspec_edge.llama import UBATCH, Context
from dyspec_edge.native import Handle, Int32s, StreamTotals, lib, pointer
from dyspec_edge.native.library import DECODE_FAILED, OUT_OF_SEQUENCES

NOTHING = np.zeros(0, np.int32)

NUM_COPIES = 4
"""Saved copies of a recurrent state that a cache keeps: of the last prompts."""

COPY_BEFORE = 16
"""Tokens before the end of a prompt at which its state is saved: how a reply begins (`<think>`) is
often told otherwise when it has become history."""


class Cache:
    """Prefix and tree in a block of a context's sequence ids.

    Several caches may share a context; they share its cells, but none touches those of another.

    Args:
        context: whoever opened it closes it, after this.
        tree_capacity: nodes of the largest tree, the root included.
        first_id: of the block.
        num_ids: leaves of the largest tree; None for all ids from the first on.

    Attributes:
        handle: the dyspec_cache.
        tokens: ids of the committed prefix, one per position.
        is_recurrent: trees are chains, of no more tokens than the context keeps snapshots if any.
        prefill_seconds: running total of `prefill`.

    Raises:
        ValueError: the context has not so many ids.
    """

    def __init__(
        self,
        context: Context,
        tree_capacity: int,
        *,
        first_id: int = 0,
        num_ids: int | None = None,
    ) -> None:
        self.num_ids = context.num_sequences - first_id if num_ids is None else num_ids
        if first_id < 0 or self.num_ids < 1 or first_id + self.num_ids > context.num_sequences:
            raise ValueError(
                f"{self.num_ids} sequence ids from {first_id} on: "
                f"the context has {context.num_sequences}"
            )
        self.is_recurrent = context.num_snapshots is not None
        if self.is_recurrent and self.num_ids > 1:
            raise ValueError(f"{self.num_ids} sequence ids: a recurrent state cannot branch")
        self.context = context
        self.first_id = first_id
        self.tree_capacity = tree_capacity
        self.tokens: list[int] = []
        self.prefill_seconds = 0.0
        self.handle: Handle = context.create_cache(tree_capacity, first_id, self.num_ids)
        self._rows = np.zeros(tree_capacity, np.uint64)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        on_progress: Callable[[int, int], None] | None = None,
        on_read: Callable[[int], None] | None = None,
    ) -> int:
        """Make `tokens` the committed prefix, evaluating only what is not there yet.

        Args:
            on_progress: (tokens read, tokens to read).
            on_read: called after each pass with the number of tokens that were there before.

        Returns:
            The number of tokens that were in the cache already.

        Raises:
            Cancelled: the context's abort flag was set; whole chunks that were read are kept, of a
                recurrent state what was saved.
            DecodeError: llama.cpp failed; the prefix is what it was able to read.
        """
        reused = self.rewind(common_prefix(self.tokens, tokens))
        copy_at = max(reused, len(tokens) - COPY_BEFORE) if self.is_recurrent else len(tokens)
        while True:
            done = len(self.tokens)
            if done == copy_at:
                lib.dyspec_cache_save(self.handle.address, NUM_COPIES)
            if done >= len(tokens):
                break
            end = min(done + UBATCH, copy_at if done < copy_at else len(tokens))
            if on_progress is not None:
                on_progress(done - reused, len(tokens) - reused)
            if self.context.abort_flag.is_set:  # on a GPU nobody looks at it inside a pass
                raise Cancelled("stopped")
            self.read(tokens[done:end])
            if on_read is not None:
                on_read(done)
        if on_progress is not None and len(tokens) > reused:
            on_progress(len(tokens) - reused, len(tokens) - reused)
        return reused

    def read(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the prefix, in one pass without logits.

        Raises:
            Cancelled, DecodeError: as `prefill`.
        """
        started = time.perf_counter()
        piece = np.array(tokens, np.int32)
        size = len(piece)
        code = lib.dyspec_cache_read(self.handle.address, pointer(piece, np.int32, size), size)
        if code < 0:
            self.check(code, size)
        self.note_committed(tokens)
        self.prefill_seconds += time.perf_counter() - started

    def set_states(self, states: npt.NDArray[np.float32]) -> None:
        """Of a head: the hidden states float32[n, num_embd] that stand before the next n tokens."""
        size = len(states) * self.context.model.num_embd
        address = pointer(states, np.float32, size)
        lib.dyspec_cache_set_states(self.handle.address, address, len(states))

    def rewind(self, length: int) -> int:
        """Drop the tree, keep the first `length` committed tokens; return how many are left.

        A recurrent state that cannot be cut there becomes what it was when it was last saved.
        """
        # An interrupt may have come when native code had committed what nobody has noted yet.
        left: int = lib.dyspec_cache_rewind(self.handle.address, min(length, len(self.tokens)))
        del self.tokens[left:]
        return left

    def evaluate(self, tree: TokenTree, nodes: Int32s, unread: Sequence[int] = ()) -> None:
        """One pass over `nodes`, whose logits `rows` then gives.

        Args:
            nodes: int32[n], parents before children; a node's parent was evaluated in this step
                or stands earlier in `nodes`; the first call of a step starts with the root, 0.
            unread: tokens to commit before the root.

        Raises:
            DyspecError: more leaves than sequence ids.
            Cancelled, DecodeError: the cache is back at the committed prefix, or where a recurrent
                state was saved before.
        """
        self.context.require_outputs(len(nodes))
        first = np.array(unread, np.int32) if unread else NOTHING
        code = lib.dyspec_cache_evaluate(
            self.handle.address,
            tree.struct,
            pointer(nodes, np.int32, len(nodes)),
            len(nodes),
            pointer(first, np.int32, len(first)),
            len(first),
        )
        self.note_committed(unread)
        if code < 0:
            self.check(code, len(nodes))

    def note_committed(self, tokens: Sequence[int]) -> None:
        """Take note of those first ones of `tokens` that native code has committed."""
        length: int = lib.dyspec_cache_length(self.handle.address)
        self.tokens += tokens[: max(0, length - len(self.tokens))]

    def check(self, code: int, num_nodes: int) -> None:
        """Raise what the negative code of a pass over `num_nodes` nodes means; the tree is gone.

        Raises:
            DyspecError, Cancelled, DecodeError: as `evaluate`.
            ValueError: an order that is not allowed, or too many nodes.
        """
        self.rewind(len(self.tokens))
        if code == DECODE_FAILED:
            num_rows = c_int32()
            code = lib.dyspec_cache_failure(self.handle.address, num_rows)
            raise self.context.failure(code, num_rows.value)
        if code == OUT_OF_SEQUENCES:
            raise DyspecError(
                f"the tree of {num_nodes} rows needs more leaves than the {self.num_ids} "
                "sequence ids of the cache; use a smaller tree"
            )
        raise ValueError(f"{num_nodes} nodes cannot be evaluated in this order")

    @property
    def rows(self) -> npt.NDArray[np.uint64]:
        """uint64[tree_capacity], by node the address of float32[num_vocab] logits.

        0 for a node that this step has not evaluated.  Valid until the context's next pass.
        """
        lib.dyspec_cache_rows(self.handle.address, pointer(self._rows, np.uint64, len(self._rows)))
        return self._rows

    @property
    def decode_seconds(self) -> float:
        """Running total of passes over trees."""
        return float(lib.dyspec_cache_decode_seconds(self.handle.address))

    @property
    def sequence_seconds(self) -> float:
        """Running total of copying and removing sequence ids; not part of `decode_seconds`."""
        return float(lib.dyspec_cache_sequence_seconds(self.handle.address))

    @property
    def num_passes(self) -> int:
        """Passes over trees."""
        return int(lib.dyspec_cache_n_passes(self.handle.address))

    @property
    def num_rows(self) -> int:
        """Their rows, padding included."""
        return int(lib.dyspec_cache_n_rows(self.handle.address))

    @property
    def stream_totals(self) -> StreamTotals:
        """What has been read of the model's weights for passes, by this cache or another one."""
        stream = self.context.model.weight_stream
        return StreamTotals() if stream is None else stream.totals()

    def pad_to(self, sizes: Sequence[int]) -> None:
        """From now on the rows of a pass are filled up to the next of `sizes`; empty: never."""
        ascending = np.array(sorted(sizes), np.int32)
        n = len(ascending)
        lib.dyspec_cache_pad_to(self.handle.address, pointer(ascending, np.int32, n), n)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> int:
        """Keep the evaluated part of `path` (from the root down) and drop the rest of the tree.

        Only cells of the tree are touched.  Takes note alone where native code has done it.

        Returns:
            The number of nodes of `path` that are now part of the prefix.
        """
        before, item = len(self.tokens), tree.token.item
        if lib.dyspec_cache_length(self.handle.address) == before:
            nodes = np.array(path, np.int32)
            lib.dyspec_cache_commit(
                self.handle.address, pointer(nodes, np.int32, len(nodes)), len(nodes)
            )
        self.note_committed([item(node) for node in path])
        return len(self.tokens) - before

    def time_pass(self, num_rows: int) -> float:
        """Seconds of one pass over `num_rows` rows after the prefix; the cache stays as it was."""
        seconds = c_double()
        code: int = lib.dyspec_cache_time_pass(self.handle.address, num_rows, seconds)
        if code < 0:
            self.check(code, num_rows)
        del self.tokens[code:]
        return seconds.value

    def close(self) -> None:
        """Give the cells back to the context, unless that was closed.  Idempotent."""
        if self.handle.is_open:
            self.rewind(0)
        self.handle.close()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading ids that two sequences share."""
    n = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(different[0]) if len(different) else n
