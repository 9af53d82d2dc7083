"""Plain decoding through the engine against a bare llama_decode loop over the same weights."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import click
import llama_cpp

from benchmarks import report
from benchmarks.prompts import Prompt, choose
from benchmarks.workbench import GREEDY, Engines, Setup, bench_options
from dyspec_edge import native
from dyspec_edge.engine import Engine


class BareLoop:
    """Nothing but llama.cpp's C API: one sequence, one row a pass, arg max."""

    def __init__(self, model: Any, num_vocab: int, *, num_ctx: int, num_threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_ctx
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = num_threads
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._num_vocab = num_vocab

    def generate(self, prompt: list[int]) -> Iterator[int]:
        """Tokens without end."""
        whole = (llama_cpp.llama_token * len(prompt))(*prompt)
        llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(whole, len(prompt)))
        single = (llama_cpp.llama_token * 1)()
        batch = llama_cpp.llama_batch_get_one(single, 1)
        while True:
            single[0] = self._best()
            yield single[0]
            llama_cpp.llama_decode(self._context, batch)

    def _best(self) -> int:
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        return native.argmax(ctypes.cast(row, ctypes.c_void_p).value or 0, self._num_vocab)

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_free(self._context)


@click.command()
@bench_options(tokens=96)
@click.option("--each", default=3, show_default=True, help="Prompts of code_completion.")
def plain(setup: Setup, each: int) -> None:
    """Speed of `none` against a bare llama_decode loop with n_seq_max = 1, token by token.

    Both sides have the same weights, threads, prompt and arg max.  They take turns at every
    token, so that whatever else the machine does meets both alike; first goes now one, now the
    other.
    """
    prompts = choose(setup.prompts, ("code_completion",), each)
    where = setup.conditions()
    with setup.runs("plain", where) as runs, Engines() as engines:
        runs.expect(len(prompts))

        def job(prompt: Prompt) -> dict[str, Any]:
            return _race(engines.get(setup.config("none")), prompt, setup)

        found = [runs({"prompt": prompt.id}, partial(job, prompt)) for prompt in prompts]
    rows = []
    groups = [(p.id, [run]) for p, run in zip(prompts, found, strict=True)]
    for name, group in [*groups, ("all", found)]:
        pairs = [pair for run in group for pair in zip(run["bare"], run["engine"], strict=True)]
        rows.append((name, pairs, all(run["same"] for run in group)))
    shown = []
    for name, pairs, same in rows:
        ratio, error = _ratio(pairs)
        bare, engine = (statistics.median(side) for side in zip(*pairs, strict=True))
        shown.append(
            (
                name,
                str(len(pairs)),
                f"{1e3 * bare:.2f}",
                f"{1e3 * engine:.2f}",
                f"**{ratio:.3f}x** ± {error:.3f}",
                "yes" if same else "**no**",
            )
        )
    header = (
        "prompt",
        "pairs of tokens",
        "bare, ms",
        "`none`, ms",
        "speed of `none` against bare",
        "same tokens",
    )
    report.show("Plain decoding, medians over tokens", header, shown)
    ratio, error = _ratio(rows[-1][1])
    document = {"ratio": ratio, "standard_error": error, "same": rows[-1][2]}
    report.finish({**where, "load average": runs.load}, document)


def _ratio(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Median over tokens of the bare loop's time to the engine's, and its standard error."""
    ratios = sorted(bare / engine for bare, engine in pairs)
    quartiles = statistics.quantiles(ratios, n=4)
    # 1.2533: of a median to that of a mean; 1.349: quartile distance to standard deviation.
    error = 1.2533 * (quartiles[2] - quartiles[0]) / 1.349 / len(ratios) ** 0.5
    return statistics.median(ratios), error


def _race(engine: Engine, prompt: Prompt, setup: Setup) -> dict[str, Any]:
    """Seconds of every token after the first, on both sides."""
    context = engine.decoder.target.context
    engine.generate(prompt.messages, sampling=GREEDY, max_tokens=1)
    read = list(engine.prepare(prompt.messages).tokens)
    loop = BareLoop(
        context.model.handle,
        context.model.num_vocab,
        num_ctx=context.num_ctx,
        num_threads=setup.num_threads,
    )
    seconds: dict[str, list[float]] = {"bare": [], "engine": []}
    tokens: dict[str, list[int]] = {"bare": [], "engine": []}
    with closing(loop):
        reply = engine.stream(prompt.messages, sampling=GREEDY, max_tokens=setup.num_tokens)
        sides = {
            "bare": loop.generate(read),
            "engine": (token for chunk in reply for token in chunk.tokens),
        }
        order = list(sides)
        with suppress(StopIteration):  # the engine's text is over
            while True:
                order.reverse()
                for side in order:
                    started = time.perf_counter()
                    tokens[side].append(next(sides[side]))
                    seconds[side].append(time.perf_counter() - started)
    count = len(tokens["engine"])
    return {
        **{side: times[1:count] for side, times in seconds.items()},
        "same": tokens["bare"][:count] == tokens["engine"],
    }
