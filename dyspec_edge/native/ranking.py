"""Candidates of draft rows, ordered for drawing."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import Int32s, RankingStruct, lib, pointer


class CandidateOrder:
    """One rule for ordering candidates (dyspec.h: dyspec_ranking).

    Args:
        seed: of the noise.
        temperature: the target's; 0 takes no noise and no cut.
        draft_temperature: of the soft-max; 0 for 1 under match, the target's under residual.
        top_k, top_p, min_p: the target's cuts.
        residual: candidates are drawn without replacement instead of ranked.
        noisy: whether noise takes part.
    """

    def __init__(
        self,
        *,
        seed: int,
        temperature: float,
        draft_temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        residual: bool,
        noisy: bool,
    ) -> None:
        self.struct = RankingStruct(
            seed, temperature, draft_temperature, top_p, min_p, top_k, residual, noisy
        )

    def rank(
        self,
        ids: Int32s,
        logits: npt.NDArray[np.float32],
        index: npt.NDArray[np.uint32],
        stream: npt.NDArray[np.uint32],
    ) -> tuple[npt.NDArray[np.float32], Int32s]:
        """Put the candidates of each row into the order of drawing.

        Args:
            ids: int32[n, k], k at most 256; in and out.  Under residual those without a probability
                stand behind the rest, in the order of a uniform draw; what must not be drafted
                comes back last, as -1.
            logits: float32[n, k], -inf where a token must not be drafted.
            index, stream: uint32[n], as `gumbel` takes them.

        Returns:
            Probabilities float32[n, k] in that order, and the number of usable candidates
            int32[n].

        Raises:
            ValueError: too many candidates.
        """
        n, k = ids.shape
        probs, usable = np.empty((n, k), np.float32), np.empty(n, np.int32)
        code = lib.dyspec_rank(
            ctypes.byref(self.struct),
            n,
            k,
            pointer(ids, np.int32, n * k),
            pointer(logits, np.float32, n * k),
            pointer(index, np.uint32, n),
            pointer(stream, np.uint32, n),
            probs.ctypes.data,
            usable.ctypes.data,
        )
        if code < 0:
            raise ValueError(f"{k} candidates a row: 1 to 256 can be ranked")
        return probs, usable
