"""Samplers in a context's decode graph, so that candidates come back instead of logits.

They are written against structures of llama.h that differ from commit to commit: with a
llama.cpp that is not known, or that lacks a function, a context does without them.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.llama.devices import loaded_commit
from dyspec_edge.llama.symbols import ggml

log = logging.getLogger("dyspec_edge.candidates")  # "dyspec_edge.llama" is llama.cpp's, silent

KNOWN_COMMITS = ("0c1e570",)
"""Commits of llama.cpp for which native/src/device.cpp has the layouts."""


class DeviceCandidates:
    """Samplers attached to all sequences of a context; `attach_candidates` makes it.

    Attributes:
        shared: what native code reads the candidates with.
    """

    def __init__(self, context: Any, shared: native.DeviceTopK, num_sequences: int) -> None:
        self.shared = shared
        self._context = context
        self._address = native.address_of(context)
        self._chains: list[Any] = []
        for seq in range(num_sequences):
            chain = llama_cpp.llama_sampler_chain_init(
                llama_cpp.llama_sampler_chain_default_params()
            )
            self._chains.append(chain)
            sampler = ctypes.cast(shared.make_sampler(), llama_cpp.llama_sampler_p_ctypes)
            llama_cpp.llama_sampler_chain_add(chain, sampler)
            llama_cpp.llama_set_sampler(context, seq, chain)

    @property
    def is_supported(self) -> bool:
        """Whether the device of the logits has all operations."""
        return self.shared.num_supported == len(self._chains)

    def read(
        self,
        rows: npt.NDArray[np.int32],
        ids: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
        lse: npt.NDArray[np.float32],
    ) -> None:
        """Write the candidates that the last pass found for `rows` of its batch.

        Args:
            rows: int32[n]; rows that asked for logits.
            ids, logits: int32 and float32 [n, k], written, largest logit first; -1 and -inf beyond
                the vocabulary.
            lse: float32[n], written: log-sum-exps.

        Raises:
            DyspecError: NaN or +inf among the logits of a row, or no finite one.
        """
        self.shared.read(self._address, rows, ids, logits, lse)

    def detach(self) -> None:
        """Let the context give whole rows of logits again."""
        for seq in range(len(self._chains)):
            llama_cpp.llama_set_sampler(self._context, seq, None)
        self.close()

    def close(self) -> None:
        """Free the samplers, once they are detached or the context is gone.  Idempotent."""
        while self._chains:
            llama_cpp.llama_sampler_free(self._chains.pop())


def attach_candidates(
    context: Any, num_sequences: int, *, num_vocab: int, k: int, commit: str | None = None
) -> DeviceCandidates | None:
    """Attach samplers that find the k largest of the first `num_vocab` logits of every row.

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
        shared = native.DeviceTopK(_address, num_vocab, k)
    except AttributeError as error:
        log.debug("candidates come from the host: %s", error)
        return None
    candidates = DeviceCandidates(context, shared, num_sequences)
    if not candidates.is_supported:
        log.debug("candidates come from the host: the device lacks an operation")
        candidates.detach()
        return None
    return candidates


def _address(name: str) -> int:
    library, _, function = name.partition("_")
    found = ggml(function) if library == "ggml" else getattr(llama_cpp.llama_cpp._lib, name)
    return native.address_of(found)
