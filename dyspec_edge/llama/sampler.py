"""llama.cpp's sampler chain, and the options that describe it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp

from dyspec_edge import native
from dyspec_edge.errors import OptionError
from dyspec_edge.llama.context import function_address
from dyspec_edge.llama.model import Model

LEAST_TEMPERATURE = 1e-4
"""Below it logits divided by it are no longer numbers of 32 bits."""

MOST_BIAS = 1e9

# Beyond these ends a value makes infinities of logits, or has no meaning.
_RANGES = (
    ("temperature", 0.0, 1e4),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical", 0.0, 1.0),
    ("repeat_penalty", 1e-2, 1e2),
    ("frequency_penalty", -1e4, 1e4),
    ("presence_penalty", -1e4, 1e4),
    ("dry_multiplier", -1e4, 1e4),
    ("dry_base", 1.0, 1e4),
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options with llama.cpp's meanings and defaults.

    Attributes:
        temperature: 0 decodes greedily.
        repeat_last_n, dry_penalty_last_n: tokens that penalties look back at; -1 for the whole
            context.
        logit_bias: (token id, value added to its logit) pairs; a mapping is taken as well.
        ignore_eos: no end token is ever drawn; the text ends with its limit or a stop string.
        grammar: GBNF with a rule `root` that the text has to fit, or None.
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
    ignore_eos: bool = False
    grammar: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))

    def without_end(self, end_tokens: Iterable[int]) -> SamplingParams:
        """The same with `ignore_eos` spelled out, for target and draft: -inf on every end token."""
        if not self.ignore_eos:
            return self
        banned = ((token, -math.inf) for token in end_tokens)
        return replace(self, logit_bias=(*self.logit_bias, *banned))

    def check(self, num_vocab: int) -> None:
        """Raise OptionError for a value that has no meaning."""
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not _is_number(value) or not math.isfinite(value):
                raise OptionError(f"{name} is {value!r}; it must be a finite number")
            if not least <= value <= most:
                raise OptionError(f"{name} is {value}; it must lie in {least:g} to {most:g}")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise OptionError(
                f"temperature is {self.temperature}; "
                f"it must be 0, which is greedy, or at least {LEAST_TEMPERATURE:g}"
            )
        for name in ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n"):
            value = getattr(self, name)
            if not _is_whole(value) or not -1 <= value < 2**31:
                raise OptionError(f"{name} is {value!r}; it must be a whole number from -1 on")
        if self.grammar is not None and not isinstance(self.grammar, str):
            raise OptionError(f"grammar is {self.grammar!r:.40}; it must be a text")
        if self.seed is not None and not (_is_whole(self.seed) and 0 <= self.seed < 2**64):
            raise OptionError(f"seed is {self.seed!r}; it must lie in 0 to 2**64 - 1")
        self._check_bias(num_vocab)

    def within(self, num_ctx: int) -> SamplingParams:
        """The same with penalties that look back at a context of so many tokens at most."""

        def clamped(last_n: int) -> int:
            return num_ctx if last_n < 0 else min(last_n, num_ctx)

        return replace(
            self,
            repeat_last_n=clamped(self.repeat_last_n),
            dry_penalty_last_n=clamped(self.dry_penalty_last_n),
        )

    def _check_bias(self, num_vocab: int) -> None:
        try:
            pairs = [(token, bias) for token, bias in self.logit_bias]
        except (TypeError, ValueError):
            raise OptionError(
                f"logit_bias is {self.logit_bias!r}; it must be pairs of a token id and a number"
            ) from None
        for token, bias in pairs:
            if not _is_whole(token) or not 0 <= token < num_vocab:
                raise OptionError(
                    f"logit_bias names token {token!r}; the vocabulary ends at {num_vocab - 1}"
                )
            if not _is_number(bias) or not (bias == -math.inf or abs(bias) <= MOST_BIAS):
                raise OptionError(
                    f"logit_bias of token {token} is {bias!r}; it must be a number of at most "
                    f"{MOST_BIAS:g}, or -inf to ban it"
                )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class SamplerChain:
    """A llama_sampler chain without a draw at its end.

    Order as in llama.cpp: logit bias, penalties, DRY, top-k, typical, top-p, min-p, temperature.

    Attributes:
        remembers: whether what it leaves depends on the tokens before.
    """

    _BREAKERS = (b"\n", b":", b'"', b"*")  # llama.cpp's own default for DRY

    def __init__(self, model: Model, params: SamplingParams) -> None:
        o = params.within(model.num_ctx_train)
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
            self._add(
                llama_cpp.llama_sampler_init_dry(
                    model.vocab,
                    o.dry_multiplier,
                    o.dry_base,
                    o.dry_allowed_length,
                    o.dry_penalty_last_n,
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
