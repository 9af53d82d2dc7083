"""From a draft's logits to candidates: which tokens become children, in which order, how likely.

Under `match` the draft gets the target's own noise, so that its largest perturbed logit is the
best guess at the target's draw, and the soft-max of the perturbed logits is a calibrated
confidence.  Under `residual` children are drawn without replacement with noise of their own.
Where the target's chain cuts (top-k, top-p, min-p), the draft is cut in the same way, and the
most probable tokens outside the cut stand behind the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.decode.sampling import DRAW_STREAM, SamplingParams

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The rule for one reply.

    Attributes:
        params: the target's sampling options.
        seed: the reply's seed.
        residual: children are drawn (`residual`) instead of ranked (`match`).
        grammar: what the reply has to fit; other candidates are left out.
        draft_temperature: overrides 1.0 (`match`) or the target's temperature (`residual`).
        shared_noise: False ranks by plain probability under `match`; tests use it to show that
            the noise is what makes guesses right.
        handle: the dyspec_ranking, which holds the same for native code.
    """

    params: SamplingParams
    seed: int
    residual: bool = False
    draft_temperature: float | None = None
    shared_noise: bool = True
    grammar: Grammar | None = None
    handle: native.Handle = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bias = self.params.logit_bias
        bias_ids = np.array([token for token, _ in bias], np.int32)
        amounts = np.array([amount for _, amount in bias], np.float32)
        address = native.lib.dyspec_ranking_create(
            self.seed,
            self.params.temperature,
            self.draft_temperature or 0.0,
            self.params.top_p,
            self.params.min_p,
            self.params.top_k,
            self.residual,
            self.residual or self.shared_noise,
            native.pointer(bias_ids, np.int32, len(bias)),
            native.pointer(amounts, np.float32, len(bias)),
            len(bias),
        )
        handle = native.Handle(address, native.lib.dyspec_ranking_free)
        object.__setattr__(self, "handle", handle)

    def rank(
        self, ids: Ids, logits: npt.NDArray[np.float32], index: Ids, nodes: Ids
    ) -> tuple[Ids, npt.NDArray[np.float32], Ids]:
        """Order candidates for drawing.

        Args:
            ids, logits: int32 and float32 [n, K]; -inf where a token must not be drafted.
            index: int32[n], index in the reply of the token below each node.
            nodes: int32[n], tree nodes, which number the draft's own noise.

        Returns:
            ids int32[n, K] and probabilities float32[n, K] in the order of drawing, and the
            number of usable candidates int32[n].  Under `residual` those without a probability
            stand behind them in the order of a uniform draw; -1 must not be drafted.

        Raises:
            ValueError: too many candidates.
        """
        ids, (n, k) = ids.copy(), ids.shape
        index, nodes = index.astype(np.int32), nodes.astype(np.int32)
        probs, usable = np.empty((n, k), np.float32), np.empty(n, np.int32)
        code = native.lib.dyspec_rank(
            self.handle.address,
            n,
            k,
            native.pointer(ids, np.int32, n * k),
            native.pointer(logits, np.float32, n * k),
            native.pointer(index, np.int32, n),
            native.pointer(nodes, np.int32, n),
            probs.ctypes.data,
            usable.ctypes.data,
        )
        if code < 0:
            raise ValueError(f"{k} candidates a row: 1 to 256 can be ranked")
        return ids, probs, usable

    def sample_children(
        self, probs: npt.NDArray[np.float32], index: int, node: int, count: int
    ) -> Ids:
        """Draw candidates with replacement; under `match`, where ranks decide, take the first.

        Args:
            probs: float32[m], of the usable candidates of a node.
            index: index in the reply of the token below the node.

        Returns:
            Places int32[n] among the candidates: n is `count`, under `match` at most m.
        """
        if not self.residual:
            return np.arange(min(count, len(probs)), dtype=np.int32)
        mass = np.cumsum(probs, dtype=np.float64)
        numbers = np.arange(count, dtype=np.int32)
        chance = native.uniform(self.seed, index, DRAW_STREAM + node, numbers)
        places: Ids = np.searchsorted(mass, chance * mass[-1]).astype(np.int32)
        return places
