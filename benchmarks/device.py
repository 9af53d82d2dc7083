"""What finding candidates in the decode graph costs and saves, against finding them on the host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import click

from benchmarks.workbench import Bench, Setup, in_turns, program
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.policy.priced import LEAVES
from dyspec_edge.llama import Context, Model

NUM_ROWS = (1, 4, 16, 32)
PREFIX = 64
ROUNDS = 15
WAYS = ("host decode", "host", "graph decode", "graph")


@program(tokens=ROUNDS)
@click.option("-ngl", "layers", default=0, show_default=True, help="Layers on the GPU; -1: all.")
def device(bench: Bench, layers: int) -> None:
    """Milliseconds of a draft pass (-m is the draft), candidates found on the host or in the graph.

    Two contexts over the same weights take turns, one with samplers on all its sequences.  The
    share of llama_decode stands beside the whole, which ends with the candidates.
    """
    bench.expect(1)
    found = bench.run({"layers": layers}, partial(_measure, bench.setup, layers))["rows"]
    table = [
        {
            "rows": num_rows,
            **{way: f"{1e3 * statistics.median(cell[way]):.2f}" for way in WAYS},
            "decode, graph / host": f"{_ratio(cell['graph decode'], cell['host decode']):.3f}x",
            "whole, graph / host": f"**{_ratio(cell['graph'], cell['host']):.3f}x**",
        }
        for num_rows, cell in found.items()
    ]
    title = "Milliseconds of a draft pass, medians; ratios are medians of pairs"
    bench.show(title, table)
    bench.finish({"seconds": found})


def _ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Median of pairs."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def _measure(setup: Setup, layers: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Seconds by number of rows and way, in pairs."""
    with Model(setup.model, num_gpu_layers=layers) as model:
        drafters = {"host": _drafter(setup, model), "graph": _drafter(setup, model)}
        try:
            if not drafters["graph"].attach_backend_sampler():
                raise click.UsageError("this llama.cpp or its device cannot run the sampler")
            found = {}
            for num_rows in NUM_ROWS:
                ways: dict[str, Callable[[], float]] = {}
                for name, drafter in drafters.items():
                    drafter.time_pass(num_rows)  # builds the graph
                    ways[f"{name} decode"] = partial(drafter.cache.time_pass, num_rows)
                    ways[name] = partial(drafter.time_pass, num_rows)
                found[str(num_rows)] = in_turns(ways, setup.num_tokens)
            return {"rows": found}
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
    cache = Cache(context, max(NUM_ROWS))
    cache.prefill([*range(100, 100 + PREFIX)])
    return ModelDrafter(cache, num_ctx=setup.num_ctx, vocab_limit=model.num_vocab)
