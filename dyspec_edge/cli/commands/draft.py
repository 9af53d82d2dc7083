"""`dyspec-edge draft`: make drafts, and judge them.

What the commands do is imported when they run, so that other commands start quickly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from dyspec_edge.cli.syntax import CommandGroup
from dyspec_edge.cli.terminal import Bar, Terminal


@click.group(cls=CommandGroup)
def draft() -> None:
    """Make drafts, and judge them."""


@draft.command(short_help="Cut a draft's vocabulary down to its most useful tokens.")
@click.argument("file", type=click.Path(path_type=Path), metavar="DRAFT.gguf")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="OUT.gguf",
    help="The trimmed draft.",
)
@click.option(
    "--keep",
    required=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens that are left; special ones and single bytes always are.",
)
@click.option(
    "--corpus", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Text like what you will generate; its most frequent tokens are kept.",
)  # fmt: skip
def trim(file: Path, out: Path, keep: int, corpus: Sequence[Path]) -> None:
    """Cut the rows of all but N tokens out of a draft: a pass over it then costs less.

    Without --corpus, or where it has seen too few, the lowest ids are kept: tokenizers number their
    tokens by frequency.  Text stays exactly what the target alone would write; what is cut out is
    never proposed.
    """
    from dyspec_edge.drafts import kept_tokens
    from dyspec_edge.drafts.trim import require_whole
    from dyspec_edge.drafts.trim import trim as write
    from dyspec_edge.files.model_file import inspect_file
    from dyspec_edge.files.transfer import format_bytes
    from dyspec_edge.llama import Model

    terminal = Terminal()
    report = inspect_file(file)
    require_whole(report)
    with Bar(terminal) as bar:
        counts = Counter[int]()
        if corpus:
            with Model(file) as model:
                counts = kept_tokens.count_tokens(
                    model, corpus, lambda done: bar.update("counting tokens", done, 1.0)
                )
        kept = kept_tokens.choose(report, keep, counts)
        write(report, kept, out, lambda done: bar.update(f"writing {out.name}", done, 1.0))
    covered = sum(counts[int(token)] for token in kept)
    share = f"; they cover {covered / counts.total():.2%} of the corpus" if counts else ""
    size = f"{format_bytes(out.stat().st_size)} instead of {format_bytes(report.file_size)}"
    terminal.text(f"{out}: {keep:,} of {report.num_vocab:,} tokens, {size}{share}")
