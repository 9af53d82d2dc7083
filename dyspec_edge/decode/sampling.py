"""How the target's own token is drawn: llama.cpp's sampler chain, then our draw.

The draw is argmax(logit / T + G), G a standard Gumbel number that a counter-based generator gives
for (seed, index in the reply, token id).  That is sampling from the soft-max, and it makes the
text a function of target and seed alone: whoever knows seed and index knows the noise, so a
draft can be perturbed in the same way (*shared noise*).
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.llama import Model, SamplerChain, SamplingParams
from dyspec_edge.native import lib, pointer
from dyspec_edge.native.library import NOT_FINITE, NOTHING_FITS
from dyspec_edge.native.rows import not_finite

__all__ = ["Sampler", "SamplingParams", "fresh_seed"]

# Streams of the counter-based generator; draft nodes take 1, 2, ... (draft/ranking.py), and where
# they are drawn with replacement those from DRAW_STREAM on.
TARGET_STREAM = 0
DRAW_STREAM = 1 << 30
ACCEPT_STREAM = 1 << 31


def fresh_seed() -> int:
    """A random seed, short enough to be typed again."""
    return secrets.randbelow(2**32)


class Sampler:
    """Draws the tokens of one reply from the target's logits.

    Args:
        model: the target.
        params: options; `params.seed` is ignored in favour of `seed`.
        seed: the reply's own seed.
        prompt: tokens that penalties and DRY count as text already written.

    Attributes:
        handle: the dyspec_sampler.
        grammar: what the reply has to fit, or None.
    """

    def __init__(
        self, model: Model, params: SamplingParams, seed: int, prompt: Sequence[int] = ()
    ) -> None:
        self.params = params
        self.temperature = params.temperature
        self._chain = SamplerChain(model, params)
        self.handle = self._chain.create_sampler(seed)
        self._num_vocab = model.num_vocab
        self._seed = seed
        self._seconds = 0.0
        self.grammar: Grammar | None = None
        self.accept(prompt)
        if params.grammar is not None:
            self.grammar = Grammar(model, params.grammar)
            lib.dyspec_sampler_set_grammar(self.handle.address, self.grammar.handle.address)
            self.handle.use(self.grammar.handle)

    @property
    def seed(self) -> int:
        """The reply's own seed."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = seed
        lib.dyspec_sampler_set_seed(self.handle.address, seed)

    def sample(self, row_address: int, index: int) -> int:
        """The target's token number `index` of the reply, given its row of logits.

        Raises:
            DyspecError: the row holds no finite value, or nothing fits the grammar.
        """
        token: int = lib.dyspec_sampler_sample(self.handle.address, row_address, index)
        self.check(token)
        return token

    def distribution(
        self, row_address: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """What the chain leaves of a row: ids int32[m], ascending, and probabilities float64[m].

        Raises:
            DyspecError: the row holds no finite value.
        """
        left, logits32 = np.empty(self._num_vocab, np.int32), np.empty(self._num_vocab, np.float32)
        n = lib.dyspec_sampler_apply(
            self.handle.address, row_address, left.ctypes.data, logits32.ctypes.data
        )
        started = time.perf_counter()
        ids, logits = left[:n], logits32[:n].astype(np.float64)
        order = np.argsort(ids, kind="stable")
        ids, logits = ids[order], logits[order]
        if not math.isfinite(logits.max()):
            raise self._nothing_left()
        if self.temperature > 0:
            weights = np.exp(logits - logits.max())
        else:
            weights = np.zeros(len(ids))
            weights[int(np.argmax(logits))] = 1.0
        self._seconds += time.perf_counter() - started
        return ids, weights / weights.sum()

    def pick(self, ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float64], index: int) -> int:
        """One of `ids` by its probability, with the target's noise for `index`."""
        with np.errstate(divide="ignore"):
            noisy = np.log(probs) + native.gumbel(self.seed, index, TARGET_STREAM, ids)
        return int(ids[int(np.argmax(noisy))])

    def chance(self, index: int, child_rank: int, token: int) -> float:
        """A uniform number in (0, 1) for accepting a child, independent of every other draw."""
        stream = ACCEPT_STREAM + child_rank
        return float(native.uniform(self.seed, index, stream, np.array([token], np.int32))[0])

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text that penalties, DRY and the grammar see."""
        if (self._chain.remembers or self.grammar is not None) and tokens:
            ids = np.array(tokens, np.int32)
            lib.dyspec_sampler_accept(
                self.handle.address, pointer(ids, np.int32, len(ids)), len(ids)
            )

    def check(self, code: int) -> None:
        """Raise what a negative code means that is about the choice of a token.

        Raises:
            DyspecError: the row holds no finite value, or nothing fits the grammar.
        """
        if code == NOT_FINITE:
            raise self._nothing_left()
        if code == NOTHING_FITS:
            raise DyspecError("no token of the model's vocabulary fits the grammar here")

    def _nothing_left(self) -> DyspecError:
        if any(bias == -math.inf for _, bias in self.params.logit_bias):
            return OptionError("logit_bias bans every token that could come next; ban fewer")
        return not_finite("what the samplers left of the logits")

    @property
    def seconds(self) -> float:
        """Running total in the sampler chain and the draw."""
        return self._seconds + float(lib.dyspec_sampler_seconds(self.handle.address))

    @property
    def rows_seconds(self) -> float:
        """Running total of reducing bare rows of logits."""
        return float(lib.dyspec_sampler_rows_seconds(self.handle.address))

    def close(self) -> None:
        """Free sampler, chain and grammar.  Idempotent."""
        self.handle.close()
        self._chain.close()
        if self.grammar is not None:
            self.grammar.close()
