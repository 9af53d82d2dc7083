"""Plain decoding through the engine against a bare llama_decode loop over the same weights."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
import llama_cpp

from benchmarks import report
from benchmarks.prompts import choose
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
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._num_vocab = num_vocab

    def generate(self, prompt: list[int], num_tokens: int) -> tuple[list[int], float]:
        """Tokens, and the seconds from the first of them to the last."""
        llama_cpp.llama_memory_clear(self._memory, False)
        whole = (llama_cpp.llama_token * len(prompt))(*prompt)
        llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(whole, len(prompt)))
        tokens = [self._best()]
        single = (llama_cpp.llama_token * 1)()
        batch = llama_cpp.llama_batch_get_one(single, 1)
        started = time.perf_counter()
        while len(tokens) < num_tokens:
            single[0] = tokens[-1]
            llama_cpp.llama_decode(self._context, batch)
            tokens.append(self._best())
        return tokens, time.perf_counter() - started

    def _best(self) -> int:
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        return native.argmax(ctypes.cast(row, ctypes.c_void_p).value or 0, self._num_vocab)

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_free(self._context)


@click.command()
@bench_options(tokens=48)
@click.option("--pairs", default=12, show_default=True, help="Pairs of runs.")
def plain(setup: Setup, pairs: int) -> None:
    """Speed of `none` against a bare llama_decode loop with n_seq_max = 1, in pairs.

    Both sides have the same weights, threads, prompt and arg max; the order alternates.
    """
    prompt = choose(setup.prompts, ("code_completion",), 1)[0]
    where = setup.circumstances()
    with setup.runs("plain", where) as runs, Engines() as engines:
        runs.expect(pairs)

        def job(number: int) -> dict[str, Any]:
            engine = engines.get(setup.config("none"))
            with _bare(engine, setup) as loop:
                return _pair(engine, loop, prompt.messages, setup.num_tokens, number % 2 == 1)

        found = [
            runs({"pair": number, "prompt": prompt.id}, partial(job, number))
            for number in range(pairs)
        ]
    ratios = [run["bare"] / run["engine"] for run in found]
    rate = {
        side: statistics.median(run["count"] / run[side] for run in found)
        for side in ("engine", "bare")
    }
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    same = all(run["same"] for run in found)
    row = (
        str(pairs),
        f"{rate['bare']:.2f}",
        f"{rate['engine']:.2f}",
        f"**{statistics.median(ratios):.3f}x**",
        f"{quartiles[0]:.3f} to {quartiles[2]:.3f}",
        "yes" if same else "no",
    )
    header = ("pairs", "bare tok/s", "`none` tok/s", "median ratio", "quartiles", "same tokens")
    report.show(f"Plain decoding, {setup.num_tokens} tokens a run", header, [row])
    report.finish(
        {**where, "load average": runs.load},
        {"ratio": statistics.median(ratios), "ratios": ratios, "same": same},
    )


@contextmanager
def _bare(engine: Engine, setup: Setup) -> Iterator[BareLoop]:
    context = engine.decoder.target.context
    loop = BareLoop(
        context.model.handle,
        context.model.num_vocab,
        num_ctx=context.num_ctx,
        num_threads=setup.num_threads,
    )
    try:
        yield loop
    finally:
        loop.close()


def _pair(
    engine: Engine, loop: BareLoop, messages: Any, num_tokens: int, bare_first: bool
) -> dict[str, Any]:
    """One run of each side."""
    sides: dict[str, tuple[list[int], float]] = {}
    engine.decoder.rewind(0)  # both read the prompt anew
    if not bare_first:
        sides["engine"] = _through_engine(engine, messages, num_tokens)
    else:  # only to learn the prompt's tokens
        _through_engine(engine, messages, 1)
    prompt = engine.decoder.target.tokens[: engine.count_tokens(messages)]
    sides["bare"] = loop.generate(prompt, num_tokens)
    if bare_first:
        sides["engine"] = _through_engine(engine, messages, num_tokens)
    tokens, seconds = sides["engine"]
    bare_tokens, bare_seconds = sides["bare"]
    return {
        "engine": seconds,
        "bare": bare_seconds,
        "count": len(tokens) - 1,
        "same": tokens == bare_tokens,
    }


def _through_engine(engine: Engine, messages: Any, num_tokens: int) -> tuple[list[int], float]:
    tokens: list[int] = []
    times: list[float] = []
    for chunk in engine.stream(messages, sampling=GREEDY, max_tokens=num_tokens):
        if chunk.tokens:
            tokens.extend(chunk.tokens)
            times.append(time.perf_counter())
    return tokens, times[-1] - times[0]
