"""The native order of candidates against numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyspec_edge import native

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Counters = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Oracle:
    """The rule in numpy; arguments as `native.CandidateOrder` takes them."""

    seed: int
    temperature: float
    draft_temperature: float
    top_k: int
    top_p: float
    min_p: float
    residual: bool
    noisy: bool

    def rank(
        self, ids: Ids, logits: npt.NDArray[np.float32], index: Counters, streams: Counters
    ) -> tuple[Ids, Floats, Ids]:
        scores = logits.astype(np.float64)
        order = np.argsort(-scores, axis=1, kind="stable")
        row = np.arange(len(ids))[:, None]
        ids, scores = ids[row, order], scores[row, order]
        ids = np.where(np.isfinite(scores), ids, -1)
        inside = self._inside_cut(scores) if self.temperature > 0 else np.isfinite(scores)
        noise = np.zeros_like(scores)
        if self.noisy and self.temperature > 0:
            noise = np.stack(
                [
                    native.gumbel(self.seed, int(i), int(s), np.maximum(line, 0))
                    for line, i, s in zip(ids, index, streams, strict=True)
                ]
            )
        if self.residual:
            heat = self.draft_temperature or self.temperature or 1.0
            probs = soft_max(np.where(inside, scores / heat, -np.inf))
            likely = probs.astype(np.float32) > 0
            key = np.where(likely, scores / heat + noise, noise - 1e6)
            key[~np.isfinite(scores)] = -np.inf
            usable = np.count_nonzero(likely, axis=1)
        else:
            noisy = scores + self.temperature * noise
            within = soft_max(np.where(inside, noisy / (self.draft_temperature or 1.0), -np.inf))
            outside = np.where(inside, 0.0, soft_max(scores))
            probs = within * (1.0 - outside.sum(axis=1, keepdims=True)) + outside
            key = np.where(inside, noisy, scores - 1e6)
            usable = np.count_nonzero(np.isfinite(key), axis=1)
        order = np.argsort(-key, axis=1, kind="stable")
        return ids[row, order], probs[row, order], usable.astype(np.int32)

    def _inside_cut(self, scores: Floats) -> npt.NDArray[np.bool_]:
        kept = np.isfinite(scores)
        if self.top_k > 0:
            kept[:, self.top_k :] = False
        probs = soft_max(np.where(kept, scores, -np.inf))
        if self.top_p < 1:
            kept &= np.cumsum(probs, axis=1) - probs < self.top_p
        if self.min_p > 0:
            kept &= probs >= self.min_p * probs.max(axis=1, keepdims=True)
        kept[:, 0] = np.isfinite(scores[:, 0])
        return kept


def soft_max(scores: Floats) -> Floats:
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300))


@given(
    rows=st.integers(1, 5),
    size=st.sampled_from([1, 2, 7, 64, 256]),
    data_seed=st.integers(0, 2**32 - 1),
    forbidden=st.sampled_from([0.0, 0.2, 1.0]),
    biased=st.booleans(),
    rule=st.builds(
        Oracle,
        seed=st.integers(0, 2**64 - 1),
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        draft_temperature=st.sampled_from([0.0, 0.6]),
        top_k=st.sampled_from([0, 1, 5, 40]),
        top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 1.0]),
        residual=st.booleans(),
        noisy=st.booleans(),
    ),
)
def test_candidates_are_ordered_as_in_numpy(
    rows: int, size: int, data_seed: int, forbidden: float, biased: bool, rule: Oracle
) -> None:
    rng = np.random.default_rng(data_seed)
    ids = np.stack([rng.permutation(1000)[:size] for _ in range(rows)]).astype(np.int32)
    logits = -np.sort(-rng.normal(0, 4, (rows, size)).astype(np.float32), axis=1)
    if biased:
        logits[:, rng.integers(size)] += np.float32(3.0)
    logits[rng.random((rows, size)) < forbidden] = -np.inf
    index = rng.integers(0, 2**31, rows)
    streams = rng.integers(0, 2**31, rows)
    wanted_ids, wanted_probs, wanted_usable = rule.rank(ids, logits, index, streams)
    found_ids = ids.copy()
    order = native.CandidateOrder(**vars(rule))
    probs, usable = order.rank(
        found_ids, logits, index.astype(np.uint32), streams.astype(np.uint32)
    )
    np.testing.assert_array_equal(usable, wanted_usable)
    for line in range(rows):
        n = int(usable[line])
        ordered = size if rule.residual else n
        assert (found_ids[line] >= 0).sum() == np.isfinite(logits[line]).sum()
        np.testing.assert_array_equal(found_ids[line, :ordered], wanted_ids[line, :ordered])
        np.testing.assert_allclose(probs[line, :n], wanted_probs[line, :n], rtol=1e-5, atol=1e-7)


def test_too_many_candidates_are_refused() -> None:
    order = native.CandidateOrder(
        seed=1, temperature=1, draft_temperature=0, top_k=0, top_p=1, min_p=0, residual=False,
        noisy=True,
    )  # fmt: skip
    ids, logits = np.zeros((1, 257), np.int32), np.zeros((1, 257), np.float32)
    with pytest.raises(ValueError, match="257 candidates"):
        order.rank(ids, logits, np.zeros(1, np.uint32), np.zeros(1, np.uint32))
