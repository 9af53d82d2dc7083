"""`dyspec-edge trace`: a reply with its token trees as one HTML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dyspec_edge.cli import background, model_choice, options
from dyspec_edge.cli.commands.generation import loaded
from dyspec_edge.cli.syntax import INTERRUPTED, Command
from dyspec_edge.cli.terminal import ReplyWriter, Terminal

if TYPE_CHECKING:
    from dyspec_edge.engine import Chunk

Traced = tuple["Chunk", "dict[str, Any] | None"]


@click.command(cls=Command)
@click.argument("prompt", type=options.TEXT)
@options.trace_options
def trace(**typed: Any) -> int:
    """Answer PROMPT and write a page that shows the token tree of every step.

    The page needs nothing else: no server, no network.
    """
    from dyspec_edge.files import output
    from dyspec_edge.server import figures
    from dyspec_edge.server.steps import StepWriter
    from dyspec_edge.server.trace import write_trace

    terminal, path = Terminal(), Path(typed["output"])
    output.require_place("-o", path)
    output.require_no_model("-o", path)
    sampling = options.sampling_params(typed)
    config = model_choice.engine_config(typed, terminal)
    with loaded(config, terminal) as engine:
        model = engine.conversation.target.context.model

        def job(emit: Callable[[Traced], None]) -> None:
            steps = StepWriter(engine.conversation, lambda token: model.piece(token, special=True))
            for chunk in engine.stream(
                typed["prompt"], sampling=sampling, max_tokens=typed["predict"]
            ):
                step = engine.last_step if chunk.finish_reason is None else None
                emit((chunk, None if step is None else steps.write(step)))

        writer = ReplyWriter(terminal)
        chunks: list[Chunk] = []
        steps: list[dict[str, Any]] = []
        with background.Job(job, cancel=engine.cancel) as running:
            for event in running:
                if event is not None:
                    chunk, step = event
                    writer.write("answer", chunk.text)
                    chunks.append(chunk)
                    steps += [] if step is None else [step]
        writer.end()
    stats = chunks[-1].stats if chunks else None
    document = {
        "prompt": typed["prompt"],
        "model": {"target": config.model.name, "draft": config.draft and config.draft.name},
        "settings": {
            "policy": stats and stats.policy,
            "temperature": sampling.temperature,
            "seed": stats and stats.seed,
        },
        "steps": steps,
        "timings": figures.timings(stats) if stats is not None else {},
    }
    write_trace(document, path)
    terminal.notice(f"[{len(steps)} steps · {path}]")
    return INTERRUPTED if running.interrupted else 0
