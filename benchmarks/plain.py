"""Plain decoding through the engine against a bare llama_decode loop over the same weights."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import click
import llama_cpp

from benchmarks.race import take_turns, tokens_of
from benchmarks.workbench import Bench, flash_attention, program
from dyspec_edge import llama, native
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.llama import Model


class BareLoop:
    """Nothing but llama.cpp's C API: one sequence, one row a pass, arg max."""

    def __init__(self, model: Model, *, num_ctx: int, num_threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_ctx
        params.flash_attn_type = llama.FLASH_ATTN[flash_attention()]
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = num_threads
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model.handle, params)
        self._num_vocab = model.num_vocab

    def generate(self, prompt: Sequence[int]) -> Iterator[Sequence[int]]:
        """Tokens without end, one a step."""
        whole = (llama_cpp.llama_token * len(prompt))(*prompt)
        llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(whole, len(prompt)))
        single = (llama_cpp.llama_token * 1)()
        batch = llama_cpp.llama_batch_get_one(single, 1)
        while True:
            single[0] = self._best()
            yield (single[0],)
            llama_cpp.llama_decode(self._context, batch)

    def _best(self) -> int:
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        return native.argmax(ctypes.cast(row, ctypes.c_void_p).value or 0, self._num_vocab)

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_free(self._context)


@program(tokens=96)
@click.option("--each", default=3, show_default=True, help="Prompts of code_completion.")
def plain(bench: Bench, each: int) -> None:
    """Speed of `none` against a bare llama_decode loop with n_seq_max = 1, token by token.

    Both sides have the same weights, threads, prompt and arg max, and take turns at every token,
    so that whatever else the machine does meets both alike.
    """
    prompts = choose(bench.setup.prompts, ("code_completion",), each)
    bench.expect(len(prompts))
    found = {p.id: bench.run({"prompt": p.id}, partial(_race, bench, p)) for p in prompts}
    rows = []
    for name, runs in [*((i, [run]) for i, run in found.items()), ("all", [*found.values()])]:
        pairs = [pair for run in runs for pair in zip(run["bare"], run["engine"], strict=True)]
        ratio, error = _ratio(pairs)
        bare, engine = (statistics.median(side) for side in zip(*pairs, strict=True))
        same = all(run["same"] for run in runs)
        rows.append(
            {
                "prompt": name,
                "pairs of tokens": str(len(pairs)),
                "bare, ms": f"{1e3 * bare:.2f}",
                "`none`, ms": f"{1e3 * engine:.2f}",
                "speed of `none` against bare": f"**{ratio:.3f}x** ± {error:.3f}",
                "same tokens": "yes" if same else "**no**",
            }
        )
    bench.show("Plain decoding, medians over tokens", rows)
    bench.finish({"ratio": ratio, "standard_error": error, "same": same})


def _ratio(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Median over tokens of the bare loop's time to the engine's, and its standard error."""
    ratios = sorted(bare / engine for bare, engine in pairs)
    quartiles = statistics.quantiles(ratios, n=4)
    # 1.2533: of a median to that of a mean; 1.349: quartile distance to standard deviation.
    error = 1.2533 * (quartiles[2] - quartiles[0]) / 1.349 / len(ratios) ** 0.5
    return statistics.median(ratios), error


def _race(bench: Bench, prompt: Prompt) -> dict[str, Any]:
    """Seconds of every token after the first, on both sides."""
    setup = bench.setup
    engine = bench.engines.get(replace(setup.config("none"), flash_attn=flash_attention()))
    model = engine.conversation.target.context.model
    loop = BareLoop(model, num_ctx=setup.num_ctx, num_threads=setup.num_threads)
    with closing(loop):
        sides = {
            "bare": loop.generate(engine.prepare(prompt.messages).tokens),
            "engine": tokens_of(engine, prompt, setup.num_tokens),
        }
        found = take_turns(sides, setup.num_tokens)
    count = len(found["engine"].tokens)
    return {
        **{side: [s for _, s in written.steps[1:count]] for side, written in found.items()},
        "same": found["bare"].tokens[:count] == found["engine"].tokens,
    }
