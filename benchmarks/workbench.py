"""What all programs share: options, models, runs that are kept, tables, and the conditions below.

A program is a function of a `Bench` and of its own options:

    @program(tokens=128)
    @click.option("--policy", default="priced")
    def race(bench: Bench, policy: str) -> None: ...
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from dyspec_edge import llama
from dyspec_edge.bench.conditions import conditions, hashes
from dyspec_edge.bench.journal import Journal
from dyspec_edge.bench.prompts import read_prompts
from dyspec_edge.bench.report import table, where
from dyspec_edge.cli.model_choice import choose
from dyspec_edge.cli.terminal import Terminal
from dyspec_edge.engine import Engine, EngineConfig, Prompt, SamplingParams
from dyspec_edge.load.machine import physical_cores

PROGRAM = "python -m benchmarks"
OWN_PROMPTS = Path(__file__).parent / "prompts" / "prompts.jsonl"
WARM_UP_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0)

Values = Mapping[str, Any]
Rows = Sequence[Mapping[str, str]]
"""Of a table, each by the headers of its columns."""

Function = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Setup:
    """Which models, on what, for how long."""

    model: Path
    draft: Path | None
    num_threads: int
    num_ctx: int
    prompts: Path
    num_tokens: int

    def config(self, policy: str) -> EngineConfig:
        """What to load for a policy.  All but plain decoding need a draft."""
        if policy != "none" and self.draft is None:
            raise click.UsageError("this benchmark needs a draft: name one with -md")
        return EngineConfig(
            self.model,
            None if policy == "none" else self.draft,
            num_ctx=self.num_ctx,
            num_threads=self.num_threads,
            policy=policy,
        )


class Engines:
    """Engines by configuration, loaded when they are asked for and warmed up.

    Two are open at a time, so that two may take turns; the one that has rested longer makes room.
    """

    def __init__(self) -> None:
        self._open: dict[EngineConfig, Engine] = {}

    def get(self, config: EngineConfig) -> Engine:
        """The engine of `config`."""
        engine = self._open.pop(config, None)
        if engine is None:
            while len(self._open) >= 2:
                self._open.pop(next(iter(self._open))).close()
            engine = Engine.load(config)
            engine.generate("Hello", sampling=replace(GREEDY, seed=0), max_tokens=WARM_UP_TOKENS)
        self._open[config] = engine
        return engine

    def close(self) -> None:
        """Close all.  Idempotent."""
        while self._open:
            self._open.popitem()[1].close()


class Bench:
    """A program under way: its models, its runs, and what it prints.

    Runs are kept in a journal as soon as they are finished, and not done twice.

    Attributes:
        conditions: what stands below the tables.
        engines: for the runs of this program.
    """

    def __init__(self, name: str, setup: Setup, journal: Path | None) -> None:
        models = [setup.model] + ([setup.draft] if setup.draft else [])
        self.setup = setup
        self.conditions = conditions(hashes(models), setup.num_threads, PROGRAM)
        self.engines = Engines()
        self._constants = {
            "command": name,
            "models": list(self.conditions["models"].values()),
            "threads": setup.num_threads,
            "tokens": setup.num_tokens,
        }
        self._journal = Journal(journal)
        self._loads: list[float] = []
        self._progress = progress_bar()
        self._task = self._progress.add_task("", total=None)

    def engine(self, policy: str) -> Engine:
        """The engine with a policy and what the command line says."""
        return self.engines.get(self.setup.config(policy))

    def expect(self, num_runs: int) -> None:
        """Tell the bar how many runs there will be."""
        self._progress.update(self._task, total=num_runs)

    def run(self, key: Values, job: Callable[[], Values]) -> dict[str, Any]:
        """The result of the run `key`: from the journal, or of `job`, which is then kept."""
        run = {**self._constants, **key}
        self._progress.update(self._task, description=" ".join(str(v) for v in key.values()))
        found = self._journal.get(run)
        if found is None:
            result = {**job(), "load": psutil.getloadavg()[0], "at": time.strftime("%F %T")}
            found = self._journal.add(run, result)
        self._loads.append(found["load"])
        self._progress.advance(self._task)
        return found

    def show(self, title: str, rows: Rows) -> None:
        """A Markdown table; the bar goes."""
        self._progress.stop()
        show(title, rows)

    def finish(self, document: Values) -> None:
        """The conditions, with the load average of the runs: were they alone?"""
        low, high = min(self._loads), max(self._loads)
        load = f"median {statistics.median(self._loads):.1f}, {low:.1f} to {high:.1f}"
        finish({**self.conditions, "load average": load}, document)

    def __enter__(self) -> Bench:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self.engines.close()


def show(title: str, rows: Rows) -> None:
    """A Markdown table."""
    print(f"\n**{title}**\n\n{table(rows)}")


def finish(found: Values, document: Values) -> None:
    """The conditions, then everything as JSON in the last line."""
    print(f"\n{where(found)}\n")
    print(json.dumps({**found, **document}))


def progress_bar() -> Progress:
    """On stderr, with room for what is being done."""
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)),
        expand=True,  # so that a long description is cut short, not the figures
        console=Console(stderr=True),
    )


def in_turns(ways: Mapping[str, Callable[[], float]], num_rounds: int) -> dict[str, list[float]]:
    """What every way gives, asked `num_rounds` times, one after the other."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def flash_attention() -> str:
    """Off on a CPU, as `-fa auto` is: for programs that are told, not asked."""
    return "on" if llama.supports_gpu() and llama.gpu_devices() else "off"


def filler(engine: Engine, prompts: Path, size: int) -> Prompt:
    """A prompt of `size` tokens: the texts of prompts, repeated as often as needed."""
    once = engine.prepare("\n\n".join(p.text for p in read_prompts(prompts)), raw=True)
    return replace(once, tokens=(once.tokens * (size // len(once.tokens) + 1))[:size])


def program(
    *, tokens: int, ctx: int = 2048, name: str | None = None
) -> Callable[[Function], click.Command]:
    """Make a command of a function of a `Bench`; options declared below it are its own.

    Args:
        tokens, ctx: defaults of --tokens and -c.
        name: of the command, if not the function's.
    """

    def declare(function: Function) -> click.Command:
        called = name or function.__name__

        def run(**typed: Any) -> None:
            setup, journal = _setup(typed), typed.pop("journal")
            with Bench(called, setup, journal) as bench:
                function(bench, **typed)

        run.__doc__ = function.__doc__
        command = click.command(called)(run)
        command.params = [*_options(tokens, ctx), *click.command()(function).params]
        return command

    return declare


def prompt_options(
    *, categories: Sequence[str] = (), each: int | None = None
) -> Callable[[Function], Function]:
    """--category and --each, with these defaults."""
    which = f"Repeatable [default: {', '.join(categories) or 'all'}]."
    how_many = f"Prompts of a category [default: {each or 'all'}]."
    of = click.option("--category", "categories", multiple=True, default=categories, help=which)
    some = click.option("--each", default=each, type=click.IntRange(1), help=how_many)
    return lambda function: of(some(function))


def _options(tokens: int, ctx: int) -> list[click.Parameter]:
    path, limit = click.Path(path_type=Path), click.IntRange(2)
    prompts = click.Path(exists=True, dir_okay=False, path_type=Path)
    shown = {"show_default": True}
    return [
        click.Option(["--pair"], help="Pair of the catalog [default: the catalog's default]."),
        click.Option(["-m", "model"], type=path, help="Target file."),
        click.Option(["-md", "model_draft"], type=path, help="Draft file."),
        click.Option(["-t", "threads"], type=click.IntRange(1), help="Threads."),
        click.Option(["-c", "num_ctx"], default=ctx, help="Context.", **shown),
        click.Option(["--prompts"], type=prompts, default=OWN_PROMPTS, help="JSONL of prompts."),
        click.Option(["--tokens"], type=limit, default=tokens, help="Of a reply.", **shown),
        click.Option(["-o", "journal"], type=path, help="Journal of finished runs."),
    ]


def _setup(typed: dict[str, Any]) -> Setup:
    """What the shared options say; they are taken out of what was typed."""
    names = {name: typed.pop(name) for name in ("pair", "model", "model_draft")}
    target, draft = choose({**names, "hf_repo": None, "hf_repo_draft": None}, Terminal())
    threads = typed.pop("threads") or physical_cores()
    return Setup(target, draft, threads, *(typed.pop(n) for n in ("num_ctx", "prompts", "tokens")))
