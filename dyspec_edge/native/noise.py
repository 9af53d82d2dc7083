"""Counter-based noise, and the arg max that samples with it.

Every number is a function of (seed, index in the reply, stream, token), so draft and target meet
the same one without exchanging anything.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dyspec_edge.native.library import Int32s, lib, pointer
from dyspec_edge.native.rows import not_finite


def philox(counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Philox4x32-10 of counter uint32[4] under key uint32[2]: uint32[4]."""
    out = np.empty(4, np.uint32)
    lib.dyspec_philox(pointer(counter, np.uint32, 4), pointer(key, np.uint32, 2), out.ctypes.data)
    return out


def uniform(seed: int, index: int, stream: int, tokens: Int32s) -> npt.NDArray[np.float64]:
    """Numbers strictly between 0 and 1, a function of (seed, index, stream, token) alone.

    (x + 1/2) / 2^32, x being word token & 3 of Philox4x32-10 at counter (index, token >> 2,
    stream, 0) under the 64-bit key `seed`.

    Returns:
        float64[n] for tokens int32[n].
    """
    out = np.empty(len(tokens), np.float64)
    lib.dyspec_uniform(
        seed, index, stream, pointer(tokens, np.int32, len(tokens)), len(tokens), out.ctypes.data
    )
    return out


def gumbel(seed: int, index: int, stream: int, tokens: Int32s) -> npt.NDArray[np.float64]:
    """Standard Gumbel numbers -log(-log(u)) of the same u as `uniform`, float64[n]."""
    out = np.empty(len(tokens), np.float64)
    lib.dyspec_gumbel(
        seed, index, stream, pointer(tokens, np.int32, len(tokens)), len(tokens), out.ctypes.data
    )
    return out


def gumbel_argmax(data_address: int, size: int, seed: int, index: int, stream: int) -> int:
    """Position of the largest logit + Gumbel(id) among llama_token_data[size].

    Equal sums go to the lower id; -inf and NaN never win.

    Raises:
        DyspecError: no logit is finite, or one is +inf.
    """
    best: int = lib.dyspec_gumbel_argmax(data_address, size, seed, index, stream)
    if best < 0:
        raise not_finite("what the samplers left of the logits")
    return best
