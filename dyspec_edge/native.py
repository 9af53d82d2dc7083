"""The door to libdyspec, the C++ helper for what is hot in a step (native/include/dyspec.h).

Thin typed wrappers: arrays and addresses pass through without copies, negative codes become
errors.  An *address* is that of memory which the caller keeps alive, as llama.cpp's logits.
Arrays must be C-contiguous and of the dtype that is named; others raise TypeError.  This module
must not know models, policies or what a token means.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int8, c_int32, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as address_t
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import DyspecError

Int32s = npt.NDArray[np.int32]

ABI_VERSION = 1
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ

NOT_FINITE = -2
OUT_OF_SEQUENCES = -3
FIRST_BAD_ROW = -1000


class Placement(NamedTuple):
    """Sequence ids of the rows of one batch.

    Attributes:
        offsets: int32[n + 1]; row i carries ids[offsets[i]:offsets[i + 1]], its own one first.
        ids: int32[offsets[n]].
        copies: int32[m, 3] of (source id, new id, depth): before the batch is decoded, the cells
            at depths 1..depth of the source are to be given to the new id.
        num_used: ids 0..num_used-1 are taken now.
    """

    offsets: Int32s
    ids: Int32s
    copies: Int32s
    num_used: int


class TreeArrays(Protocol):
    """What an expansion grows: arrays for `capacity` nodes (tree.TokenTree has them).

    token, parent, depth, num_children and num_candidates are int32[capacity], confidence
    float32[capacity], value float64[capacity], terminal uint8[capacity]; candidate_ids int32 and
    candidate_probs float32 are [capacity, K]; size_array is int32[1].
    """

    token: Int32s
    parent: Int32s
    depth: Int32s
    num_children: Int32s
    confidence: npt.NDArray[np.float32]
    value: npt.NDArray[np.float64]
    terminal: npt.NDArray[np.uint8]
    candidate_ids: Int32s
    candidate_probs: npt.NDArray[np.float32]
    num_candidates: Int32s

    @property
    def size_array(self) -> Int32s: ...


class _ExpansionStruct(ctypes.Structure):
    # Field by field as dyspec_expansion in dyspec.h.
    _fields_ = (
        *((name, address_t) for name in ("token", "parent", "depth", "n_children")),
        *((name, address_t) for name in ("confidence", "value", "terminal", "n_nodes")),
        *((name, address_t) for name in ("cand_ids", "cand_probs", "n_cand")),
        *((name, address_t) for name in ("remaining", "heap", "scratch", "eog")),
        ("threshold", c_double),
        *((name, c_int32) for name in ("n_eog", "capacity", "n_ranks", "max_nodes")),
        *((name, c_int32) for name in ("max_leaves", "max_depth", "by_layer")),
        *((name, c_int32) for name in ("n_leaves", "heap_size")),
    )


class _BatchStruct(ctypes.Structure):
    # Field by field as dyspec_batch in dyspec.h.
    _fields_ = (
        *((name, address_t) for name in ("token", "pos", "n_seq_id", "seq_id", "logits")),
        ("capacity", c_int32),
    )


_SLOT = np.dtype([("value", np.float64), ("node", np.int32), ("rank", np.int32)])

_NOISE = [c_uint64, c_uint32, c_uint32]

# name: (result, arguments), in the order of dyspec.h
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "dyspec_abi_version": (c_int32, []),
    "dyspec_simd": (ctypes.c_char_p, []),
    "dyspec_topk": (c_int32, [address_t, c_int32, c_int32, c_int32, *[address_t] * 3, c_int32]),
    "dyspec_argmax": (c_int32, [address_t, c_int32]),
    "dyspec_fill_candidates": (c_int32, [address_t, c_int32, address_t]),
    "dyspec_philox": (None, [address_t] * 3),
    "dyspec_uniform": (c_int32, [*_NOISE, address_t, c_int32, address_t]),
    "dyspec_gumbel": (c_int32, [*_NOISE, address_t, c_int32, address_t]),
    "dyspec_draw": (c_int64, [address_t, c_int64, *_NOISE]),
    "dyspec_expansion_reset": (c_int32, [POINTER(_ExpansionStruct)]),
    "dyspec_expansion_run": (c_int32, [POINTER(_ExpansionStruct), address_t]),
    "dyspec_place": (
        c_int32,
        [address_t, c_int32, address_t, address_t, c_int32, address_t, address_t]
        + [POINTER(c_int32), c_int32, *[address_t] * 4],
    ),
    "dyspec_depth_first": (c_int32, [address_t, c_int32, address_t, address_t]),
    "dyspec_ancestor_mask": (c_int32, [address_t, address_t, c_int32, address_t, address_t]),
    "dyspec_fill_batch": (
        c_int32,
        [POINTER(_BatchStruct), c_int32, c_int32, *[address_t] * 4, c_int8, c_int32],
    ),
    "dyspec_abort": (ctypes.c_bool, [address_t]),
}


def _load() -> ctypes.CDLL:
    # Next to this file, in a checkout and in a wheel alike.
    here = Path(__file__).resolve().parent
    names = ("libdyspec.so", "libdyspec.dylib")
    path = next((here / name for name in names if (here / name).exists()), None)
    if path is None:
        raise DyspecError(f"{here / names[0]} is missing; build it with `make install`")
    try:
        lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise DyspecError(f"{path} cannot be used ({error}); run `make install`") from error
    version = lib.dyspec_abi_version()
    if version != ABI_VERSION:
        raise DyspecError(
            f"{path} has interface version {version}, this package wants {ABI_VERSION}; "
            "run `make install`"
        )
    return lib


def _pointer(array: npt.NDArray[Any], dtype: Any, size: int) -> int:
    if array.dtype != dtype or not array.flags.c_contiguous or array.size < size:
        raise TypeError(
            f"{np.dtype(dtype).name}[{size}] in one piece is wanted, "
            f"not {array.dtype.name}{list(array.shape)}"
        )
    return int(array.ctypes.data)


_lib = _load()

simd: str = _lib.dyspec_simd().decode()
"""The instruction set of the row functions: avx512, avx2 or baseline."""

abort_callback_address: int = ctypes.cast(_lib.dyspec_abort, ctypes.c_void_p).value or 0
"""Address of a ggml_abort_callback whose data is `AbortFlag.address`."""


def topk(
    rows: npt.NDArray[np.uint64],
    num_vocab: int,
    k: int,
    ids: Int32s,
    logits: npt.NDArray[np.float32],
    lse: npt.NDArray[np.float32],
    threads: int = 1,
) -> None:
    """Write the k largest entries of every row and the rows' log-sum-exps.

    NaN counts as -inf.  Equal entries stand in the order of their ids.

    Args:
        rows: uint64[n], addresses of float32[num_vocab].
        num_vocab, k: if k is larger, the rest gets id -1 and logit -inf.
        ids, logits: int32[n, k] and float32[n, k], written, largest first.
        lse: float32[n], written, over all num_vocab entries.
        threads: at most so many, where there are enough rows.
    Raises:
        DyspecError: a row has no finite entry, or +inf.
    """
    n = len(rows)
    code = _lib.dyspec_topk(
        _pointer(rows, np.uint64, n),
        n,
        num_vocab,
        k,
        _pointer(ids, np.int32, n * k),
        _pointer(logits, np.float32, n * k),
        _pointer(lse, np.float32, n),
        threads,
    )
    if code <= FIRST_BAD_ROW:
        raise _not_finite(f"row {FIRST_BAD_ROW - code} of the logits")
    if code < 0:
        raise ValueError(f"topk: num_vocab {num_vocab}, k {k}")


def argmax(row_address: int, num_vocab: int) -> int:
    """Index of the largest of float32[num_vocab], the lowest among equals; NaN is passed over.

    Raises:
        DyspecError: no entry is finite, or one is +inf.
    """
    best: int = _lib.dyspec_argmax(row_address, num_vocab)
    if best < 0:
        raise _not_finite("the row of logits")
    return best


def fill_candidates(row_address: int, num_vocab: int, data_address: int) -> None:
    """Fill llama_token_data[num_vocab] with (i, row[i], 0)."""
    _lib.dyspec_fill_candidates(row_address, num_vocab, data_address)


def philox(counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Philox4x32-10 of counter uint32[4] under key uint32[2]: uint32[4]."""
    out = np.empty(4, np.uint32)
    _lib.dyspec_philox(
        _pointer(counter, np.uint32, 4), _pointer(key, np.uint32, 2), out.ctypes.data
    )
    return out


def uniform(seed: int, index: int, stream: int, tokens: Int32s) -> npt.NDArray[np.float64]:
    """Numbers strictly between 0 and 1, a function of (seed, index, stream, token) alone.

    (x + 1/2) / 2^32, x being word token & 3 of Philox4x32-10 at counter (index, token >> 2,
    stream, 0) under the 64-bit key `seed`.

    Returns:
        float64[n] for tokens int32[n].
    """
    out = np.empty(len(tokens), np.float64)
    _lib.dyspec_uniform(
        seed, index, stream, _pointer(tokens, np.int32, 0), len(tokens), out.ctypes.data
    )
    return out


def gumbel(seed: int, index: int, stream: int, tokens: Int32s) -> npt.NDArray[np.float64]:
    """Standard Gumbel numbers -log(-log(u)) of the same u as `uniform`, float64[n]."""
    out = np.empty(len(tokens), np.float64)
    _lib.dyspec_gumbel(
        seed, index, stream, _pointer(tokens, np.int32, 0), len(tokens), out.ctypes.data
    )
    return out


def draw(data_address: int, size: int, seed: int, index: int, stream: int) -> int:
    """Position of the largest logit + Gumbel(id) among llama_token_data[size].

    Equal sums go to the lower id; -inf and NaN never win.

    Raises:
        DyspecError: no logit is finite, or one is +inf.
    """
    best: int = _lib.dyspec_draw(data_address, size, seed, index, stream)
    if best < 0:
        raise _not_finite("what the samplers left of the logits")
    return best


class Expansion:
    """Greedy growth of a token tree (DySpec, Algorithms 1 and 2), evaluated lazily.

    A slot (node, rank) is worth value[node] times the probability not yet drawn there; it never
    depends on the token to be drawn.  Slots are drawn best first (ties: lower node, lower rank),
    or with `by_layer` shallower depths first.  A slot is dropped if its node is terminal or too
    deep, or if it would add a leaf too many.

    Args:
        tree: candidates stand in the order in which they are to be drawn, and their
            probabilities sum to at most 1 per node.  The arrays must not be replaced.
        eog: end-of-generation ids; a child that is one becomes terminal.
        max_nodes: of the tree, the root excluded; less than the capacity.
        max_leaves: at least 1.
        max_depth: of a node; the root has 0.
        threshold: slots at or below it are never drawn.
    """

    def __init__(
        self,
        tree: TreeArrays,
        *,
        max_nodes: int,
        max_leaves: int,
        max_depth: int,
        threshold: float = 0.0,
        by_layer: bool = False,
        eog: npt.ArrayLike = (),
    ) -> None:
        capacity, num_ranks = tree.candidate_ids.shape
        sorted_eog = np.unique(np.asarray(eog, np.int32))
        remaining = np.zeros(capacity, np.float64)
        heap = np.zeros(capacity + 1, _SLOT)
        scratch = np.zeros(capacity + 1, _SLOT)
        self._pending = np.zeros(capacity, np.int32)
        # What the pointers below point to lives as long as this object.
        self._arrays = (tree, tree.size_array, sorted_eog, remaining, heap, scratch)
        self._struct = _ExpansionStruct(
            token=_pointer(tree.token, np.int32, capacity),
            parent=_pointer(tree.parent, np.int32, capacity),
            depth=_pointer(tree.depth, np.int32, capacity),
            n_children=_pointer(tree.num_children, np.int32, capacity),
            confidence=_pointer(tree.confidence, np.float32, capacity),
            value=_pointer(tree.value, np.float64, capacity),
            terminal=_pointer(tree.terminal, np.uint8, capacity),
            n_nodes=_pointer(tree.size_array, np.int32, 1),
            cand_ids=_pointer(tree.candidate_ids, np.int32, capacity * num_ranks),
            cand_probs=_pointer(tree.candidate_probs, np.float32, capacity * num_ranks),
            n_cand=_pointer(tree.num_candidates, np.int32, capacity),
            remaining=remaining.ctypes.data,
            heap=heap.ctypes.data,
            scratch=scratch.ctypes.data,
            eog=sorted_eog.ctypes.data,
            n_eog=len(sorted_eog),
            capacity=capacity,
            n_ranks=num_ranks,
            by_layer=by_layer,
        )
        self._limits = (max_nodes, max_leaves, max_depth, threshold)
        self.reset()

    def reset(
        self,
        *,
        max_nodes: int | None = None,
        max_leaves: int | None = None,
        max_depth: int | None = None,
        threshold: float | None = None,
    ) -> None:
        """Start from the root alone, not evaluated; limits that are not given stay as they were.

        All of node 0 but its token is written: evaluate the root after this, not before.

        Raises:
            ValueError: limits that the arrays cannot hold.
        """
        given = (max_nodes, max_leaves, max_depth, threshold)
        limits = tuple(
            old if new is None else new for old, new in zip(self._limits, given, strict=True)
        )
        x = self._struct
        x.max_nodes, x.max_leaves, x.max_depth, x.threshold = limits
        if _lib.dyspec_expansion_reset(x) < 0:
            raise ValueError(
                f"(max_nodes, max_leaves, max_depth, threshold) = {limits} "
                f"for a tree of {x.capacity} nodes"
            )
        self._limits = (int(x.max_nodes), int(x.max_leaves), int(x.max_depth), float(x.threshold))

    @property
    def num_leaves(self) -> int:
        """Leaves of the tree; the root alone is one."""
        return int(self._struct.n_leaves)

    def run(self) -> Int32s:
        """Draw nodes until candidates of a node are needed that is not evaluated yet.

        Returns:
            int32[n], the nodes to evaluate in one pass before the next call, best first: the one
            that is needed and those that will most likely be (with `by_layer`: of its depth).
            Empty when the tree is full or no slot is left above the threshold.
        """
        n = _lib.dyspec_expansion_run(self._struct, self._pending.ctypes.data)
        return self._pending[:n].copy()


def place(
    nodes: Int32s,
    parent: Int32s,
    depth: Int32s,
    seq: Int32s,
    continued: npt.NDArray[np.uint8],
    num_used: int,
    num_seq: int,
) -> Placement:
    """Give the nodes of one batch their sequence ids.

    A node's first child continues on its id, a later child takes the next unused id.  The root
    (node 0) counts as placed with id 0; if it is in `nodes`, it comes first and carries all ids.

    Args:
        nodes: int32[n], parents before children, each node's parent placed already or earlier.
        parent, depth: int32[capacity].
        seq: int32[capacity], in and out, the id of each placed node, -1 elsewhere.
        continued: uint8[capacity], in and out, 1 where a child goes on with the node's id.
        num_used: ids that are taken already.
        num_seq: ids that there are.
    Raises:
        DyspecError: more leaves than ids; the arrays are unchanged.
        ValueError: an order that is not allowed; the arrays are unchanged.
    """
    n, capacity = len(nodes), len(seq)
    row_of = np.empty(capacity, np.int32)
    offsets = np.empty(n + 1, np.int32)
    ids = np.empty(n * max(num_seq, 1), np.int32)
    copies = np.empty((n, 3), np.int32)
    used = c_int32(num_used)
    num_copies = _lib.dyspec_place(
        _pointer(nodes, np.int32, n),
        n,
        _pointer(parent, np.int32, capacity),
        _pointer(depth, np.int32, capacity),
        capacity,
        _pointer(seq, np.int32, capacity),
        _pointer(continued, np.uint8, capacity),
        ctypes.byref(used),
        num_seq,
        row_of.ctypes.data,
        offsets.ctypes.data,
        ids.ctypes.data,
        copies.ctypes.data,
    )
    if num_copies == OUT_OF_SEQUENCES:
        raise DyspecError(
            f"the tree of {n} rows needs more leaves than the {num_seq} sequence ids of the "
            "context; use a smaller tree"
        )
    if num_copies < 0:
        raise ValueError(f"nodes {nodes.tolist()} cannot be placed in this order")
    return Placement(offsets, ids[: offsets[n]], copies[:num_copies], used.value)


def depth_first(parent: Int32s, n: int) -> Int32s:
    """Depth-first order of the first n nodes, earlier children first: int32[n].

    Raises:
        ValueError: a parent does not stand before its child.
    """
    order, scratch = np.empty(n, np.int32), np.empty(2 * n, np.int32)
    code = _lib.dyspec_depth_first(
        _pointer(parent, np.int32, n), n, scratch.ctypes.data, order.ctypes.data
    )
    if code < 0:
        raise ValueError("a parent does not stand before its child")
    return order


def ancestor_mask(parent: Int32s, order: Int32s, n: int) -> npt.NDArray[np.uint64]:
    """Who sees whom: bit j of row i says that order[j] is order[i] or one of its ancestors.

    Returns:
        uint64[n, ceil(n / 64)], the lowest bit of the first word being j = 0.
    Raises:
        ValueError: `order` is no permutation with parents before children.
    """
    mask, scratch = np.empty((n, (n + 63) // 64), np.uint64), np.empty(n, np.int32)
    code = _lib.dyspec_ancestor_mask(
        _pointer(parent, np.int32, n),
        _pointer(order, np.int32, n),
        n,
        scratch.ctypes.data,
        mask.ctypes.data,
    )
    if code < 0:
        raise ValueError("the order is no permutation with parents before children")
    return mask


def fill_batch(
    token: Int32s,
    pos: Int32s,
    n_seq_id: Int32s,
    seq_id: npt.NDArray[np.uint64],
    logits: npt.NDArray[np.int8],
    n0: int,
    tokens: Int32s,
    positions: Int32s,
    offsets: Int32s,
    ids: Int32s,
    output: bool,
    num_seq: int = MAX_SEQUENCES,
) -> int:
    """Write rows n0, n0 + 1, ... of the arrays that a llama_batch points to.

    Args:
        token, pos, n_seq_id: int32[capacity].
        seq_id: uint64[capacity], each an int32*; they will point into `ids`, which must live
            until the batch is decoded.
        logits: int8[capacity].
        n0: the first row.
        tokens, positions: int32[n].
        offsets: int32[n + 1]; row i carries ids[offsets[i]:offsets[i + 1]].
        ids: int32[offsets[n]].
        output: whether these rows want logits.
        num_seq: ids must lie below; llama.cpp ends the process at others.
    Returns:
        The number of rows that are filled now.
    Raises:
        ValueError: the rows do not fit, a row without ids, or an id that does not exist.
    """
    n, capacity = len(tokens), len(token)
    batch = _BatchStruct(
        _pointer(token, np.int32, capacity),
        _pointer(pos, np.int32, capacity),
        _pointer(n_seq_id, np.int32, capacity),
        _pointer(seq_id, np.uint64, capacity),
        _pointer(logits, np.int8, capacity),
        capacity,
    )
    filled: int = _lib.dyspec_fill_batch(
        batch,
        n0,
        n,
        _pointer(tokens, np.int32, n),
        _pointer(positions, np.int32, n),
        _pointer(offsets, np.int32, n + 1),
        _pointer(ids, np.int32, int(offsets[n])),
        output,
        num_seq,
    )
    if filled == OUT_OF_SEQUENCES:
        raise ValueError(f"a row has a sequence id outside 0..{num_seq - 1}")
    if filled < 0:
        raise ValueError(f"{n} rows from row {n0} on, capacity {capacity}: too many, or no ids")
    return filled


class AbortFlag:
    """A flag that `abort_callback_address` reads; may be set from any thread or signal handler."""

    def __init__(self) -> None:
        self._flag = c_int32(0)

    @property
    def address(self) -> int:
        """Address of the int32; valid as long as this object lives."""
        return ctypes.addressof(self._flag)

    @property
    def is_set(self) -> bool:
        """Whether evaluation is to stop."""
        return self._flag.value != 0

    def set(self) -> None:
        """Stop the evaluation that runs now, and every later one until `clear`."""
        self._flag.value = 1

    def clear(self) -> None:
        """Let evaluations run again."""
        self._flag.value = 0


def _not_finite(what: str) -> DyspecError:
    return DyspecError(
        f"{what} holds no finite value, or +inf: the model file or its build is broken; "
        "`dyspec-edge check` compares passes"
    )
