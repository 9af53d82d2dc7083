"""What recurrent states cost: passes with snapshots and copies, memory, text hard to guess."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path

import click
import psutil

from benchmarks.workbench import PROGRAM, finish, show
from dyspec_edge.bench.conditions import conditions
from dyspec_edge.decode.cache import Cache
from dyspec_edge.engine import Engine, EngineConfig, SamplingParams
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.llama import Context, Model
from tests import tiny, tiny_architectures
from tests.tiny_architectures import Architecture

SIZES = {"NUM_EMBD": 1024, "NUM_FF": 3072, "NUM_HEAD": 16, "HEAD_SIZE": 64, "KV_SIZE": 512}
STATE_SIZES = {"_STATE": 128, "_RANK": 8}
LAYERS = 6
MODELS: tuple[Architecture, ...] = ("qwen35", "jamba")
NUM_SNAPSHOTS = (0, 4, 8, 16)
NUM_ROWS = (1, 2, 4, 8, 16)
NUM_TOKENS, NUM_PAIRS, ROUNDS = 64, 3, 5
PROMPT = "the tree is on"


@click.command()
@click.option("-t", "threads", type=click.IntRange(1), default=2, show_default=True)
def states(threads: int) -> None:
    """Milliseconds of passes by snapshots, memory beside the plan's, and `priced` beside plain.

    The models are generated, some 300 MB of random weights, and deleted afterwards.  The head of
    the second table is wrong on purpose.
    """
    with tempfile.TemporaryDirectory() as folder:
        passes, document = [], []
        for architecture in MODELS:
            path = _write(Path(folder), architecture)
            for num in NUM_SNAPSHOTS if architecture == "qwen35" else (0,):
                # Alone in its process, so that the memory is its own.
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                    line = alone.submit(_passes, path, num, threads).result()
                passes.append({"model": _name(path), "snapshots": str(num), **line})
            document.append({"path": path.name, "bytes": path.stat().st_size})
        show("Passes", passes)
        speeds = []
        for architecture in MODELS:
            path = _write(Path(folder), architecture, num_heads=int(architecture == "qwen35"))
            speeds.append({"model": _name(path), **_speeds(path, threads)})
        show("Random text at T = 1", speeds)
    found = conditions({}, threads, PROGRAM)
    finish(found, {"models": document, "passes": passes, "speeds": speeds})


def _name(path: Path) -> str:
    return f"{path.stem}, {path.stat().st_size >> 20} MiB"


def _write(folder: Path, architecture: Architecture, num_heads: int = 0) -> Path:
    """The tiny model of the tests, in other sizes."""
    path = folder / f"{architecture}{'-head' * num_heads}.gguf"
    with _sizes(architecture):
        tiny.write_model(path, architecture=architecture, num_heads=num_heads, layer_gain=0.5)
    return path


@contextmanager
def _sizes(architecture: Architecture) -> Iterator[None]:
    own = dict(vars(tiny_architectures)), dict(vars(tiny))
    for name, size in {**SIZES, **STATE_SIZES}.items():
        setattr(tiny_architectures, name, size)
    vars(tiny)["NUM_EMBD"] = SIZES["NUM_EMBD"]  # which it has imported
    layers = tiny_architectures.NUM_LAYERS[architecture]
    tiny_architectures.NUM_LAYERS[architecture] = LAYERS
    try:
        yield
    finally:
        tiny_architectures.NUM_LAYERS[architecture] = layers
        for module, names in zip((tiny_architectures, tiny), own, strict=True):
            vars(module).update(names)


def _passes(path: Path, num_snapshots: int, threads: int) -> dict[str, str]:
    process = psutil.Process(os.getpid())
    one = inspect_file(path).state_bytes
    with Model(path) as model:
        before = process.memory_info().rss
        context = Context(
            model,
            num_ctx=512,
            num_sequences=1,
            num_outputs=32,
            num_threads=threads,
            flash_attn="off",
            num_snapshots=num_snapshots,
        )
        with closing(context), closing(Cache(context, 32)) as cache:
            taken = process.memory_info().rss - before
            cache.prefill(list(range(3, 67)))
            found: dict[int, list[float]] = {n: [] for n in NUM_ROWS}
            for _ in range(ROUNDS):
                for n in NUM_ROWS:
                    found[n].append(cache.time_pass(n))
    least = {f"T({n}), ms": f"{1e3 * min(seconds):.1f}" for n, seconds in found.items()}
    return {
        **least,
        "one state, MiB": f"{one / 2**20:.2f}",
        "states planned, MiB": f"{(1 + num_snapshots) * one / 2**20:.1f}",
        "memory of the context, MiB": f"{taken / 2**20:.1f}",
    }


def _speeds(path: Path, threads: int) -> dict[str, str]:
    rates: dict[str, list[float]] = {"none": [], "priced": []}
    drafted = 0
    with ExitStack() as stack:
        engines = {
            policy: stack.enter_context(
                Engine.load(EngineConfig(path, num_ctx=1024, num_threads=threads, policy=policy))
            )
            for policy in rates
        }
        for seed in range(NUM_PAIRS):
            for policy, engine in engines.items():
                made = engine.generate(
                    PROMPT,
                    raw=True,
                    sampling=SamplingParams(temperature=1.0, seed=seed),
                    max_tokens=NUM_TOKENS,
                )
                rates[policy].append(made.stats.tokens_per_second)
                drafted += made.stats.draft_tokens * (policy == "priced")
    ratios = [a / b for a, b in zip(rates["priced"], rates["none"], strict=True)]
    return {
        "plain, tokens/s": f"{statistics.median(rates['none']):.1f}",
        "priced": f"{statistics.median(rates['priced']):.1f}",
        "ratio, median": f"{statistics.median(ratios):.3f}",
        "drafted": str(drafted),
    }
