"""What the order of cells in the cache does to logits, without any tree.

Rejected nodes leave holes, which later tokens fill, so attention adds the same numbers in another
order.  Here one text is decoded plainly, a row a pass, twice: into a fresh cache, and into one
where a second sequence takes cells and gives them back.  What the logits differ by is rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click
import numpy as np
import numpy.typing as npt

from benchmarks import report
from benchmarks.prompts import filler
from benchmarks.workbench import Setup, bench_options
from dyspec_edge.llama import Batch, Context, Model

Rows = npt.NDArray[np.float32]

FORMS = (("on", "f16"), ("on", "f32"), ("off", "f16"), ("off", "f32"))
PERIOD, TAKEN_AT, NUM_TAKEN, FREED_AT = 8, 3, 4, 7
"""Every so many tokens, after this one, so many cells are taken, and freed after that one."""


@click.command("cell-order")
@bench_options(tokens=240)
def cell_order(setup: Setup) -> None:
    """Logits of plain decoding in two orders of cells, by attention and cache type."""
    where = setup.circumstances()
    with setup.runs("cell-order", where) as runs, Model(setup.model) as model:
        runs.expect(len(FORMS))
        text = model.tokenize(filler(setup.prompts), add_special=True, parse_special=False)
        text = text[: setup.num_tokens]
        found = [
            runs(
                {"flash_attn": attention, "cache_type": kind},
                partial(_compare, setup, model, text, attention, kind),
            )
            for attention, kind in FORMS
        ]
    rows = [
        (
            f"`-fa {attention} -ctk {kind} -ctv {kind}`",
            f"{run['mean']:.4f}",
            f"{run['largest']:.3f}",
            f"{run['flips']} of {len(text)}",
            f"{run['gap']:.3f}",
        )
        for (attention, kind), run in zip(FORMS, found, strict=True)
    ]
    header = ("attention, cache", "mean", "largest", "another arg max", "largest gap there")
    report.show(f"{setup.model.name}: logits in two orders of cells, differences", header, rows)
    report.finish(
        {**where, "load average": runs.load},
        {f"{a} {k}": run for (a, k), run in zip(FORMS, found, strict=True)},
    )


def _compare(
    setup: Setup, model: Model, text: Sequence[int], attention: str, kind: str
) -> dict[str, float]:
    def decode(*, with_holes: bool) -> Rows:
        context = Context(
            model,
            num_ctx=2 * len(text) + 256,
            num_sequences=2,
            num_outputs=2,
            num_threads=setup.num_threads,
            flash_attn=attention,
            type_k=kind,
            type_v=kind,
        )
        try:
            return _decode(context, text, with_holes=with_holes)
        finally:
            context.close()

    fresh, mixed = decode(with_holes=False), decode(with_holes=True)
    rows, best = np.arange(len(text)), fresh.argmax(axis=1)
    gaps = fresh[rows, best] - fresh[rows, mixed.argmax(axis=1)]
    difference = np.abs(fresh - mixed)
    return {
        "mean": float(difference.mean()),
        "largest": float(difference.max()),
        "flips": int(np.count_nonzero(gaps)),
        "gap": float(gaps.max()),
    }


def _decode(context: Context, text: Sequence[int], *, with_holes: bool) -> Rows:
    """Logits after every token, float32[n, num_vocab], a row a pass."""
    batch, found = Batch(context.max_rows), []
    for at, token in enumerate(text):
        batch.clear()
        batch.add([token], at, output=True)
        context.decode(batch)
        found.append(context.row_view(context.logits_address()).copy())
        if with_holes and at % PERIOD == TAKEN_AT:
            batch.clear()
            batch.add(text[:NUM_TAKEN], 0, [1], output=False)
            context.decode(batch)
        if with_holes and at % PERIOD == FREED_AT:
            context.seq_rm(1, -1, -1)
    return np.stack(found)
