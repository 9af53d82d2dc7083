"""llama.cpp's sampler chain."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import llama_cpp

from dyspec_edge import native
from dyspec_edge.llama.model import Model


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """Values for llama.cpp's own samplers; 0 or 1 switch one off as in llama.cpp."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    logit_bias: tuple[tuple[int, float], ...]


class SamplerChain:
    """A llama_sampler chain without a draw at its end.

    Order as in llama.cpp: logit bias, penalties, DRY, top-k, typical, top-p, min-p, temperature.
    """

    _BREAKERS = (b"\n", b":", b'"', b"*")  # llama.cpp's own default for DRY

    def __init__(self, model: Model, options: ChainOptions) -> None:
        o = options
        n_vocab = model.num_vocab
        self._greedy = o.temperature == 0.0
        self._chain: Any = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        biases = [*o.logit_bias, *((t, float("-inf")) for t in model.suppressed_tokens())]
        if biases:
            array = (llama_cpp.llama_logit_bias * len(biases))(*biases)
            self._add(llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(biases), array))
        if (o.repeat_penalty, o.frequency_penalty, o.presence_penalty) != (1.0, 0.0, 0.0):
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

    def sampler(self, seed: int, num_vocab: int) -> native.TargetSampler:
        """Draws from what this chain leaves, as long as it is open."""
        functions = (
            getattr(llama_cpp.llama_cpp._lib, f"llama_sampler_{name}")
            for name in native.SAMPLER_FUNCTIONS
        )
        is_empty = llama_cpp.llama_sampler_chain_n(self._chain) == 0
        return native.TargetSampler(
            [native.address_of(function) for function in functions],
            None if is_empty else native.address_of(self._chain),
            num_vocab=num_vocab,
            seed=seed,
            greedy=self._greedy,
        )

    def _add(self, sampler: Any) -> None:
        llama_cpp.llama_sampler_chain_add(self._chain, sampler)

    def close(self) -> None:
        """Free the samplers.  Idempotent."""
        if self._chain:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = None
