"""`dyspec-edge chat` and `complete`: the commands that write text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dyspec_edge.cli import background, line_input, model_choice, options, stats_view
from dyspec_edge.cli.chat import COMMANDS, Chat, ChatSettings
from dyspec_edge.cli.syntax import INTERRUPTED, Command
from dyspec_edge.cli.terminal import Bar, ReplyWriter, Terminal, is_terminal
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.text.utf8 import read

if TYPE_CHECKING:
    from dyspec_edge.engine import Chunk, Engine, EngineConfig


@click.command(cls=Command)
@options.generation_options
def chat(**typed: Any) -> int:
    """Talk to a model.  /help lists the commands.

    From a pipe, each line is one message (or a command) and empty lines are skipped; the replies
    go to stdout and the figures to stderr.
    """
    if typed["predict"] == 0:
        raise OptionError("-n 0 only reads a prompt; in a chat it must be 1 or more, or -1")
    typed = options.unescaped(typed)
    terminal = Terminal()
    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    config = model_choice.engine_config(typed, terminal)
    settings = ChatSettings(
        sampling=options.sampling_params(typed),
        max_tokens=typed["predict"],
        stop=typed["stop"],
        system=typed["system_prompt"],
        models={"model": str(config.model), "draft": str(config.draft or "")},
    )
    keys = line_input.keys_kept() if interactive else nullcontext()
    with keys, loaded(config, terminal) as engine:
        lines: line_input.LineSource = line_input.PipedLines()
        if interactive:
            terminal.notice("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.")
            lines = _line_editor()
        return Chat(engine, terminal, settings, interactive=interactive).run(lines)


@click.command(cls=Command, short_help="Complete one prompt, or answer one message.")
@click.argument("prompt", required=False, type=options.TEXT)
@options.generation_options
@options.completion_options
def complete(**typed: Any) -> int:
    """Complete PROMPT, a file (-f) or stdin: the text to stdout, the figures to stderr.

    PROMPT and a file, or what is piped in, are joined by an empty line: `cat main.py | dyspec-edge
    complete "Explain this."`.  The stdin of a script that runs this program stays the script's;
    -f - reads it.  One newline at the end of a file or of stdin is not part of the prompt.
    """
    typed = options.unescaped(typed)
    terminal = Terminal()
    prompt = _prompt(typed, terminal)
    sampling = options.sampling_params(typed)
    with loaded(model_choice.engine_config(typed, terminal), terminal) as engine:
        writer = None if typed["json"] else ReplyWriter(terminal)
        chunks: list[Chunk] = []
        with (
            Bar(terminal) as bar,
            background.stream_reply(
                engine,
                prompt,
                sampling=sampling,
                max_tokens=typed["predict"],
                stop=typed["stop"],
                raw=typed["raw"],
            ) as job,
        ):
            for chunk in background.with_bar(job, bar):
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


def _line_editor() -> line_input.LineSource:
    from dyspec_edge.cli import line_editor

    commands = [f"/{name}" for name in COMMANDS]
    return line_editor.LineEditor(line_editor.history_file(), commands)


@contextmanager
def loaded(config: EngineConfig, terminal: Terminal) -> Iterator[Engine]:
    """An engine, with a bar while it loads and its notices shown; closed at the end."""
    from dyspec_edge.engine import Engine

    with Bar(terminal) as bar:
        engine = background.run(lambda tell: Engine.load(config, on_progress=tell), bar)
    for line in engine.notices:
        terminal.notice(line)
    try:
        yield engine
    finally:
        if not background.left_running():
            engine.close()


def _prompt(typed: Mapping[str, Any], terminal: Terminal) -> str | list[dict[str, str]]:
    raw = typed["raw"]
    if raw and typed["system_prompt"] is not None:
        raise OptionError("--raw leaves no place for a system prompt; drop -sys")
    text = _joined(typed["prompt"], typed["file"], terminal)
    if not (text if raw else text.strip()):
        raise OptionError("the prompt is empty; give it as an argument, with -f FILE or on stdin")
    if typed["system_prompt"] is None:
        return str(text)
    return [
        {"role": "system", "content": typed["system_prompt"]},
        {"role": "user", "content": text},
    ]


def _joined(typed: str | None, file: Path | None, terminal: Terminal) -> str:
    """What was typed and what a file or stdin holds, with an empty line between them."""
    if typed is None and file is None and is_terminal(sys.stdin):
        raise OptionError("no prompt; give it as an argument, with -f FILE or on stdin")
    if typed is not None and file is None:
        source = line_input.piped_in()
        if source == "the caller's":
            terminal.notice("(stdin is the calling script's and was left alone; -f - reads it)")
        if source != "ours":
            return typed
    text = _read(file).removesuffix("\n").removesuffix("\r")
    return "\n\n".join(part for part in (typed, text) if part)


def _read(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return read(sys.stdin.buffer, "stdin")
    try:
        with file.open("rb") as opened:
            return read(opened, f"'{file}'")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(f"cannot read the prompt file '{file}': {reason}") from error
