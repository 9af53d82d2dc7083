"""The counter-based noise against the published Philox vectors and a numpy Philox."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyspec_edge import native
from dyspec_edge.errors import DyspecError

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
SEEDS = st.integers(0, 2**64 - 1)
COUNTERS = st.integers(0, 2**32 - 1)

# kat_vectors of Random123, philox4x32 with 10 rounds
PUBLISHED = [
    "00000000 00000000 00000000 00000000 / 00000000 00000000 / 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff / ffffffff ffffffff / 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 / a4093822 299f31d0 / d16cfe09 94fdcceb 5001e420 24126ea1",
]


def words(text: str) -> npt.NDArray[np.uint32]:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


def numpy_philox(counter: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """uint64[n, 4] of 32-bit words."""
    low = np.uint64(0xFFFFFFFF)
    c = [counter[:, i].copy() for i in range(4)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        k = [np.uint64(key) for key in keys]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ k[0],
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ k[1],
            a & low,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1)


def numpy_uniform(
    seed: int, index: int, stream: int, tokens: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    counter = np.zeros((len(tokens), 4), np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2] = index, tokens >> 2, stream
    block = numpy_philox(counter, seed)
    word = block[np.arange(len(tokens)), tokens & 3]
    return np.asarray((word.astype(np.float64) + 0.5) * 2.0**-32)


def candidates(ids: npt.ArrayLike, logits: npt.ArrayLike) -> npt.NDArray[np.void]:
    data = np.zeros(np.size(ids), CANDIDATE)
    data["id"], data["logit"] = ids, logits
    return data


def numpy_draw(data: npt.NDArray[np.void], seed: int, index: int, stream: int) -> int:
    score = data["logit"].astype(np.float64) + native.gumbel(
        seed, index, stream, np.ascontiguousarray(data["id"])
    )
    score[np.isnan(score)] = -np.inf
    best = np.flatnonzero(score == score.max())
    return int(best[np.argmin(data["id"][best])])


@pytest.mark.parametrize("vector", PUBLISHED)
def test_philox_gives_the_published_words(vector: str) -> None:
    counter, key, output = (words(part) for part in vector.split("/"))
    assert native.philox(counter, key).tolist() == output.tolist()
    seed = int(key[0]) | int(key[1]) << 32
    assert numpy_philox(counter.astype(np.uint64)[None], seed)[0].tolist() == output.tolist()


@settings(max_examples=60, deadline=None)
@given(SEEDS, COUNTERS, COUNTERS, st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_uniform_and_gumbel(seed: int, index: int, stream: int, tokens: list[int]) -> None:
    ids = np.array(tokens, np.int32)
    u = native.uniform(seed, index, stream, ids)
    np.testing.assert_array_equal(u, numpy_uniform(seed, index, stream, ids))
    assert ((u > 0) & (u < 1)).all()
    np.testing.assert_allclose(
        native.gumbel(seed, index, stream, ids), -np.log(-np.log(u)), rtol=1e-13, atol=1e-14
    )


def test_noise_does_not_depend_on_the_neighbours() -> None:
    ids = np.random.default_rng(0).permutation(1000).astype(np.int32)
    together = native.gumbel(7, 3, 1, ids)
    alone = [native.gumbel(7, 3, 1, ids[i : i + 1])[0] for i in range(len(ids))]
    np.testing.assert_array_equal(together, alone)


def test_uniform_is_uniform_and_differs_by_stream_and_index() -> None:
    ids = np.arange(100_000, dtype=np.int32)
    a, b, c = (native.uniform(5, i, s, ids) for i, s in ((0, 0), (1, 0), (0, 1)))
    counts = np.histogram(a, bins=100, range=(0, 1))[0]
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 150  # 99 degrees of freedom: p = 0.0007
    for other in (b, c):
        assert abs(np.corrcoef(a, other)[0, 1]) < 0.015


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000, 49152, 151936])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("order", ["by id", "shuffled"])
def test_draw(size: int, scale: float, order: str) -> None:
    rng = np.random.default_rng(size)
    ids = np.arange(size) if order == "by id" else rng.permutation(2 * size)[:size]
    data = candidates(ids, rng.normal(0, 1, size) * scale)
    for seed in range(4):
        want = numpy_draw(data, seed, 11, 2)
        assert native.gumbel_argmax(data.ctypes.data, size, seed, 11, 2) == want


def test_draw_passes_over_minus_infinity_and_nan() -> None:
    rng = np.random.default_rng(1)
    logits = np.where(rng.random(500) < 0.5, np.nan, -np.inf)
    logits[[3, 77, 400]] = [-2.0, -1.0, -1.5]
    data = candidates(np.arange(500), logits)
    drawn = {native.gumbel_argmax(data.ctypes.data, 500, seed, 0, 0) for seed in range(100)}
    assert drawn == {3, 77, 400}


def test_draw_gives_equal_sums_to_the_lower_id() -> None:
    # At 1e16 the noise is below the spacing of doubles, so all sums are equal.
    data = candidates([9, 4, 12, 5], np.full(4, 1e16, np.float32))
    assert native.gumbel_argmax(data.ctypes.data, 4, 1, 2, 3) == 1


@pytest.mark.parametrize("logits", [[], [np.nan], [-np.inf, np.nan], [0.0, np.inf]])
def test_draw_without_a_finite_logit(logits: list[float]) -> None:
    data = candidates(np.arange(len(logits)), logits)
    with pytest.raises(DyspecError, match="no finite value"):
        native.gumbel_argmax(data.ctypes.data, len(logits), 1, 2, 3)


def test_draws_follow_the_soft_max() -> None:
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5, -3.0])
    data = candidates(np.arange(6), logits)
    n = 20_000
    counts = np.bincount(
        [native.gumbel_argmax(data.ctypes.data, 6, 42, i, 0) for i in range(n)], minlength=6
    )
    want = n * np.exp(logits) / np.exp(logits).sum()
    assert ((counts - want) ** 2 / want).sum() < 20.5  # 5 degrees of freedom: p = 0.001
