"""The order of candidates, which native code makes, against numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyspec_edge import native
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.sampling import TARGET_STREAM, SamplingParams

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Oracle:
    """The rule in numpy; fields as `Ranking` and `SamplingParams` have them."""

    seed: int
    temperature: float
    draft_temperature: float | None
    top_k: int
    top_p: float
    min_p: float
    residual: bool
    shared_noise: bool
    logit_bias: tuple[tuple[int, float], ...]

    def ranking(self) -> Ranking:
        """The same, in native code."""
        params = SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            logit_bias=self.logit_bias,
        )
        return Ranking(
            params,
            self.seed,
            residual=self.residual,
            draft_temperature=self.draft_temperature,
            shared_noise=self.shared_noise,
        )

    def rank(
        self, ids: Ids, logits: npt.NDArray[np.float32], index: Ids, nodes: Ids
    ) -> tuple[Ids, Floats, Ids]:
        logits = logits.copy()
        for token, amount in self.logit_bias:
            logits[ids == token] += np.float32(amount)
        scores = logits.astype(np.float64)
        order = np.argsort(-scores, axis=1, kind="stable")
        row = np.arange(len(ids))[:, None]
        ids, scores = ids[row, order], scores[row, order]
        ids = np.where(np.isfinite(scores), ids, -1)
        inside = self._inside_cut(scores) if self.temperature > 0 else np.isfinite(scores)
        noise = np.zeros_like(scores)
        if (self.shared_noise or self.residual) and self.temperature > 0:
            streams = 1 + nodes if self.residual else np.full(len(ids), TARGET_STREAM)
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
        draft_temperature=st.sampled_from([None, 0.6]),
        top_k=st.sampled_from([0, 1, 5, 40]),
        top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 1.0]),
        residual=st.booleans(),
        shared_noise=st.booleans(),
        logit_bias=st.lists(
            st.tuples(st.integers(0, 999), st.sampled_from([-np.inf, -2.5, 0.1, 7.0])), max_size=40
        ).map(tuple),
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
    index = rng.integers(0, 2**31, rows).astype(np.int32)
    nodes = rng.integers(0, 2**31 - 1, rows).astype(np.int32)
    wanted_ids, wanted_probs, wanted_usable = rule.rank(ids, logits, index, nodes)
    found_ids, probs, usable = rule.ranking().rank(ids, logits, index, nodes)
    for token, amount in rule.logit_bias:
        logits[ids == token] += np.float32(amount)
    np.testing.assert_array_equal(usable, wanted_usable)
    for line in range(rows):
        n = int(usable[line])
        ordered = size if rule.residual else n
        assert (found_ids[line] >= 0).sum() == np.isfinite(logits[line]).sum()
        np.testing.assert_array_equal(found_ids[line, :ordered], wanted_ids[line, :ordered])
        np.testing.assert_allclose(probs[line, :n], wanted_probs[line, :n], rtol=1e-5, atol=1e-7)


def test_too_many_candidates_are_refused() -> None:
    ids, logits = np.zeros((1, 257), np.int32), np.zeros((1, 257), np.float32)
    with pytest.raises(ValueError, match="257 candidates"):
        Ranking(SamplingParams(), 1).rank(ids, logits, ids[:, 0], ids[:, 0])
