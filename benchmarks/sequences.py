"""What copying and removing sequence ids costs a step, by cells of the context and leaves."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks import report
from benchmarks.workbench import Setup, bench_options
from dyspec_edge.decode.cache import TreeCache
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.llama import Context, Model

CELLS = (4096, 32768, 131072)
LEAVES = (16, 64, 255)
PREFIX = 64
DEPTH = 2
STEPS = 5


@click.command()
@bench_options(tokens=STEPS)
def sequences(setup: Setup) -> None:
    """Milliseconds a step, as a target (one pass) and as a draft (a pass a layer).

    llama.cpp looks at every cell of the context in every operation, whether it is used or not, so
    the contexts are not filled.
    """
    where = setup.circumstances()
    found: dict[tuple[int, int], dict[str, Any]] = {}
    with setup.runs("sequences", where) as runs, Model(setup.model) as model:
        runs.expect(len(CELLS) * len(LEAVES))
        for cells in CELLS:
            for leaves in LEAVES:
                found[cells, leaves] = runs(
                    {"cells": cells, "leaves": leaves},
                    partial(_measure, setup, model, cells, leaves),
                )
    rows = [
        (str(cells), str(leaves), f"{1e3 * run['target']:.2f}", f"{1e3 * run['draft']:.2f}")
        for (cells, leaves), run in found.items()
    ]
    header = ("cells", "leaves", "target, ms a step", "draft, ms a step")
    report.show("Sequence operations, medians over steps", header, rows)
    report.finish(
        {**where, "load average": runs.load},
        {f"{cells} {leaves}": run for (cells, leaves), run in found.items()},
    )


def _measure(setup: Setup, model: Model, cells: int, leaves: int) -> dict[str, float]:
    context = Context(
        model,
        num_ctx=cells,
        num_sequences=leaves,
        num_outputs=1 + DEPTH * leaves,
        num_threads=setup.num_threads,
        flash_attn="on",
    )
    cache = TreeCache(context, 1 + DEPTH * leaves)
    try:
        cache.prefill(list(range(100, 100 + PREFIX)))
        return {
            "target": statistics.median(_step(cache, leaves, False) for _ in range(STEPS)),
            "draft": statistics.median(_step(cache, leaves, True) for _ in range(STEPS)),
        }
    finally:
        cache.close()


def _step(cache: TreeCache, leaves: int, by_layer: bool) -> float:
    """Seconds of sequence operations in a step whose tree has `leaves` branches from the root."""
    tree = TokenTree(cache.tree_capacity, 1)
    tree.reset(100)
    layer = [0] * leaves
    layers = [np.zeros(1, np.int32)]
    for _ in range(DEPTH):
        layer = [tree.add(parent, 100 + i, 0.5) for i, parent in enumerate(layer)]
        layers.append(np.array(layer, np.int32))
    before = cache.sequence_seconds
    for nodes in layers if by_layer else [np.concatenate(layers)]:
        cache.evaluate(tree, nodes)
    cache.commit(tree, tree.path(layer[leaves // 2]))
    return cache.sequence_seconds - before
