"""How many of a draft's tokens pay for their rows: `draft trim --keep auto`.

Fewer rows make each pass cheaper by their share of the output layer, which is measured; each token
of a text that is cut out cannot be proposed.  How often that is to be expected is no matter of the
corpus: text of another kind misses far more, and ends every tree where it does.  What both come to
is the speed of the best chain that a typical pair would run.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import numpy.typing as npt

from dyspec_edge import llama
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import LONGEST_CHAIN, chain_rate
from dyspec_edge.decode.prices import TYPICAL_ACCEPTANCE

TARGET_PASSES = 4.0
"""Of the draft, that a pass of the target it is for takes as long as."""

STEP = 2048
"""Sizes that are looked at are multiples of it."""

_PASSES = 24
_CELLS = 512


def output_share(model: llama.Model, num_threads: int) -> float:
    """The share of a pass over one row that the output layer takes, 0..1.

    Passes with and without logits take turns; other programs only ever add time, so the least
    counts.

    Raises:
        DyspecError: the model cannot be run.
    """
    context = llama.Context(
        model, num_ctx=_CELLS, num_sequences=1, num_outputs=1, num_threads=num_threads
    )
    whole, without = [], []
    with closing(context), closing(Cache(context, 1)) as cache:
        for _ in range(_PASSES):
            before = cache.prefill_seconds
            cache.read([0])
            without.append(cache.prefill_seconds - before)
            whole.append(cache.time_pass(1))
    return max(0.0, 1 - min(without) / min(whole))


def best_size(
    ranked: npt.NDArray[np.int32],
    num_always: int,
    expected: npt.NDArray[np.float64],
    share: float,
) -> int:
    """The number of tokens that gives the fastest chain; all of them if none is cheaper.

    Args:
        ranked: int32[vocabulary], the most useful first.
        num_always: those that are kept whatever they cost.
        expected: how often text has each token (`kept_tokens.by_id`).
        share: see `output_share`.
    """
    covered = np.cumsum(expected[ranked]) / expected.sum()
    sizes: list[int] = [
        *range(-(-max(num_always, 1) // STEP) * STEP, len(ranked), STEP),
        len(ranked),
    ]
    rates = [_rate(size / len(ranked), covered[size - 1], share) for size in sizes]
    return sizes[int(np.argmax(rates))]


def _rate(kept: float, covered: float, share: float) -> float:
    target = np.full(LONGEST_CHAIN + 2, TARGET_PASSES)
    return chain_rate(target, 1 - share * (1 - kept), TYPICAL_ACCEPTANCE * covered)
