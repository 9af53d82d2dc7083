"""Whether passes over n tokens and over one token agree on this machine, for the files at hand.

Trees stand on it: the target checks in one pass of n rows what plain decoding would do in n
passes of one row.  A backend that takes another kernel for several rows rounds differently, which
is harmless; one whose kernel is wrong changes the text, which nothing else would show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import UBATCH, Context, Model
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.loading import load
from dyspec_edge.load.machine import physical_cores

DEFAULT_BOUND = 1.0
"""Largest difference of a logit that is taken for rounding.

Measured on a CPU: F32 files below 1e-3; four 4-bit files of 135M to 1.5B at most 0.48; one wrong
token in sixteen 6.5 and more.
"""

NUM_TOP = 10
"""Logits of a row that are compared, the largest: those of tokens never sampled differ more."""

NUM_TOKENS = 16

_CELLS = UBATCH
_TEXT = (
    "The old lighthouse keeper wrote three letters every winter: one to his sister, one to the "
    "harbour office, and one that he never sent. In 1987 the lamp was replaced by a machine. "
    "def mean(values): return sum(values) / len(values)  # an empty list raises an error\n"
)

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How one file's passes agree.

    Attributes:
        role: what the file is loaded as.
        rows: tokens compared.
        max_logit_difference: the largest difference among the `NUM_TOP` largest logits of a row;
            nan if one is not finite.
        top1_flips: rows whose most probable token differs.
        largest_flip_gap: among those, the most that a one-token pass prefers its own choice by;
            a small one is a near tie.
        bound: what `max_logit_difference` may be.
    """

    role: Literal["target", "draft"]
    path: Path
    rows: int
    max_logit_difference: float
    top1_flips: int
    largest_flip_gap: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the difference is within the bound."""
        return self.max_logit_difference <= self.bound


def compare_passes(
    config: EngineConfig,
    n: int = NUM_TOKENS,
    *,
    bound: float = DEFAULT_BOUND,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[CheckReport, ...]:
    """Evaluate a fixed text's first n tokens in one pass and one by one.

    Args:
        config: as for the engine, which files are loaded and where; its policy is not used.
        n: tokens of the large pass.
        bound: largest difference of a logit that is taken for rounding.
        on_progress: as for `Engine.load`.

    Returns:
        A report on the target and, where a draft is loaded, one on the draft.

    Raises:
        OptionError: n is not 2 to 512; else as `Engine.load`.
    """
    if not 2 <= n <= _CELLS:
        raise OptionError(f"{n} tokens to compare: it must be 2 to {_CELLS}")
    policy = "none" if config.draft_file is None else "chain:1"
    loaded = load(replace(config, policy=policy, num_ctx=_CELLS), on_progress)
    try:
        models, plan = loaded.models, loaded.models.plan
        target = replace(config, flash_attn=plan.flash_attn)
        reports = [_compare(target, models.target, "target", models.adapters, n, bound)]
        if models.draft is not None and not models.uses_head:
            draft = replace(config, flash_attn=plan.flash_attn_draft)
            reports.append(_compare(draft, models.draft, "draft", [], n, bound))
    finally:
        loaded.close()
    return tuple(reports)


def _compare(
    config: EngineConfig,
    model: Model,
    role: Literal["target", "draft"],
    adapters: Sequence[Any],
    n: int,
    bound: float,
) -> CheckReport:
    context = Context(
        model,
        num_ctx=_CELLS,
        num_sequences=1,
        num_outputs=n,
        num_threads=config.num_threads or physical_cores(),
        flash_attn=config.flash_attn,
        type_k=config.cache_type_k,
        type_v=config.cache_type_v,
        adapters=adapters,
    )
    try:
        tokens = _tokens(model, n)
        together, single = _in_one_pass(context, tokens), _one_by_one(context, tokens)
    finally:
        context.close()
    flips, gap = _flips(single, together)
    top = np.argsort(-single, axis=1)[:, :NUM_TOP]
    here, there = (np.take_along_axis(rows, top, axis=1) for rows in (single, together))
    difference = float(np.abs(here - there).max())
    return CheckReport(role, model.path, n, difference, flips, gap, bound)


def _tokens(model: Model, n: int) -> list[int]:
    text = _TEXT
    while len(tokens := model.tokenize(text, add_special=True, parse_special=False)) < n:
        text += _TEXT
    return tokens[:n]


def _in_one_pass(context: Context, tokens: Sequence[int]) -> Rows:
    """A copy of the logits of `tokens`, float32[n, num_vocab], as the target checks a chain."""
    tree = TokenTree(len(tokens), 1)
    tree.reset(tokens[0])
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, 1.0)
    with closing(Cache(context, len(tokens))) as cache:
        cache.evaluate(tree, np.arange(len(tokens), dtype=np.int32))
        return np.stack([context.row_view(row) for row in cache.rows.tolist()])


def _one_by_one(context: Context, tokens: Sequence[int]) -> Rows:
    """The same as plain decoding has them."""
    tree, rows = TokenTree(1, 1), []
    with closing(Cache(context, 1)) as cache:
        for token in tokens:
            tree.reset(token)
            cache.evaluate(tree, np.zeros(1, np.int32))
            rows.append(context.row_view(int(cache.rows[0])).copy())
            cache.commit(tree, [0])
    return np.stack(rows)


def _flips(single: Rows, together: Rows) -> tuple[int, float]:
    """Rows with another most probable token, and the largest gap among them."""
    rows = np.arange(len(single))
    own, other = single.argmax(axis=1), together.argmax(axis=1)
    gaps = (single[rows, own] - single[rows, other])[own != other]
    return len(gaps), float(gaps.max(initial=0.0))
