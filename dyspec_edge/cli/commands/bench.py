"""`dyspec-edge bench`: run policies side by side, report what the runs come to.

What the commands do is imported when they run, so that other commands start quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dyspec_edge.cli import background, model_choice, options
from dyspec_edge.cli.background import Progress
from dyspec_edge.cli.syntax import INTERRUPTED, CommandGroup
from dyspec_edge.cli.terminal import Bar, Terminal
from dyspec_edge.errors import Cancelled, OptionError

if TYPE_CHECKING:
    from dyspec_edge.bench.journal import Journal
    from dyspec_edge.bench.session import Session, Wanted
    from dyspec_edge.engine import EngineConfig

MEMORY = 3600.0
"""Seconds over which the bar averages the speed: runs are long and differ in length."""


@click.group(cls=CommandGroup)
def bench() -> None:
    """Run policies side by side on the same work, and report."""


@bench.command(short_help="Run policies in turns on the same prompts.")
@options.bench_options
def run(**typed: Any) -> int:
    """Run policies in turns on the same prompts, and write down every finished run.

    Each prompt is answered by one policy after the other, in an order that rotates.  The same
    command again does what is missing.  The last line of stdout is one JSON document.
    """
    from dyspec_edge.bench.journal import Journal
    from dyspec_edge.bench.report import markdown
    from dyspec_edge.bench.summary import summarise

    terminal = Terminal()
    config = model_choice.engine_config({**typed, "policy": None, "verify": "match"}, terminal)
    wanted = wanted_runs(typed)
    session = open_session(config, wanted, Journal(typed["out"]), terminal)
    num_before = len(session.lines)
    interrupted = bool(session.remaining) and perform(session, config, wanted.fresh, terminal)
    lines = session.lines
    if interrupted:
        terminal.notice(
            f"{len(lines)} of {len(session.turns)} runs are in {typed['out']}; the same command "
            "does the rest"
        )
        return INTERRUPTED
    sections = summarise(lines)
    terminal.text(markdown(sections) + "\n")
    terminal.json(
        {
            "out": str(typed["out"]),
            "runs": len(lines),
            "new_runs": len(lines) - num_before,
            "sections": sections,
        }
    )
    return 0


@bench.command(short_help="Tables and plots of finished runs.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.jsonl..."
)
@click.option("--plots", type=click.Path(path_type=Path), help="Draw plots into this directory.")
@click.option(
    "--format", "suffix", type=click.Choice(("png", "svg")), default="png", show_default=True,
    help="Of the plots.",
)  # fmt: skip
def report(files: Sequence[Path], plots: Path | None, suffix: str) -> None:
    """Tables of finished runs; the last line of stdout is one JSON document."""
    from dyspec_edge.bench.journal import read_lines
    from dyspec_edge.bench.report import markdown
    from dyspec_edge.bench.summary import check_lines, summarise

    terminal = Terminal()
    if plots is not None:
        from dyspec_edge.cli.plotting import require_matplotlib

        require_matplotlib("--plots")
    lines = [line for path in files for line in check_lines(path, read_lines(path))]
    if not lines:
        raise OptionError(f"no finished run in {', '.join(map(str, files))}")
    sections = summarise(lines)
    plotted: list[Path] = []
    if plots is not None:
        from dyspec_edge.cli.bench_plots import plot

        plotted = plot(sections, plots, suffix)
    terminal.text(markdown(sections) + "\n")
    terminal.json(
        {"runs": len(lines), "sections": sections, "plots": [str(path) for path in plotted]}
    )


@bench.command("fit-sequoia", short_help="Measure how often a draft's children are accepted.")
@options.fit_options
def fit_sequoia(**typed: Any) -> None:
    """Measure the acceptance rates that the policies sequoia:N and sequoia:auto go by.

    They belong to the pair, the verifier and the temperature, and are kept in the cache directory.
    The last line of stdout is one JSON document.
    """
    from dyspec_edge.bench.prompts import choose
    from dyspec_edge.bench.report import acceptance
    from dyspec_edge.bench.sequoia_fit import fit_acceptance

    terminal = Terminal()
    config = model_choice.engine_config({**typed, "policy": None, "verify": "match"}, terminal)
    prompts = choose(typed["prompts"], typed["categories"], typed["each"], typed["skip"])
    sampling = options.sampling_params({**typed, "temp": 0.0, "seed": -1})
    found = []
    with Bar(terminal, memory=MEMORY) as bar:
        for verify in dict.fromkeys(typed["verifiers"]):

            def fit(tell: Callable[[str, float], None], verify: str = verify) -> Any:
                return fit_acceptance(
                    replace(config, verify=verify),
                    [prompt.messages for prompt in prompts],
                    temperatures=typed["temperatures"],
                    sampling=sampling,
                    max_tokens=typed["predict"],
                    on_progress=tell,
                )

            found += [{"verify": verify, **asdict(fit)} for fit in background.run(fit, bar)]
    terminal.text(acceptance(found) + "\n")
    terminal.json({"prompts": [prompt.id for prompt in prompts], "fits": found})


def wanted_runs(typed: dict[str, Any]) -> Wanted:
    """What was typed, as a session takes it; errors as of `parse` and `choose`."""
    import numpy as np

    from dyspec_edge.bench.prompts import choose
    from dyspec_edge.bench.session import Wanted
    from dyspec_edge.decode.policy import parse

    for policy in typed["policies"]:
        parse(policy, np.empty(0, np.int32))  # before anything is loaded
    return Wanted(
        prompts=choose(typed["prompts"], typed["categories"], typed["each"], typed["skip"]),
        policies=typed["policies"],
        verifiers=typed["verifiers"],
        temperatures=typed["temperatures"],
        num_rounds=typed["rounds"],
        num_tokens=typed["predict"],
        sampling=options.sampling_params({**typed, "temp": 0.0}),
        fresh=typed["fresh"],
    )


def open_session(
    config: EngineConfig, wanted: Wanted, journal: Journal, terminal: Terminal
) -> Session:
    """The runs to do.  Runs of other models do not count as done, so models are hashed first."""
    from dyspec_edge.bench.conditions import conditions, hashes
    from dyspec_edge.bench.session import Session
    from dyspec_edge.files.model_file import inspect_file
    from dyspec_edge.load.machine import physical_cores
    from dyspec_edge.load.speculation import drafts_by_head

    config.check()
    models = [config.model, *([config.draft_file] if config.draft_file is not None else [])]
    for path in models:
        inspect_file(path)  # a file that is no model is not worth hashing
    with Bar(terminal) as bar:
        found = background.run(
            lambda tell: hashes(models, lambda x: tell("hashing models", x)), bar
        )
    where = conditions(found, config.num_threads or physical_cores(), "dyspec-edge")
    draft = found[config.draft_file] if config.draft_file is not None else None
    if drafts_by_head(config, inspect_file(config.model)):
        draft = found[config.model]
    return Session(config, wanted, journal, (found[config.model], draft), where)


def perform(session: Session, config: EngineConfig, fresh: bool, terminal: Terminal) -> bool:
    """Do the runs that remain; True if Ctrl-C has interrupted them."""
    from dyspec_edge.bench.stage import Stage

    with Bar(terminal) as bar:
        stage = background.run(
            lambda tell: Stage(config, session.lanes, fresh=fresh, on_progress=tell), bar
        )
    num_runs = len(session.remaining)

    def job(emit: Callable[[Progress], None]) -> None:
        done = 0

        def finished() -> None:
            nonlocal done
            done += 1
            emit(Progress("runs", done, num_runs))

        emit(Progress("runs", 0, num_runs))
        session.perform(stage, finished)

    try:
        with (
            Bar(terminal, memory=MEMORY) as bar,
            background.Job(job, cancel=stage.cancel) as running,
        ):
            for _ in background.with_bar(running, bar):
                pass
    except Cancelled:
        return True
    finally:
        if not background.left_running():
            stage.close()
    return running.interrupted
