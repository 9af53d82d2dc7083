"""One model's cache with a token tree on top: passes, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyspec_edge.errors import DyspecError
from dyspec_edge.native.batch import Batch
from dyspec_edge.native.library import (
    DECODE_FAILED,
    OUT_OF_SEQUENCES,
    BatchStruct,
    CacheStruct,
    Int32s,
    LlamaStruct,
    lib,
    pointer,
)
from dyspec_edge.native.tree import Tree


class DecodeFailed(Exception):
    """llama_decode returned something else than 0.

    Attributes:
        code: what it returned.
        num_rows: rows of the batch.
    """

    def __init__(self, code: int, num_rows: int) -> None:
        super().__init__(f"llama_decode of {num_rows} rows returned {code}")
        self.code, self.num_rows = code, num_rows


class SequenceCache:
    """A committed prefix in sequence 0 and a tree above it (dyspec.h: dyspec_cache).

    Args:
        functions: addresses of `LLAMA_FUNCTIONS`, in that order.
        context, memory: addresses of the llama_context and its memory.
        max_rows: of one pass.
        max_outputs: rows of one pass that may ask for logits.
        num_sequences: ids that there are.
        num_vocab: logits of a row.
        tree_capacity: nodes of the largest tree, the root included.

    Attributes:
        rows: uint64[tree_capacity], the address of each node's logits, float32[num_vocab]; 0 for
            a node that this step has not evaluated.
        num_past: length of the prefix.
    """

    def __init__(
        self,
        functions: Sequence[int],
        context: int,
        memory: int,
        *,
        max_rows: int,
        max_outputs: int,
        num_sequences: int,
        num_vocab: int,
        tree_capacity: int,
    ) -> None:
        batch = Batch(max_rows)
        ids = np.zeros((1 + max_outputs) * num_sequences, np.int32)
        ids[:num_sequences] = np.arange(num_sequences)
        offsets, copies = np.zeros(max_outputs + 1, np.int32), np.zeros(3 * max_outputs, np.int32)
        self._seq = np.full(tree_capacity, -1, np.int32)
        self.rows = np.zeros(tree_capacity, np.uint64)
        continued, row_of = np.zeros(tree_capacity, np.uint8), np.zeros(tree_capacity, np.int32)
        shared = np.zeros(num_sequences, np.int32)
        # What the pointers below point to lives as long as this object.
        self._arrays = (batch, ids, offsets, copies, continued, row_of, shared)
        self._sizes = np.zeros(0, np.int32)
        self.struct = CacheStruct(
            llama=LlamaStruct(*functions),
            context=context,
            memory=memory,
            batch=BatchStruct.from_buffer_copy(batch.struct),
            ids=ids.ctypes.data,
            offsets=offsets.ctypes.data,
            copies=copies.ctypes.data,
            seq=self._seq.ctypes.data,
            continued=continued.ctypes.data,
            row=self.rows.ctypes.data,
            row_of=row_of.ctypes.data,
            shared=shared.ctypes.data,
            max_rows=max_rows,
            max_outputs=max_outputs,
            tree_capacity=tree_capacity,
            n_seq=num_sequences,
            n_vocab=num_vocab,
            n_used=1,
        )

    @property
    def num_past(self) -> int:
        """Length of the prefix; it is the caller's to set after passes of his own."""
        return int(self.struct.n_past)

    @num_past.setter
    def num_past(self, length: int) -> None:
        self.struct.n_past = length

    @property
    def has_tree(self) -> bool:
        """Whether nodes were evaluated that are neither committed nor forgotten."""
        return bool(self.struct.n_seen)

    def pad_to(self, sizes: Sequence[int]) -> None:
        """From now on the rows of a pass are filled up to the next of `sizes`; empty: never."""
        self._sizes = np.array(sorted(sizes), np.int32)
        self.struct.sizes, self.struct.n_sizes = self._sizes.ctypes.data, len(self._sizes)

    def evaluate(self, tree: Tree, nodes: Int32s, unread: Int32s) -> int:
        """One pass over `nodes`; `rows` gives their logits until the next one.

        Args:
            nodes: int32[n]; parents before children; the first call of a step starts with 0.
            unread: int32[m], tokens to commit first.

        Returns:
            A code for `check`.
        """
        code: int = lib.dyspec_evaluate(
            self.struct,
            tree.struct,
            pointer(nodes, np.int32, len(nodes)),
            len(nodes),
            pointer(unread, np.int32, len(unread)),
            len(unread),
        )
        return code

    def check(self, code: int, num_nodes: int) -> None:
        """Raise what a negative code of a pass over `num_nodes` nodes means.

        Raises:
            DyspecError: more leaves than sequence ids.
            DecodeFailed: all cells from `num_past` on are to be removed.
            ValueError: an order that is not allowed, or too many nodes.
        """
        if code >= 0:
            return
        if code == OUT_OF_SEQUENCES:
            raise DyspecError(
                f"the tree of {num_nodes} rows needs more leaves than the {self.struct.n_seq} "
                "sequence ids of the context; use a smaller tree"
            )
        if code == DECODE_FAILED:
            raise DecodeFailed(int(self.struct.decode_code), int(self.struct.batch.n_tokens))
        raise ValueError(f"{num_nodes} nodes cannot be evaluated in this order")

    def commit(self, path: Int32s) -> int:
        """Keep the evaluated part of `path`, drop and forget the rest of the tree.

        Returns:
            The number of nodes of `path` that are part of the prefix now.
        """
        nodes = pointer(path, np.int32, len(path))
        kept: int = lib.dyspec_commit(self.struct, nodes, len(path))
        return kept

    def forget(self, length: int) -> None:
        """Forget the tree, whose cells are gone, and all of the prefix beyond `length`."""
        lib.dyspec_forget(self.struct, length)
