"""Rows of logits: top-k with log-sum-exp, arg max, candidate arrays for llama.cpp's samplers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import DyspecError
from dyspec_edge.native.library import FIRST_BAD_ROW, Int32s, lib, pointer

simd: str = lib.dyspec_simd().decode()
"""The instruction set of the row functions: avx512, avx2, neon or baseline."""


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
        num_vocab: entries of a row.
        k: if it is larger than num_vocab, the rest gets id -1 and logit -inf.
        ids: int32[n, k], written, largest logit first.
        logits: float32[n, k], written.
        lse: float32[n], written, over all num_vocab entries.
        threads: at most so many, where there are enough rows.

    Raises:
        DyspecError: a row has no finite entry, or +inf.
    """
    n = len(rows)
    code = lib.dyspec_topk(
        pointer(rows, np.uint64, n),
        n,
        num_vocab,
        k,
        pointer(ids, np.int32, n * k),
        pointer(logits, np.float32, n * k),
        pointer(lse, np.float32, n),
        threads,
    )
    if code <= FIRST_BAD_ROW:
        raise not_finite(f"row {FIRST_BAD_ROW - code} of the logits")
    if code < 0:
        raise ValueError(f"topk: num_vocab {num_vocab}, k {k}")


def argmax(row_address: int, num_vocab: int) -> int:
    """Index of the largest of float32[num_vocab], the lowest among equals; NaN is passed over.

    Raises:
        DyspecError: no entry is finite, or one is +inf.
    """
    best: int = lib.dyspec_argmax(row_address, num_vocab)
    if best < 0:
        raise not_finite("the row of logits")
    return best


def fill_candidates(row_address: int, num_vocab: int, data_address: int) -> None:
    """Fill llama_token_data[num_vocab] with (i, row[i], 0)."""
    lib.dyspec_fill_candidates(row_address, num_vocab, data_address)


def not_finite(what: str, *, on_backend: bool = False) -> DyspecError:
    """The error for logits that nothing can be chosen from; a backend minds NaN, too."""
    found = "NaN or +inf" if on_backend else "no finite value, or +inf"
    return DyspecError(
        f"{what} holds {found}: the model file or its build is broken; "
        "`dyspec-edge check` compares passes"
    )
