"""Samplers for llama.cpp's decode graph: top-k and log-sum-exp where the logits are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import DyspecError
from dyspec_edge.native.library import (
    DEVICE_FUNCTIONS,
    FIRST_BAD_ROW,
    DeviceStruct,
    Int32s,
    lib,
    pointer,
)
from dyspec_edge.native.rows import not_finite


class DeviceTopK:
    """What the samplers of one context share; it must outlive them.

    Args:
        resolve: the address of a function of the llama.cpp that is loaded, by its name.
        num_vocab: the first so many logits of a row count.
        k: entries wanted, at most 256.
    """

    def __init__(self, resolve: Callable[[str], int], num_vocab: int, k: int) -> None:
        self._struct = DeviceStruct(*map(resolve, DEVICE_FUNCTIONS), num_vocab, k, 0)

    def make_sampler(self) -> int:
        """Address of a new llama_sampler, for a chain of its own."""
        return int(lib.dyspec_device_sampler(self._struct))

    @property
    def address(self) -> int:
        """Of the dyspec_device; valid as long as this object lives."""
        return ctypes.addressof(self._struct)

    @property
    def num_supported(self) -> int:
        """Samplers that were attached to a device which has all operations."""
        return int(self._struct.n_supported)

    def read(
        self,
        context_address: int,
        rows: Int32s,
        ids: Int32s,
        logits: npt.NDArray[np.float32],
        lse: npt.NDArray[np.float32],
    ) -> None:
        """Write what the samplers found in the last pass, as `topk` does.

        Among logits that equal the k-th largest, the device chooses which are kept.

        Args:
            context_address: the llama_context.
            rows: int32[n], rows of the batch.
            ids: int32[n, k], written, largest logit first.
            logits: float32[n, k], written.
            lse: float32[n], written.

        Raises:
            DyspecError: a row has NaN or +inf among its logits, or no finite one.
        """
        n, k = len(rows), int(self._struct.k)
        code = lib.dyspec_device_read(
            self._struct,
            context_address,
            pointer(rows, np.int32, n),
            n,
            pointer(ids, np.int32, n * k),
            pointer(logits, np.float32, n * k),
            pointer(lse, np.float32, n),
        )
        if code <= FIRST_BAD_ROW:
            raise not_finite(f"row {FIRST_BAD_ROW - code} of the logits", on_device=True)
        if code < 0:
            raise DyspecError("llama.cpp gave no samples for a row; use --device-sampling off")
