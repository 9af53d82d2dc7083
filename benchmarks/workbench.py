"""Options that all benchmarks share, and what they make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.prompts import OWN_PROMPTS
from benchmarks.report import PROGRAM
from benchmarks.runs import Runs
from dyspec_edge.bench.conditions import conditions, hashes
from dyspec_edge.cli.model_choice import choose
from dyspec_edge.cli.terminal import Terminal
from dyspec_edge.engine import Engine, EngineConfig, SamplingParams
from dyspec_edge.load.machine import physical_cores

F = TypeVar("F", bound=Callable[..., Any])

WARM_UP_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """Which models, on what, for how long."""

    model: Path
    draft: Path | None
    num_threads: int
    num_ctx: int
    prompts: Path
    num_tokens: int
    journal: Path | None

    def conditions(self) -> dict[str, Any]:
        """For the report; journalled runs are told apart by its model hashes."""
        models = [self.model] + ([self.draft] if self.draft else [])
        return conditions(hashes(models), self.num_threads, PROGRAM)

    def runs(self, command: str, where: dict[str, Any]) -> Runs:
        """The runs of one command."""
        constants = {
            "command": command,
            "models": list(where["models"].values()),
            "threads": self.num_threads,
            "tokens": self.num_tokens,
        }
        return Runs(self.journal, constants)

    def config(self, policy: str, *, num_ctx: int | None = None) -> EngineConfig:
        """What to load for a policy.  All but plain decoding need a draft."""
        if policy != "none" and self.draft is None:
            raise click.UsageError("this benchmark needs a draft: name one with -md")
        return EngineConfig(
            self.model,
            None if policy == "none" else self.draft,
            num_ctx=num_ctx or self.num_ctx,
            num_threads=self.num_threads,
            policy=policy,
        )


class Engines:
    """One engine at a time, loaded when it is asked for and warmed up."""

    def __init__(self) -> None:
        self._config: EngineConfig | None = None
        self._engine: Engine | None = None

    def get(self, config: EngineConfig) -> Engine:
        """The engine of `config`; another one is closed first."""
        if self._engine is None or self._config != config:
            self.close()
            self._engine, self._config = Engine.load(config), config
            warm_up = replace(GREEDY, seed=0)
            self._engine.generate("Hello", sampling=warm_up, max_tokens=WARM_UP_TOKENS)
        return self._engine

    def close(self) -> None:
        """Close the engine.  Idempotent."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bench_options(*, tokens: int, ctx: int = 2048) -> Callable[[F], F]:
    """Declare the shared options; the function gets a `Setup` as its first argument.

    Args:
        tokens, ctx: defaults of --tokens and -c.
    """
    options = (
        click.option("--pair", help="Pair of the catalog [default: the catalog's default]."),
        click.option("-m", "model", type=click.Path(path_type=Path), help="Target file."),
        click.option("-md", "model_draft", type=click.Path(path_type=Path), help="Draft file."),
        click.option("-t", "threads", type=click.IntRange(1), help="Threads."),
        click.option("-c", "num_ctx", default=ctx, show_default=True, help="Context."),
        click.option(
            "--prompts",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            default=OWN_PROMPTS,
            help="JSONL file of prompts.",
        ),
        click.option(
            "--tokens",
            type=click.IntRange(2),
            default=tokens,
            show_default=True,
            help="Tokens of a reply.",
        ),
        click.option(
            "-o", "journal", type=click.Path(path_type=Path), help="Journal of finished runs."
        ),
    )

    def declare(function: F) -> F:
        def run(**typed: Any) -> Any:
            shared = {name: typed.pop(name) for name in _SHARED}
            return function(_setup(**shared), **typed)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__dict__.update(function.__dict__)  # options declared below this one
        for option in reversed(options):
            run = option(run)
        return run  # type: ignore[return-value]

    return declare


_SHARED = ("pair", "model", "model_draft", "threads", "num_ctx", "prompts", "tokens", "journal")


def _setup(
    *,
    pair: str | None,
    model: Path | None,
    model_draft: Path | None,
    threads: int | None,
    num_ctx: int,
    prompts: Path,
    tokens: int,
    journal: Path | None,
) -> Setup:
    names = {"model": model, "model_draft": model_draft, "pair": pair}
    target, draft = choose({**names, "hf_repo": None, "hf_repo_draft": None}, Terminal())
    num_threads = threads or physical_cores()
    return Setup(target, draft, num_threads, num_ctx, prompts, tokens, journal)
