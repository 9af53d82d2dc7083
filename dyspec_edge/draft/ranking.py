"""From a draft's logits to candidates: which tokens become children, in which order, how likely.

Under `match` the draft gets the target's own noise, so that its largest perturbed logit is the
best guess at the target's draw, and the soft-max of the perturbed logits is a calibrated
confidence.  Under `residual` children are drawn without replacement with noise of their own.
Where the target's chain cuts (top-k, top-p, min-p), the draft is cut in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.sampling import TARGET_STREAM, SamplingParams

OUTSIDE = 1e6
"""Puts every candidate outside the cut behind those inside it."""

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The rule for one reply.

    Attributes:
        params: the target's sampling options.
        seed: the reply's seed.
        residual: children are drawn (`residual`) instead of ranked (`match`).
        draft_temperature: overrides 1.0 (`match`) or the target's temperature (`residual`).
        shared_noise: False ranks by plain probability under `match`; benchmarks use it to show
            what shared noise is worth.
    """

    params: SamplingParams
    seed: int
    residual: bool = False
    draft_temperature: float | None = None
    shared_noise: bool = True

    def rank(
        self, ids: Ids, logits: npt.NDArray[np.float32], index: Ids, nodes: Ids
    ) -> tuple[Ids, npt.NDArray[np.float32], Ids]:
        """Order candidates for drawing.

        Args:
            ids, logits: int32 and float32 [n, K], each row by descending logit; -inf where a
                token must not be drafted.
            index: int32[n], index in the reply of the token below each node.
            nodes: int32[n], tree nodes, which number the draft's own noise.

        Returns:
            ids int32[n, K] and probabilities float32[n, K] in the order of drawing, and the
            number of usable candidates int32[n].
        """
        scores = logits.astype(np.float64)
        for token, bias in self.params.logit_bias:
            scores[ids == token] += bias
        # Biased and forbidden candidates have left their places; the cuts go by place.
        order = np.argsort(-scores, axis=1, kind="stable")
        row = np.arange(len(ids))[:, None]
        ids, logits, scores = ids[row, order], logits[row, order], scores[row, order]
        temperature = self.params.temperature
        inside = self._inside_cut(scores) if temperature > 0 else np.isfinite(scores)
        if self.residual:
            heat = self.draft_temperature or temperature or 1.0
            probs = soft_max(np.where(inside, scores / heat, -np.inf))
            key = np.where(inside, scores / heat, -np.inf)
            if temperature > 0:
                streams = 1 + nodes
                key = key + self._noise(ids, index, streams)
            usable = np.count_nonzero(probs > 0, axis=1)
        else:
            noisy = scores
            if temperature > 0 and self.shared_noise:
                noise = self._noise(ids, index, np.full(len(ids), TARGET_STREAM))
                noisy = scores + temperature * noise
            probs = self._confidence(noisy, logits, inside)
            # Behind the cut stand the most probable tokens outside it.
            key = np.where(inside, noisy, scores - OUTSIDE)
            usable = np.count_nonzero(np.isfinite(key), axis=1)
        order = np.argsort(-key, axis=1, kind="stable")
        return ids[row, order], probs[row, order].astype(np.float32), usable.astype(np.int32)

    def _inside_cut(self, scores: Floats) -> npt.NDArray[np.bool_]:
        """Which candidates the target's top-k, top-p and min-p would leave of these rows."""
        p = self.params
        kept = np.isfinite(scores)
        if p.top_k > 0:
            kept[:, p.top_k :] = False
        probs = soft_max(np.where(kept, scores, -np.inf))
        if p.top_p < 1:
            kept &= np.cumsum(probs, axis=1) - probs < p.top_p
        if p.min_p > 0:
            kept &= probs >= p.min_p * probs.max(axis=1, keepdims=True)
        kept[:, 0] |= np.isfinite(scores[:, 0])
        return kept

    def _confidence(
        self, scores: Floats, logits: npt.NDArray[np.float32], inside: npt.NDArray[np.bool_]
    ) -> Floats:
        """The soft-max of the perturbed logits inside the cut; outside, what the draft gives."""
        within = soft_max(np.where(inside, scores / (self.draft_temperature or 1.0), -np.inf))
        outside = np.where(inside, 0.0, soft_max(logits.astype(np.float64)))
        mixed: Floats = within * (1.0 - outside.sum(axis=1, keepdims=True)) + outside
        return mixed

    def _noise(self, ids: Ids, index: Ids, streams: npt.NDArray[np.integer]) -> Floats:
        rows = [
            native.gumbel(self.seed, int(i), int(s), row)
            for row, i, s in zip(np.maximum(ids, 0), index, streams, strict=True)
        ]
        return np.stack(rows)


def soft_max(scores: Floats) -> Floats:
    """Row-wise soft-max of float64[n, K]; -inf gets 0, and so does a row of nothing else."""
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300))
