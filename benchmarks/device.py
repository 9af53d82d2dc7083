"""What finding candidates in the decode graph costs and saves, against finding them on the host."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import click

from benchmarks import report
from benchmarks.workbench import Setup, bench_options
from dyspec_edge.decode.cache import TreeCache
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.policy.priced import LEAVES
from dyspec_edge.llama import Context, Model

NUM_ROWS = (1, 4, 16, 32)
PREFIX = 64
ROUNDS = 15


@click.command()
@bench_options(tokens=ROUNDS)
@click.option("-ngl", "layers", default=0, show_default=True, help="Layers on the GPU; -1: all.")
def device(setup: Setup, layers: int) -> None:
    """Milliseconds of a draft pass (-m is the draft), candidates found on the host or in the graph.

    Two contexts over the same weights take turns, one with samplers on all its sequences.  The
    share of llama_decode stands beside the whole, which ends with the candidates.
    """
    where = setup.conditions()
    with setup.runs("device", where) as runs:
        runs.expect(1)
        found = runs({"layers": layers}, partial(_measure, setup, layers))["ways"]
    rows = []
    for num_rows in NUM_ROWS:
        cell = {name: of_size[str(num_rows)] for name, of_size in found.items()}
        rows.append(
            (
                str(num_rows),
                *(f"{1e3 * statistics.median(seconds):.2f}" for seconds in cell.values()),
                f"{_ratio(cell['graph decode'], cell['host decode']):.3f}x",
                f"**{_ratio(cell['graph'], cell['host']):.3f}x**",
            )
        )
    header = (
        "rows",
        "host: llama_decode",
        "host: whole",
        "graph: llama_decode",
        "graph: whole",
        "llama_decode, graph / host",
        "whole, graph / host",
    )
    report.show("Milliseconds of a draft pass, medians; ratios are medians of pairs", header, rows)
    report.finish({**where, "load average": runs.load}, {"seconds": found})


def _ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Median of pairs."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def _measure(setup: Setup, layers: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Seconds by way and number of rows, in pairs."""
    with Model(setup.model, num_gpu_layers=layers) as model:
        drafters = {"host": _drafter(setup, model), "graph": _drafter(setup, model)}
        try:
            if not drafters["graph"].find_on_device():
                raise click.UsageError("this llama.cpp or its device cannot run the sampler")
            names = [name for way in drafters for name in (f"{way} decode", way)]
            found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
            for num_rows in NUM_ROWS:
                for cells in found.values():
                    cells[str(num_rows)] = []
                for drafter in drafters.values():
                    drafter.time_pass(num_rows)  # builds the graph
                for _ in range(setup.num_tokens):
                    for way, drafter in drafters.items():
                        seconds = drafter.cache.time_pass(num_rows)
                        found[f"{way} decode"][str(num_rows)].append(seconds)
                        found[way][str(num_rows)].append(drafter.time_pass(num_rows))
            return {"ways": found}
        finally:
            for drafter in drafters.values():
                drafter.close()


def _drafter(setup: Setup, model: Model) -> ModelDrafter:
    context = Context(
        model,
        num_ctx=setup.num_ctx,
        num_sequences=LEAVES,
        num_outputs=max(NUM_ROWS),
        num_threads=setup.num_threads,
    )
    cache = TreeCache(context, max(NUM_ROWS))
    cache.prefill([*range(100, 100 + PREFIX)])
    return ModelDrafter(cache, num_ctx=setup.num_ctx, vocab_limit=model.num_vocab)
