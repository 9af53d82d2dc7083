"""Top-k, log-sum-exp and arg max of logit rows against numpy."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge import native
from dyspec_edge.errors import DyspecError

Rows = npt.NDArray[np.float32]
TopK = tuple[npt.NDArray[np.int32], Rows, Rows]

SIZES = [1, 2, 7, 15, 16, 17, 63, 64, 65, 255, 256, 1000, 2047, 2049, 49152, 151936, 262144]
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def addresses(x: Rows) -> npt.NDArray[np.uint64]:
    return np.array([row.ctypes.data for row in x], np.uint64)


def native_topk(x: Rows, k: int, threads: int = 1) -> TopK:
    n = len(x)
    ids, logits = np.full((n, k), 99, np.int32), np.full((n, k), 99, np.float32)
    lse = np.full(n, 99, np.float32)
    native.topk(addresses(x), x.shape[1], k, ids, logits, lse, threads)
    return ids, logits, lse


def numpy_topk(x: Rows, k: int) -> TopK:
    n, num_vocab = x.shape
    clean = np.where(np.isnan(x), -np.inf, x)
    order = np.argsort(-clean, axis=1, kind="stable")[:, :k]
    ids, logits = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    kept = min(k, num_vocab)
    ids[:, :kept], logits[:, :kept] = order, np.take_along_axis(clean, order, axis=1)
    wide = clean.astype(np.float64)
    top = wide.max(axis=1)
    lse = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    return ids, logits, lse.astype(np.float32)


def assert_topk(x: Rows, k: int, threads: int = 1) -> None:
    ids, logits, lse = native_topk(x, k, threads)
    want_ids, want_logits, want_lse = numpy_topk(x, k)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_array_equal(logits, want_logits)
    np.testing.assert_allclose(lse, want_lse, rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("num_vocab", SIZES)
@pytest.mark.parametrize("k", [1, 4, 64, 200])
def test_topk_of_random_rows(num_vocab: int, k: int) -> None:
    rng = np.random.default_rng(num_vocab + k)
    assert_topk(rng.normal(0, 5, (3, num_vocab)).astype(np.float32), k)


@pytest.mark.parametrize("k", [0, 2500, 49152, 50000])
def test_topk_with_very_few_or_very_many_places(k: int) -> None:
    rng = np.random.default_rng(k)
    assert_topk(rng.normal(0, 5, (2, 49152)).astype(np.float32), k)


@pytest.mark.parametrize("num_vocab", [7, 64, 1000, 49152])
def test_topk_puts_equal_logits_in_the_order_of_ids(num_vocab: int) -> None:
    rng = np.random.default_rng(num_vocab)
    assert_topk(rng.integers(-3, 3, (4, num_vocab)).astype(np.float32), 64)
    assert_topk(np.zeros((1, num_vocab), np.float32), 64)
    signed_zeros = np.where(rng.random((1, num_vocab)) < 0.5, 0.0, -0.0).astype(np.float32)
    assert_topk(signed_zeros, 64)


@pytest.mark.parametrize("num_vocab", [7, 64, 1000, 49152])
def test_topk_of_sorted_rows(num_vocab: int) -> None:
    ascending = np.linspace(-30, 30, num_vocab, dtype=np.float32)[None]
    assert_topk(ascending, 64)
    assert_topk(np.ascontiguousarray(ascending[:, ::-1]), 64)


@pytest.mark.parametrize("num_vocab", [7, 64, 1000, 49152])
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_topk_counts_nan_as_minus_infinity(num_vocab: int, share: float) -> None:
    rng = np.random.default_rng(num_vocab)
    x = rng.normal(0, 5, (4, num_vocab)).astype(np.float32)
    for bad in (np.nan, -np.inf):
        x[rng.random(x.shape) < share] = bad
        x[:, num_vocab // 2] = 1.5  # one finite entry is enough
        assert_topk(x, 64)


def test_topk_of_extreme_logits() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (3, 1000)).astype(np.float32)
    x[0] *= np.float32(1e37)
    x[1] += np.float32(-3e38)
    x[2] *= np.float32(1e-42)  # denormal
    assert_topk(x, 64)


@pytest.mark.parametrize("value", [0.0, -7.25, 300.0])
def test_lse_of_equal_logits_does_not_drift(value: float) -> None:
    x = np.full((1, 262144), value, np.float32)
    lse = native_topk(x, 1)[2]
    assert lse[0] == pytest.approx(value + np.log(262144), rel=2e-7)


def test_lse_error_is_below_a_millionth_for_every_exponent() -> None:
    # Two entries: lse - max = log(1 + exp(-gap)), so the exponential itself is seen.  They stand
    # so far apart that their sum is one of doubles.
    gaps = np.linspace(0, 12, 4001)
    x = np.full((len(gaps), 128), -np.inf, np.float32)
    x[:, 0], x[:, 100] = 0, -gaps
    lse = native_topk(x, 1)[2]
    np.testing.assert_allclose(lse, np.log1p(np.exp(x[:, 100].astype(np.float64))), rtol=1e-6)


@pytest.mark.parametrize("num_rows", [1, 3, 4, 37, 64])
@pytest.mark.parametrize("threads", [0, 1, 2, 3, 200])
def test_topk_with_threads(num_rows: int, threads: int) -> None:
    rng = np.random.default_rng(num_rows)
    assert_topk(rng.normal(0, 5, (num_rows, 9000)).astype(np.float32), 16, threads)


def test_topk_of_rows_that_lie_apart_and_are_not_aligned() -> None:
    rng = np.random.default_rng(5)
    pool = rng.normal(0, 5, 40000).astype(np.float32)
    starts = [30001, 3, 17002]
    rows = np.array([pool[s:].ctypes.data for s in starts], np.uint64)
    ids, logits = np.zeros((3, 8), np.int32), np.zeros((3, 8), np.float32)
    native.topk(rows, 5001, 8, ids, logits, np.zeros(3, np.float32))
    want = numpy_topk(np.stack([pool[s : s + 5001] for s in starts]), 8)
    np.testing.assert_array_equal(ids, want[0])
    np.testing.assert_array_equal(logits, want[1])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_topk_names_the_first_row_that_cannot_be_used(bad: float, threads: int) -> None:
    x = np.zeros((40, 9001), np.float32)
    for row in (17, 33):
        x[row, :] = bad if not bad > 0 else 1.0
        x[row, 9000] = bad
    with pytest.raises(DyspecError, match=r"^row 17 of the logits holds no finite value"):
        native_topk(x, 4, threads)


def test_topk_refuses_arrays_of_another_kind() -> None:
    x = np.zeros((2, 10), np.float32)
    ids, logits, lse = np.zeros((2, 4), np.int32), np.zeros((2, 4), np.float32), x[:, 0].copy()
    with pytest.raises(TypeError, match=r"int32\[8\]"):
        native.topk(addresses(x), 10, 4, ids.astype(np.int64), logits, lse)
    with pytest.raises(TypeError, match=r"float32\[8\]"):
        native.topk(addresses(x), 10, 4, ids, logits[:, :2], lse)
    with pytest.raises(ValueError, match="num_vocab 0"):
        native.topk(addresses(x), 0, 4, ids, logits, lse)


@pytest.mark.parametrize("num_vocab", SIZES)
def test_argmax(num_vocab: int) -> None:
    rng = np.random.default_rng(num_vocab)
    for x in (rng.normal(0, 5, num_vocab), rng.integers(0, 3, num_vocab), np.zeros(num_vocab)):
        row = x.astype(np.float32)
        assert native.argmax(row.ctypes.data, num_vocab) == int(row.argmax())
        row[rng.random(num_vocab) < 0.5] = np.nan
        row[num_vocab // 2] = 2.0
        assert native.argmax(row.ctypes.data, num_vocab) == int(np.nanargmax(row))


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_argmax_of_a_row_without_a_finite_value(bad: float) -> None:
    row = np.full(100, bad, np.float32)
    with pytest.raises(DyspecError, match="holds no finite value"):
        native.argmax(row.ctypes.data, 100)


@pytest.mark.parametrize("num_vocab", SIZES)
def test_fill_candidates(num_vocab: int) -> None:
    row = np.random.default_rng(0).normal(0, 5, num_vocab).astype(np.float32)
    row[0] = np.nan
    data = np.ones(num_vocab + 1, CANDIDATE)
    native.fill_candidates(row.ctypes.data, num_vocab, data.ctypes.data)
    np.testing.assert_array_equal(data["id"][:-1], np.arange(num_vocab))
    np.testing.assert_array_equal(data["logit"][:-1], row)
    assert not data["p"][:-1].any()
    assert data[-1].tolist() == (1, 1.0, 1.0), "nothing is written behind the end"


@pytest.mark.parametrize("simd", ["baseline", "avx2", "avx512"])
def test_the_other_instruction_sets_that_this_processor_has(simd: str) -> None:
    if simd == native.simd:
        return  # the tests above ran on it
    env = {**os.environ, "DYSPEC_SIMD": simd}
    probe = "from dyspec_edge import native; print(native.simd)"
    used = subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True, text=True)
    if used.stdout.strip() != simd:
        pytest.skip(f"no {simd} here")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        [*command, "-k", "topk or lse or argmax"], env=env, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout
