"""llama.cpp's sampler chain, and the options that describe it."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import llama_cpp

from dyspec_edge import native
from dyspec_edge.errors import OptionError
from dyspec_edge.llama.context import function_address
from dyspec_edge.llama.model import Model


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


class SamplerChain:
    """A llama_sampler chain without a draw at its end.

    Order as in llama.cpp: logit bias, penalties, DRY, top-k, typical, top-p, min-p, temperature.

    Attributes:
        remembers: whether what it leaves depends on the tokens before.
    """

    _BREAKERS = (b"\n", b":", b'"', b"*")  # llama.cpp's own default for DRY

    def __init__(self, model: Model, params: SamplingParams) -> None:
        o = params
        n_vocab = model.num_vocab
        self._num_vocab = n_vocab
        self._greedy = o.temperature == 0.0
        self._chain: Any = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        self._handle = native.Handle(native.address_of(self._chain), _free)
        biases = [*o.logit_bias, *((t, float("-inf")) for t in model.suppressed_tokens())]
        if biases:
            array = (llama_cpp.llama_logit_bias * len(biases))(*biases)
            self._add(llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(biases), array))
        penalises = (o.repeat_penalty, o.frequency_penalty, o.presence_penalty) != (1.0, 0.0, 0.0)
        self.remembers = penalises or o.dry_multiplier > 0.0
        if penalises:
            self._add(
                llama_cpp.llama_sampler_init_penalties(
                    n_vocab,
                    o.repeat_last_n,
                    o.repeat_penalty,
                    o.frequency_penalty,
                    o.presence_penalty,
                )
            )
        if o.dry_multiplier > 0.0:
            breakers = (ctypes.c_char_p * len(self._BREAKERS))(*self._BREAKERS)
            last_n = model.num_ctx_train if o.dry_penalty_last_n < 0 else o.dry_penalty_last_n
            self._add(
                llama_cpp.llama_sampler_init_dry(
                    model.vocab,
                    o.dry_multiplier,
                    o.dry_base,
                    o.dry_allowed_length,
                    last_n,
                    breakers,
                    len(self._BREAKERS),
                )
            )
        if o.temperature > 0.0:
            self._add(llama_cpp.llama_sampler_init_top_k(o.top_k))
            self._add(llama_cpp.llama_sampler_init_typical(o.typical, 0))
            self._add(llama_cpp.llama_sampler_init_top_p(o.top_p, 0))
            self._add(llama_cpp.llama_sampler_init_min_p(o.min_p, 0))
            self._add(llama_cpp.llama_sampler_init_temp(o.temperature))

    def create_sampler(self, seed: int) -> native.Handle:
        """A dyspec_sampler, which draws from what this chain leaves as long as it is open."""
        is_empty = llama_cpp.llama_sampler_chain_n(self._chain) == 0
        address = native.lib.dyspec_sampler_create(
            function_address("sampler_apply"),
            function_address("sampler_accept") if self.remembers else None,
            None if is_empty else self._handle.address,
            self._num_vocab,
            seed,
            self._greedy,
        )
        return native.Handle(address, native.lib.dyspec_sampler_free, uses=[self._handle])

    def _add(self, sampler: Any) -> None:
        llama_cpp.llama_sampler_chain_add(self._chain, sampler)

    def close(self) -> None:
        """Free the samplers.  Idempotent."""
        self._handle.close()


def _free(address: int) -> None:
    llama_cpp.llama_sampler_free(ctypes.cast(address, llama_cpp.llama_sampler_p_ctypes))
