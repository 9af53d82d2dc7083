"""A sampler in a context's decode graph, so that candidates come back instead of logits.

It is written against structures of llama.h that differ from commit to commit: with a
llama.cpp that is not known, or that lacks a function, a context does without it.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.errors import DyspecError
from dyspec_edge.llama.devices import loaded_commit
from dyspec_edge.llama.symbols import ggml
from dyspec_edge.native import lib, pointer
from dyspec_edge.native.library import FIRST_BAD_ROW
from dyspec_edge.native.rows import not_finite

log = logging.getLogger("dyspec_edge.candidates")  # "dyspec_edge.llama" is llama.cpp's, silent

KNOWN_COMMITS = ("0c1e570",)
"""Commits of llama.cpp for which native/src/backend_sampler.cpp has the layouts."""


class BackendSampler:
    """One in the decode graph of a context, for all its sequences; `attach` makes it.

    Attributes:
        handle: the dyspec_backend_sampler.

    Raises:
        AttributeError: the llama.cpp that is loaded lacks a function.
        MemoryError: as its name says.
    """

    def __init__(self, context: Any, num_sequences: int, *, num_vocab: int, k: int) -> None:
        addresses = [_address(name) for name in native.BACKEND_FUNCTIONS]
        self._set_sampler = llama_cpp.llama_set_sampler
        functions = (ctypes.c_void_p * len(addresses))(*addresses)
        self.handle = native.Handle(
            lib.dyspec_backend_sampler_create(functions, num_vocab, k),
            lib.dyspec_backend_sampler_free,
        )
        self._context = context
        self._k = k
        self._chains: list[Any] = []
        try:
            for seq in range(num_sequences):
                self._add(seq)
        except BaseException:  # the context must not keep those that are there already
            self.detach()
            raise

    @property
    def is_supported(self) -> bool:
        """Whether the backend of the logits has all operations."""
        found: int = lib.dyspec_backend_sampler_n_supported(self.handle.address)
        return found == len(self._chains)

    def read(
        self,
        rows: native.Int32s,
        ids: native.Int32s,
        logits: npt.NDArray[np.float32],
        lse: npt.NDArray[np.float32],
    ) -> None:
        """Write the candidates that the last pass found for `rows` of its batch, as `topk` does.

        Among logits that equal the k-th largest, the backend chooses which are kept.

        Args:
            rows: int32[n]; rows that asked for logits.
            ids, logits: int32 and float32 [n, k], written, largest logit first; -1 and -inf beyond
                the vocabulary.
            lse: float32[n], written: log-sum-exps.

        Raises:
            DyspecError: NaN or +inf among the logits of a row, or no finite one.
        """
        n = len(rows)
        code = lib.dyspec_backend_sampler_read(
            self.handle.address,
            native.address_of(self._context),
            pointer(rows, np.int32, n),
            n,
            pointer(ids, np.int32, n * self._k),
            pointer(logits, np.float32, n * self._k),
            pointer(lse, np.float32, n),
        )
        if code <= FIRST_BAD_ROW:
            raise not_finite(f"row {FIRST_BAD_ROW - code} of the logits", on_backend=True)
        if code < 0:
            raise DyspecError("llama.cpp gave no samples for a row; use --device-sampling off")

    def detach(self) -> None:
        """Let the context give whole rows of logits again."""
        for seq in range(len(self._chains)):
            self._set_sampler(self._context, seq, None)
        self.close()

    def _add(self, seq: int) -> None:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self._chains.append(chain)
        sampler = lib.dyspec_backend_sampler_add(self.handle.address)
        if not sampler:
            raise MemoryError("llama.cpp could not make a sampler")
        llama_cpp.llama_sampler_chain_add(
            chain, ctypes.cast(sampler, llama_cpp.llama_sampler_p_ctypes)
        )
        self._set_sampler(self._context, seq, chain)

    def close(self) -> None:
        """Free the samplers, once they are detached or the context is gone.  Idempotent."""
        while self._chains:
            llama_cpp.llama_sampler_free(self._chains.pop())
        self.handle.close()


def attach(
    context: Any, num_sequences: int, *, num_vocab: int, k: int, commit: str | None = None
) -> BackendSampler | None:
    """Let the backend find the k largest of the first `num_vocab` logits of every row.

    Args:
        context: the llama_context pointer, made with n_outputs_max_per_seq = 0.
        commit: of the llama.cpp that is loaded; by default what it says of itself.

    Returns:
        None where that cannot be; the reason is logged for debugging.
    """
    commit = commit or loaded_commit()
    if commit not in KNOWN_COMMITS:
        log.debug("candidates come from the host: llama.cpp %s is not known", commit)
        return None
    try:
        sampler = BackendSampler(context, num_sequences, num_vocab=num_vocab, k=k)
    except AttributeError as error:
        log.debug("candidates come from the host: %s", error)
        return None
    if not sampler.is_supported:
        log.debug("candidates come from the host: the device lacks an operation")
        sampler.detach()
        return None
    return sampler


def _address(name: str) -> int:
    library, _, function = name.partition("_")
    found = ggml(function) if library == "ggml" else getattr(llama_cpp.llama_cpp._lib, name)
    return native.address_of(found)
