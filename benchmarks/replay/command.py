"""`python -m benchmarks replay`: record texts, replay them, print who would be how fast."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.replay.ablations import ABLATIONS
from benchmarks.replay.curves import Machine, find_machine, own_machines
from benchmarks.replay.distributions import NUM_SEQUENCES, Distributions, DraftModel
from benchmarks.replay.simulation import Clock, Result, Source, replay
from benchmarks.replay.texts import RecordedText, append_text, read_texts
from benchmarks.workbench import (
    GREEDY,
    PROGRAM,
    Bench,
    finish,
    program,
    progress_bar,
    prompt_options,
    show,
)
from dyspec_edge.bench.conditions import conditions, hashes
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.decode.policy import Policy, parse
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.load.calibration import milliseconds
from dyspec_edge.load.machine import physical_cores

CHAINS = (1, 2, 3, 4, 6, 8, 12, 16)
TREES = (4, 8, 16, 32, 64)
SIMULATION = (
    "**This is a simulation**: real policies, recorded texts, distributions of the real draft, and "
    "seconds that follow from cost curves. Planning, drawing and the reading of prompts cost "
    'nothing here; curves marked "assumed" were measured by nobody.'
)

NewPolicy = Callable[[npt.NDArray[np.int32]], Policy]
"""Makes a policy, given the ids that end a text."""

Figures = list[float]
"""One per text."""


@click.group("replay", invoke_without_command=True)
@click.option(
    "--texts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSONL file that `replay record` wrote.",
)
@click.option(
    "--distributions",
    type=click.Path(dir_okay=False, path_type=Path),
    help="SQLite file of remembered distributions [default: beside the texts].",
)
@click.option(
    "-md",
    "draft",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Draft file, for contexts that are not remembered.",
)
@click.option("-t", "threads", type=click.IntRange(1), help="Threads of the draft.")
@click.option(
    "--curve",
    "curves",
    multiple=True,
    help="Name of a curve or a file of `dyspec-edge calibrate --json`; repeatable [default: all].",
)
@click.option("--policy", "policies", multiple=True, help="One more policy; repeatable.")
@click.option("--ablations", is_flag=True, help="Also priced without each of its pieces.")
@click.pass_context
def main(
    context: click.Context,
    texts: Path | None,
    distributions: Path | None,
    draft: Path | None,
    threads: int | None,
    curves: Sequence[str],
    policies: Sequence[str],
    ablations: bool,
) -> None:
    """Simulate policies on recorded texts, on the machines of any cost curve."""
    if context.invoked_subcommand is not None:
        return
    if texts is None:
        raise click.UsageError("name the recorded texts with --texts; `replay record` writes them")
    for spec in policies:
        _parsed(spec, np.zeros(0, np.int32))
    machines = [find_machine(name) for name in curves] or list(own_machines().values())
    recorded = read_texts(texts)
    if not recorded:
        raise click.UsageError(f"{texts} holds no text")
    num_threads = threads or physical_cores()
    where = conditions(hashes([draft] if draft else []), num_threads, PROGRAM)
    path = distributions or texts.with_suffix(".sqlite")
    with _opened(path, draft, recorded, num_threads) as source:
        study = _Study(recorded, machines, source)
        study.run(policies, ablations)
        evaluated = source.num_evaluated
    _print(study, where, evaluated)


@contextmanager
def _opened(
    path: Path, draft: Path | None, texts: Sequence[RecordedText], num_threads: int
) -> Iterator[Distributions]:
    model = None
    if draft is not None:
        model = DraftModel(
            draft,
            num_ctx=max(len(text.prompt) + len(text.tokens) for text in texts),
            num_threads=num_threads,
            vocab_limit=min(text.num_vocab for text in texts),
        )
    source = Distributions(path, model)
    try:
        yield source
    finally:
        source.close()


class _Study:
    """Everything replayed, a result per text.

    Attributes:
        fixed: by policy, for those whose passes do not depend on prices.
        priced: `priced` and its ablations, by name and machine.
    """

    def __init__(
        self, texts: Sequence[RecordedText], machines: Sequence[Machine], source: Source
    ) -> None:
        self.texts = texts
        self.machines = machines
        self.fixed: dict[str, list[Result]] = {}
        self.priced: dict[str, dict[str, list[Result]]] = {}
        self._source = source

    def run(self, policies: Sequence[str], ablations: bool) -> None:
        """Replay everything, text by text: the draft then reads each prompt once."""
        specs = [*(f"chain:{k}" for k in CHAINS), *(f"dyspec:{n}" for n in TREES), *policies]
        kinds: dict[str, NewPolicy] = {"priced": PricedPolicy, **(ABLATIONS if ablations else {})}
        with progress_bar() as bar:
            per_text = len(specs) + len(kinds) * len(self.machines)
            task = bar.add_task("replaying", total=per_text * len(self.texts))
            for text in self.texts:
                for spec in specs:
                    bar.update(task, description=f"{text.id} {spec}")
                    result = self._replay(text, partial(_parsed, spec), self.machines[0])
                    self.fixed.setdefault(spec, []).append(result)
                    bar.advance(task)
                for name, new_policy in kinds.items():
                    for machine in self.machines:
                        bar.update(task, description=f"{text.id} {name}, {machine.name}")
                        result = self._replay(text, new_policy, machine)
                        of_kind = self.priced.setdefault(name, {})
                        of_kind.setdefault(machine.name, []).append(result)
                        bar.advance(task)

    def speedups(self, name: str, machine: Machine) -> Figures:
        """Of a policy or an ablation, against plain decoding, one per text."""
        results = self.fixed[name] if name in self.fixed else self.priced[name][machine.name]
        return [result.speedup(machine) for result in results]

    def accept_lengths(self) -> dict[str, Figures]:
        """By policy, the mean of each text; that of `priced` belongs to a machine."""
        found = dict(self.fixed)
        for machine in self.machines:
            found[f"priced, {machine.title}"] = self.priced["priced"][machine.name]
        return {name: [r.accept_length for r in results] for name, results in found.items()}

    def best_chain(self, machine: Machine) -> tuple[Figures, list[int]]:
        """The best chain of every text, chosen afterwards, and its length."""
        by_length = np.array([self.speedups(f"chain:{k}", machine) for k in CHAINS])
        best = by_length.argmax(axis=0)
        return by_length.max(axis=0).tolist(), [CHAINS[i] for i in best]

    def best_tree(self, machine: Machine) -> int:
        """The N that is best in the mean."""
        return max(TREES, key=lambda n: mean(self.speedups(f"dyspec:{n}", machine)))

    def _replay(self, text: RecordedText, new_policy: NewPolicy, machine: Machine) -> Result:
        policy = new_policy(np.array(text.end_tokens, np.int32))
        return replay(text, policy, self._source, Clock(machine))


def _parsed(spec: str, end_tokens: npt.NDArray[np.int32]) -> Policy:
    policy = parse(spec, end_tokens)
    if policy.max_nodes == 0:
        raise click.UsageError("--policy none: plain decoding is what all are compared with")
    if isinstance(policy, PricedPolicy):  # its passes go by the prices of a machine
        raise click.UsageError("--policy priced: it is always there, on every curve by itself")
    if policy.max_leaves > NUM_SEQUENCES:
        raise click.UsageError(f"--policy {spec}: a replay has trees of {NUM_SEQUENCES} leaves")
    return policy


def _print(study: _Study, where: Mapping[str, Any], num_evaluated: int) -> None:
    print(SIMULATION)
    extra = [name for name in study.fixed if not name.startswith(("chain:", "dyspec:"))]
    rows, document = [], {}
    for machine in study.machines:
        chains, lengths = study.best_chain(machine)
        tree = f"dyspec:{study.best_tree(machine)}"
        trees, priced = study.speedups(tree, machine), study.speedups("priced", machine)
        rows.append(
            (
                machine.title,
                _shown(chains),
                f"{_shown(trees)} `{tree}`",
                f"**{_shown(priced)}**",
                *(_shown(study.speedups(name, machine)) for name in extra),
            )
        )
        document[machine.name] = {
            "title": machine.title,
            "basis": machine.basis,
            "best_chain": chains,
            "best_chain_length": lengths,
            **{name: study.speedups(name, machine) for name in (*study.fixed, *study.priced)},
        }
    num_tokens = sum(len(text.tokens) for text in study.texts)
    show(
        f"SIMULATED speed against plain decoding, T = 0, geometric mean (worst prompt); "
        f"{len(study.texts)} texts, {num_tokens} tokens",
        (
            "curve",
            "best chain per prompt, chosen afterwards",
            "best `dyspec:N`",
            "priced",
            *(f"`{name}`" for name in extra),
        ),
        rows,
    )
    show(
        "SIMULATED accept length, T = 0, mean of the texts",
        ("policy", "accept length", "least", "most"),
        [
            (name, f"{statistics.mean(found):.2f}", f"{min(found):.2f}", f"{max(found):.2f}")
            for name, found in study.accept_lengths().items()
        ],
    )
    if len(study.priced) > 1:
        _print_ablations(study)
    print("\nCurves:\n")
    for machine in study.machines:
        print(f"- {machine.title}: {machine.basis}; {_points(machine)}")
    finish(
        dict(where),
        {
            "simulation": True,
            "texts": [text.id for text in study.texts],
            "target": sorted({text.target for text in study.texts}),
            "newly_evaluated": num_evaluated,
            "accept_length": study.accept_lengths(),
            "curves": document,
        },
    )


def _print_ablations(study: _Study) -> None:
    rows = []
    for name in study.priced:
        if name == "priced":
            continue
        cells = []
        for machine in study.machines:
            without, whole = study.speedups(name, machine), study.speedups("priced", machine)
            cells.append(f"{mean(without) / mean(whole) - 1:+.1%} ({min(without):.2f})")
        rows.append((name, *cells))
    show(
        "SIMULATED: priced without a piece, against the whole, in the mean (worst prompt)",
        ("without", *(machine.name for machine in study.machines)),
        rows,
    )


def _shown(speedups: Sequence[float]) -> str:
    return f"{mean(speedups):.2f} ({min(speedups):.2f})"


def _points(machine: Machine) -> str:
    points = ", ".join(
        f"T({n}) {seconds / machine.target.at(1):.2f}x"
        for n, seconds in zip(machine.target.sizes, machine.target.seconds, strict=True)
        if n > 1
    )
    return f"T(1) {milliseconds(machine.target.at(1))}, {points}, " + (
        f"D(1) {milliseconds(machine.draft.at(1))}, "
        f"D(16) {machine.draft.at(16) / machine.draft.at(1):.2f}x"
    )


def mean(speedups: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, speedups)) / len(speedups))


@program(tokens=256)
@click.option(
    "--texts",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="JSONL file that the texts are added to; those that it holds are not written again.",
)
@prompt_options(each=1)
def record(bench: Bench, texts: Path, categories: Sequence[str], each: int) -> None:
    """Let the target write its greedy texts, once."""
    prompts = choose(bench.setup.prompts, categories, each)
    known = {text.id for text in read_texts(texts)} if texts.exists() else set()
    bench.expect(len(prompts))
    for prompt in prompts:

        def write(prompt: Prompt = prompt) -> dict[str, Any]:
            if prompt.id not in known:
                append_text(texts, _written(bench, prompt))
            return {}

        bench.run({"prompt": prompt.id}, write)


main.add_command(record)


def _written(bench: Bench, prompt: Prompt) -> RecordedText:
    engine = bench.engine("none")
    read = engine.prepare(prompt.messages)
    reply = engine.generate(read, sampling=GREEDY, max_tokens=bench.setup.num_tokens)
    model = engine.conversation.target.context.model
    return RecordedText(
        id=prompt.id,
        category=prompt.category,
        target=bench.setup.model.name,
        num_vocab=model.num_vocab,
        prompt=read.tokens,
        tokens=reply.tokens,
        end_tokens=tuple(sorted(model.end_tokens.tolist())),
    )
