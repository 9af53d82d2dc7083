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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import ChainOptions, Model, SamplerChain
from dyspec_edge.native.rows import not_finite

# Streams of the counter-based generator; draft nodes take 1, 2, ... (draft/ranking.py), and where
# they are drawn with replacement those from DRAW_STREAM on.
TARGET_STREAM = 0
DRAW_STREAM = 1 << 30
ACCEPT_STREAM = 1 << 31


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options with llama.cpp's meanings and defaults.

    Attributes:
        temperature: 0 decodes greedily.
        logit_bias: (token id, value added to its logit) pairs.
        seed: 0 to 2**64 - 1, or None for a fresh random one per reply.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None

    def check(self, num_vocab: int) -> None:
        """Raise OptionError for a value that has no meaning."""
        for name in (
            "temperature",
            "frequency_penalty",
            "presence_penalty",
            "dry_multiplier",
            "dry_base",
        ):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name} is {getattr(self, name)}; it must be a finite number")
        if self.temperature < 0:
            raise OptionError(f"temperature is {self.temperature}; it must be 0 or more")
        if not (math.isfinite(self.repeat_penalty) and self.repeat_penalty > 0):
            raise OptionError(f"repeat_penalty is {self.repeat_penalty}; it must be above 0")
        if self.dry_base < 1:
            raise OptionError(f"dry_base is {self.dry_base}; it must be 1 or more")
        for name in ("top_p", "min_p", "typical"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} is {getattr(self, name)}; it must lie in 0 to 1")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise OptionError(f"seed is {self.seed}; it must lie in 0 to 2**64 - 1")
        for token, bias in self.logit_bias:
            if not 0 <= token < num_vocab:
                raise OptionError(
                    f"logit_bias names token {token}; the vocabulary ends at {num_vocab - 1}"
                )
            if not bias < math.inf:
                raise OptionError(
                    f"logit_bias of token {token} is {bias}; it must be a number, or -inf to ban it"
                )


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
        native: the same for native code.
    """

    def __init__(
        self, model: Model, params: SamplingParams, seed: int, prompt: Sequence[int] = ()
    ) -> None:
        self.params = params
        self.temperature = params.temperature
        self._chain = SamplerChain(
            model,
            ChainOptions(
                **{name: getattr(params, name) for name in ChainOptions.__dataclass_fields__}
            ),
        )
        self.native = self._chain.sampler(seed, model.num_vocab)
        self._seconds = 0.0
        for token in prompt:
            self.accept(token)

    @property
    def seed(self) -> int:
        """The reply's own seed."""
        return self.native.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.native.seed = seed

    def sample(self, row_address: int, index: int) -> int:
        """The target's token number `index` of the reply, given its row of logits.

        Raises:
            DyspecError: the row holds no finite value.
        """
        return self.native.sample(row_address, index)

    def distribution(
        self, row_address: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """What the chain leaves of a row: ids int32[m], ascending, and probabilities float64[m].

        Raises:
            DyspecError: the row holds no finite value.
        """
        started = time.perf_counter()
        left = self.native.apply(row_address)
        ids, logits = left["id"].copy(), left["logit"].astype(np.float64)
        order = np.argsort(ids, kind="stable")
        ids, logits = ids[order], logits[order]
        if not math.isfinite(logits.max()):
            raise not_finite("what the samplers left of the logits")
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

    def accept(self, token: int) -> None:
        """Add an emitted token to the text that penalties and DRY see."""
        self.native.accept(token)

    @property
    def seconds(self) -> float:
        """Running total in the sampler chain and the draw."""
        return self._seconds + self.native.seconds

    @property
    def rows_seconds(self) -> float:
        """Running total of reducing bare rows of logits."""
        return self.native.rows_seconds

    def close(self) -> None:
        """Free the chain.  Idempotent."""
        self._chain.close()
