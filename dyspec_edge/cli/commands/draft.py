"""`dyspec-edge draft`: make drafts, and judge them.

What the commands do is imported when they run, so that other commands start quickly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dyspec_edge.cli import background, model_choice, options
from dyspec_edge.cli.commands import bench
from dyspec_edge.cli.syntax import INTERRUPTED, CommandGroup, Kept
from dyspec_edge.cli.terminal import Bar, Terminal
from dyspec_edge.errors import DyspecError, OptionError

if TYPE_CHECKING:
    from dyspec_edge.decode.prices import Prices
    from dyspec_edge.engine import EngineConfig


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
    type=Kept(),
    metavar="N|auto",
    help="Tokens that are left; special ones and single bytes always are. auto: as many as pay for "
    "their rows.",
)
@click.option(
    "--corpus", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Text like what you will generate, best what the target wrote; its tokens are kept first.",
)  # fmt: skip
def trim(file: Path, out: Path, keep: int | None, corpus: Sequence[Path]) -> None:
    """Cut the rows of all but N tokens out of a draft: a pass over it then costs less.

    Kept are those that text is expected to have: half by --corpus, half by their ids, or all by
    ids without one, since tokenizers number their tokens by frequency.  Text stays exactly what the
    target alone would write; what is cut out is never proposed.
    """
    from dyspec_edge.drafts import kept_size, kept_tokens
    from dyspec_edge.drafts.trim import require_whole
    from dyspec_edge.drafts.trim import trim as write
    from dyspec_edge.files.model_file import inspect_file
    from dyspec_edge.files.output import require_place
    from dyspec_edge.files.transfer import format_bytes
    from dyspec_edge.llama import Model
    from dyspec_edge.load.machine import physical_cores

    terminal = Terminal()
    require_place("-o", out)
    report = inspect_file(file)
    require_whole(report)
    with Bar(terminal) as bar:
        counts = Counter[int]()
        if corpus or keep is None:
            with Model(file) as model:
                counts = kept_tokens.count_tokens(
                    model, corpus, lambda done: bar.update("counting tokens", done, 1.0)
                )
                if keep is None:
                    bar.update("timing passes", 0.0, 1.0)
                    taken = kept_size.output_share(model, physical_cores())
                    order = kept_tokens.ranked(report, counts)
                    expected = kept_tokens.by_id(report.num_vocab)
                    keep = kept_size.best_size(*order, expected, taken)
                    terminal.notice(f"the output layer is {taken:.0%} of a pass of {file.name}")
        kept = kept_tokens.choose(report, keep or 0, counts)
        write(report, kept, out, lambda done: bar.update(f"writing {out.name}", done, 1.0))
    covered = sum(counts[int(token)] for token in kept)
    share = f"; they cover {covered / counts.total():.2%} of the corpus" if counts else ""
    size = f"{format_bytes(out.stat().st_size)} instead of {format_bytes(report.file_size)}"
    terminal.text(f"{out}: {len(kept):,} of {report.num_vocab:,} tokens, {size}{share}")


@draft.command("self", short_help="Make a draft of the target itself, in fewer bits.")
@click.option(
    "-m", "--model", "model", required=True, type=click.Path(path_type=Path), metavar="TARGET.gguf",
    help="The target.",
)  # fmt: skip
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="OUT.gguf",
    help="Write the copy there, to compare recipes. [default: what -md self loads]",
)  # fmt: skip
@click.option(
    "--quant", type=click.Choice(("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_M")),
    help="Type of its weights; with -o only.",
)  # fmt: skip
@click.option(
    "--drop", type=options.TEXT, metavar="LAYER,...",
    help="Layers to leave out; with -o only, and where all layers are alike.",
)  # fmt: skip
def make_self(model: Path, out: Path | None, quant: str | None, drop: str | None) -> None:
    """Make a draft for any target: a copy of it in fewer bits.

    -md self makes and loads the same; draft evaluate says whether it pays.
    """
    from dyspec_edge.files.output import require_place
    from dyspec_edge.files.transfer import format_bytes
    from dyspec_edge.load import self_draft

    terminal = Terminal()
    if out is None and (quant or drop):
        raise OptionError("--quant and --drop need -o OUT.gguf: -md self has one recipe")
    recipe = self_draft.Recipe(quant or self_draft.RECIPE.kind, _layers(drop))
    if out is not None:
        require_place("-o", out)
    with Bar(terminal, delay=0.3) as bar:

        def tell(label: str, done: float) -> None:
            bar.update(label, done, 1.0)

        if out is None:
            out = self_draft.ensure(model, tell)
        else:
            self_draft.make(model, out, recipe, tell)
    size = f"{format_bytes(out.stat().st_size)} of {format_bytes(model.stat().st_size)}"
    terminal.text(f"{out}: {size}")


def _layers(typed: str | None) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in (typed or "").split(",") if word}))
    except ValueError:
        raise OptionError(f"--drop {typed}: name layers by their numbers, as 5,6,7") from None


@draft.command(short_help="Say which of several drafts pays on this machine.")
@options.evaluation_options
def evaluate(drafts: Sequence[Path], out: Path | None, as_json: bool, **typed: Any) -> int:
    """Let drafts, copies alone and plain decoding answer the same prompts, and judge the drafts.

    Of each draft: how often its first guess is right on text that the target writes, what a pass
    costs here, from which acceptance on it pays, its best chain, and the speedup of `priced`,
    predicted and measured.  Finished runs are kept: the same command again does what is missing.
    """
    from dyspec_edge.bench.journal import Journal
    from dyspec_edge.cli import evaluation_view
    from dyspec_edge.drafts import evaluation
    from dyspec_edge.files import stores
    from dyspec_edge.files.model_file import inspect_file
    from dyspec_edge.files.pair import require_pair
    from dyspec_edge.load import self_draft
    from dyspec_edge.load.config import HEAD, NO_DRAFT, SELF
    from dyspec_edge.load.speculation import drafts_by_head

    terminal = Terminal()
    typed |= {"model_draft": None, "hf_repo_draft": None, "pair": None, "rounds": 1, "fresh": False}
    config = model_choice.engine_config({**typed, "policy": None, "verify": "match"}, terminal)
    target = inspect_file(config.model)
    for file in drafts:
        if file not in (HEAD, SELF):
            require_pair(target, inspect_file(file))
    if drafts_by_head(config, target):
        drafts = (*drafts, HEAD)
    if self_draft.is_made(config.model):
        drafts = (*drafts, SELF)
    if not drafts:
        raise OptionError("no draft to judge; name one or more with -md, or -md self")
    if out is None:
        out = stores.cache_dir() / "evaluations.jsonl"
        out.parent.mkdir(parents=True, exist_ok=True)
    found, journal = [], Journal(out)
    for path in (*dict.fromkeys(drafts), None):
        config = replace(config, draft=NO_DRAFT if path is None else path)
        config = model_choice.with_self_copy(config, terminal)
        guess = () if path is None else (evaluation.GUESS,)
        policies = ("none", *guess, evaluation.JUDGED)
        wanted = bench.wanted_runs({**typed, "policies": policies})
        session = bench.open_session(config, wanted, journal, terminal)
        if session.remaining and bench.perform(session, config, wanted.fresh, terminal):
            terminal.notice(f"finished runs are in {out}; the same command does the rest")
            return INTERRUPTED
        found.append(evaluation.Runs(path, session.lines, _prices(config, terminal)))
    verdicts = evaluation.judge(found)
    chosen = evaluation.best(verdicts)
    if as_json:
        use = None if chosen is None or chosen.draft is None else str(chosen.draft)
        terminal.json({"drafts": [verdict.as_dict() for verdict in verdicts], "use": use})
        return 0
    terminal.out.print(evaluation_view.table(verdicts))
    if (lost := evaluation_view.left_out(verdicts)) is not None:
        terminal.notice(lost)
    terminal.text(evaluation_view.advice(chosen))
    return 0


def _prices(config: EngineConfig, terminal: Terminal) -> Prices:
    """What passes cost, as it was measured for the runs."""
    from dyspec_edge.load.loading import load

    def measured(on_progress: Callable[[str, float], None]) -> Prices | None:
        loaded = load(replace(config, policy="priced"), on_progress)
        loaded.close()
        return loaded.prices

    with Bar(terminal) as bar:
        prices = background.run(measured, bar)
    if prices is None:
        raise DyspecError(f"{config.model}: decodes plainly whatever the draft; nothing to judge")
    return prices
