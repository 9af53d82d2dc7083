"""What people type: `dyspec-edge chat`, `complete`, `calibrate`, `check`, `inspect`, ...

Exit codes: 0; 1 for an error; 2 for a usage error; 130 when interrupted.  Every error is one line
on stderr that begins with "error: ".
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.table import Table

import dyspec_edge
from dyspec_edge.cli import background, line_input, model_choice, options, stats_view
from dyspec_edge.cli.bench import bench
from dyspec_edge.cli.chat import COMMANDS, Chat, ChatSettings
from dyspec_edge.cli.terminal import Bar, ReplyWriter, Terminal, is_terminal
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.files import catalog, transfer
from dyspec_edge.text.utf8 import decode

if TYPE_CHECKING:
    from dyspec_edge.engine import Chunk, Engine, EngineConfig

INTERRUPTED = 130


class Group(options.CommandGroup):
    """Turns every error into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Runs the command that `args` name, and exits."""
        typed = list(sys.argv[1:] if args is None else args)
        code = self._run(typed, {**extra, "standalone_mode": False})
        if background.left_running():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
        sys.exit(code)

    def _run(self, typed: list[str], extra: Mapping[str, Any]) -> int:
        try:
            result = super().main(typed, **extra)
            return result if isinstance(result, int) else 0
        except (click.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "dyspec-edge"
            return _fail(f"{error.format_message()} ({path} --help)", error.exit_code)
        except click.ClickException as error:
            return _fail(error.format_message(), error.exit_code)
        except OptionError as error:
            return _fail(str(error), 2)
        except DyspecError as error:
            return _fail(str(error), 1)
        except Exception as error:  # a mistake of ours
            if {"-v", "--verbose"} & set(typed):
                traceback.print_exc()
            what = f"{type(error).__name__}: {error}"
            return _fail(f"internal error: {what} (--verbose shows where)", 1)


def _fail(message: str, code: int) -> int:
    Terminal().error(message)
    return code


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dyspec_edge.__version__, prog_name="dyspec-edge")
def cli() -> None:
    """Run a GGUF model faster with a small draft model and dynamic token trees (DySpec).

    Begin with: dyspec-edge chat --pair qwen2.5-coder
    """


cli.add_command(bench)


def main() -> NoReturn:
    """The program `dyspec-edge`."""
    cli.main(prog_name="dyspec-edge")


@cli.command()
@options.generation_options
def chat(**typed: Any) -> int:
    """Talk to a model.  /help lists the commands.

    From a pipe, each line is one message (or a command) and empty lines are skipped; the replies
    go to stdout and the figures to stderr.
    """
    terminal = Terminal()
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    config = model_choice.engine_config(typed, terminal)
    settings = ChatSettings(
        sampling=options.sampling_params(typed),
        max_tokens=typed["predict"],
        system=typed["system_prompt"],
        models={"model": str(config.model), "draft": str(config.draft or "")},
    )
    holding = line_input.keys_held() if interactive else nullcontext()
    with holding, _loaded(config, terminal) as engine:
        lines: line_input.LineSource = line_input.PipedLines()
        if interactive:
            terminal.notice("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.")
            lines = _line_editor()
        return Chat(engine, terminal, settings, interactive=interactive).run(lines)


def _line_editor() -> line_input.LineSource:
    from dyspec_edge.cli import line_editor

    commands = [f"/{name}" for name in COMMANDS]
    return line_editor.LineEditor(line_editor.history_file(), commands)


@cli.command(short_help="Complete one prompt, or answer one message.")
@click.argument("prompt", required=False, type=options.TEXT)
@options.generation_options
@options.completion_options
def complete(**typed: Any) -> int:
    """Complete PROMPT, a file (-f) or stdin: the text to stdout, the figures to stderr.

    One newline at the end of a file or of stdin is not part of the prompt.
    """
    terminal = Terminal()
    prompt = _prompt(typed)
    sampling = options.sampling_params(typed)
    with _loaded(model_choice.engine_config(typed, terminal), terminal) as engine:
        writer = None if typed["json"] else ReplyWriter(terminal)
        chunks: list[Chunk] = []
        with (
            Bar(terminal) as bar,
            background.generate(
                engine,
                prompt,
                sampling=sampling,
                max_tokens=typed["predict"],
                stop=typed["stop"],
                raw=typed["raw"],
            ) as job,
        ):
            for chunk in background.shown(job, bar):
                bar.close()
                chunks.append(chunk)
                if writer is not None:
                    writer.write("answer", chunk.text)
        return _report(chunks, writer, terminal, interrupted=job.interrupted)


def _report(
    chunks: Sequence[Chunk], writer: ReplyWriter | None, terminal: Terminal, *, interrupted: bool
) -> int:
    last = chunks[-1] if chunks else None
    stats = last.stats if last is not None else None
    reason = "cancelled" if interrupted or last is None else last.finish_reason
    if writer is None:
        document = {
            "text": "".join(chunk.text for chunk in chunks),
            "tokens": [int(token) for chunk in chunks for token in chunk.tokens],
            "finish_reason": reason,
            "stats": stats.as_dict() if stats is not None else None,
        }
        terminal.json(document)
    elif terminal.out.is_terminal:
        writer.end()
    if writer is not None and stats is not None:
        terminal.notice(f"[{reason} · {stats_view.summary(stats)}]")
    return INTERRUPTED if reason == "cancelled" else 0


@cli.command(short_help="Compare n-token and one-token passes of a model.")
@options.model_options
def check(**typed: Any) -> int:
    """Compare the logits of n-token and one-token passes of the loaded files.

    Trees rely on their agreement.  Exits with 1 if they differ by more than the bound.
    """
    from dyspec_edge.load.check import CheckReport, compare_passes

    terminal = Terminal()
    config = model_choice.engine_config(typed, terminal)
    reports: list[CheckReport] = []
    with background.Work[tuple[CheckReport, ...]](lambda emit: emit(compare_passes(config))) as job:
        for event in job:
            reports.extend(event or ())
    grid = Table.grid(padding=(0, 2))
    for report in reports:
        flips = f"{report.top1_flips} times"
        if report.top1_flips:
            flips += f", largest gap {report.largest_flip_gap:.4g}"
        grid.add_row(report.role, report.path.name)
        grid.add_row("rows compared", str(report.rows))
        grid.add_row("largest difference of a logit", f"{report.max_logit_difference:.4g}")
        grid.add_row("bound", f"{report.bound:.4g}")
        grid.add_row("most probable token differs", flips)
        grid.add_row("result", "ok" if report.ok else "above the bound")
    terminal.out.print(grid)
    return 0 if all(report.ok for report in reports) else 1


@cli.command(short_help="Measure what passes cost, and what will pay.")
@options.model_options
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves: FILE.png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
def calibrate(plot: Path | None, as_json: bool, **typed: Any) -> None:
    """Measure target and draft passes by their rows, and say whether speculation will pay.

    The policy `priced` measures the same at its first load and keeps it; this measures anew.
    """
    from dyspec_edge.cli import calibrate as report

    terminal = Terminal()
    if plot is not None:
        report.check_plot_path(plot)
    config = model_choice.engine_config(typed, terminal)
    with Bar(terminal) as bar:
        calibration = background.awaited(lambda tell: report.measure(config, tell), bar)
    if plot is not None:
        report.plot(calibration, plot)
    if as_json:
        terminal.json(calibration.as_dict())
        return
    for part in (report.table(calibration), "", report.predictions(calibration), ""):
        terminal.out.print(part)
    terminal.text(calibration.verdict)


@cli.command(short_help="Say what GGUF files are and whether they can be a pair.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def inspect(files: tuple[Path, ...], as_json: bool) -> None:
    """Say what GGUF files are, and whether two of them can be a pair (target first)."""
    from dyspec_edge.files import description

    terminal = Terminal()
    if as_json:
        terminal.json(description.as_dict(files))
    else:
        terminal.text(description.describe(files))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def models(as_json: bool) -> None:
    """List the pairs of the catalog."""
    pairs = catalog.load().values()
    if as_json:
        Terminal().json({"pairs": [{**asdict(p), "here": model_choice.is_here(p)} for p in pairs]})
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "size", "here", "checked", "licence", "note"):
        grid.add_column(heading, no_wrap=heading != "note")
    for pair in pairs:
        size = "" if pair.size is None else transfer.format_bytes(pair.size)
        here = "yes" if model_choice.is_here(pair) else ""
        checked = "yes" if pair.checked else ""
        grid.add_row(pair.name, size, here, checked, pair.licence, pair.note)
    Terminal().out.print(grid)


@cli.command(short_help="Fetch a pair of the catalog.")
@click.argument("name")
def pull(name: str) -> None:
    """Fetch a pair of the catalog; an interrupted download goes on where it stopped."""
    terminal = Terminal()
    files = model_choice.fetch_pair(model_choice.find_pair(name), terminal)
    for file in files:
        if file is not None:
            terminal.text(str(file))


@contextmanager
def _loaded(config: EngineConfig, terminal: Terminal) -> Iterator[Engine]:
    engine = _load(config, terminal)
    try:
        yield engine
    finally:
        if not background.left_running():
            engine.close()


def _load(config: EngineConfig, terminal: Terminal) -> Engine:
    from dyspec_edge.engine import Engine

    with Bar(terminal) as bar:
        engine = background.awaited(lambda tell: Engine.load(config, on_progress=tell), bar)
    for line in engine.notices:
        terminal.notice(line)
    return engine


def _prompt(typed: Mapping[str, Any]) -> str | list[dict[str, str]]:
    text, file, raw = typed["prompt"], typed["file"], typed["raw"]
    if text is not None and file is not None:
        raise OptionError("PROMPT and -f each give a prompt; use one of them")
    if raw and typed["system_prompt"] is not None:
        raise OptionError("--raw leaves no place for a system prompt; drop -sys")
    if text is None:
        text = _read(file).removesuffix("\n").removesuffix("\r")
    if not (text if raw else text.strip()):
        raise OptionError("the prompt is empty; give it as an argument, with -f FILE or on stdin")
    if typed["system_prompt"] is None:
        return str(text)
    return [
        {"role": "system", "content": typed["system_prompt"]},
        {"role": "user", "content": text},
    ]


def _read(file: Path | None) -> str:
    if file is None or str(file) == "-":
        if file is None and is_terminal(sys.stdin):
            raise OptionError("no prompt; give it as an argument, with -f FILE or on stdin")
        return decode(sys.stdin.buffer.read(), "stdin")
    try:
        data = file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(f"cannot read the prompt file '{file}': {reason}") from error
    return decode(data, f"'{file}'")
