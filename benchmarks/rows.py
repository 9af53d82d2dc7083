"""Top-k and log-sum-exp of rows of logits: ours, numpy's and llama.cpp's top-k sampler."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import llama_cpp
import numpy as np
import numpy.typing as npt

from benchmarks.workbench import PROGRAM, finish, in_turns, show
from dyspec_edge import native
from dyspec_edge.bench.conditions import conditions
from dyspec_edge.decode.tree import NUM_CANDIDATES
from dyspec_edge.native.library import lib

Rows = npt.NDArray[np.float32]
Way = Callable[[], object]

VOCABULARIES = (49_152, 151_936, 262_144)
NUM_ROWS = (1, 8, 32)


@click.command()
@click.option("-t", "threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(3), default=25, show_default=True)
def rows(threads: int, rounds: int) -> None:
    """Milliseconds for the 64 largest logits and the log-sum-exp of every row, medians.

    All take turns on the same rows.  Ours is the function that native code calls in a step, without
    the checks of arrays that calls from Python go through.  llama.cpp's sampler sorts out the 64
    largest of each row and gives no log-sum-exp.
    """
    table, document = [], []
    for num_vocab in VOCABULARIES:
        for num_rows in NUM_ROWS:
            random = np.random.default_rng(num_rows)
            logits = random.normal(0, 3, (num_rows, num_vocab)).astype(np.float32)
            ways: dict[str, Way] = {
                "dyspec-edge": _native(logits, threads),
                "numpy": partial(_numpy, logits),
                "llama.cpp's top-k": _llama(logits),
            }
            found = in_turns({name: partial(_seconds, ways[name]) for name in ways}, rounds)
            medians = {name: statistics.median(seconds) for name, seconds in found.items()}
            ours = medians["dyspec-edge"]
            table.append(
                {
                    "vocabulary": str(num_vocab),
                    "rows": str(num_rows),
                    "dyspec-edge, ms": f"**{1e3 * ours:.3f}** ({1e3 * ours / num_rows:.3f} a row)",
                    **{
                        name: f"{1e3 * seconds:.2f} ({seconds / ours:.0f}x)"
                        for name, seconds in medians.items()
                        if name != "dyspec-edge"
                    },
                }
            )
            document.append({"vocabulary": num_vocab, "rows": num_rows, "seconds": medians})
    show(f"Row reductions, {native.simd}, {threads} threads, medians", table)
    finish(conditions({}, threads, PROGRAM), {"cells": document})


def _seconds(way: Way) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def _native(logits: Rows, threads: int) -> Way:
    num_rows, num_vocab = logits.shape
    addresses = logits.ctypes.data + np.arange(num_rows, dtype=np.uint64) * np.uint64(4 * num_vocab)
    ids = np.empty((num_rows, NUM_CANDIDATES), np.int32)
    largest = np.empty((num_rows, NUM_CANDIDATES), np.float32)
    totals = np.empty(num_rows, np.float32)
    at = (array.ctypes.data for array in (ids, largest, totals))
    call = partial(
        lib.dyspec_topk, addresses.ctypes.data, num_rows, num_vocab, NUM_CANDIDATES, *at, threads
    )
    return lambda: (call(), addresses, ids, largest, totals)


def _numpy(logits: Rows) -> object:
    top = np.argpartition(logits, -NUM_CANDIDATES, axis=1)[:, -NUM_CANDIDATES:]
    largest = np.take_along_axis(logits, top, axis=1)
    order = np.argsort(-largest, axis=1)
    highest = logits.max(axis=1, keepdims=True)
    totals = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
    return np.take_along_axis(top, order, axis=1), totals


def _llama(logits: Rows) -> Way:
    num_vocab = logits.shape[1]
    data = (llama_cpp.llama_token_data * num_vocab)()
    address = ctypes.addressof(data)
    sampler: Any = llama_cpp.llama_sampler_init_top_k(NUM_CANDIDATES)
    array = llama_cpp.llama_token_data_array()

    def way() -> None:
        for row in logits:
            native.fill_candidates(row.ctypes.data, num_vocab, address)
            array.data, array.size, array.selected, array.sorted = data, num_vocab, -1, False
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))

    return way
