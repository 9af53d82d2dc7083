"""`python -m benchmarks replay`: record texts, replay them, print who would be how fast."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.replay.curves import Machine, find_machine, own_machines
from benchmarks.replay.distributions import NUM_SEQUENCES, Distributions, DraftModel
from benchmarks.replay.simulation import Clock, Result, Source, replay
from benchmarks.replay.texts import RecordedText, read_texts
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
from dyspec_edge.bench.journal import Journal
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.decode.policy import Policy, parse
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.load.machine import physical_cores

CHAINS = (1, 2, 3, 4, 6, 8, 12, 16)
TREES = (4, 8, 16, 32, 64)
SIMULATION = (
    "**This is a simulation**: real policies, recorded texts, distributions of the real draft, and "
    "seconds that follow from cost curves. Planning, drawing and the reading of prompts cost "
    'nothing here; curves marked "assumed" were measured by nobody.'
)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

NewPolicy = Callable[[npt.NDArray[np.int32]], Policy]
"""Makes a policy, given the ids that end a text."""

Figures = list[float]
"""One per text."""


@click.group("replay", invoke_without_command=True)
@click.option("--texts", type=FILE, help="JSONL file that `replay record` wrote.")
@click.option(
    "--distributions",
    type=click.Path(dir_okay=False, path_type=Path),
    help="SQLite file of remembered distributions [default: beside the texts].",
)
@click.option("-md", "draft", type=FILE, help="Draft file, for contexts that are not remembered.")
@click.option("-t", "threads", type=click.IntRange(1), help="Threads of the draft.")
@click.option(
    "--curve",
    "curves",
    multiple=True,
    help="Name of a curve or a file of `dyspec-edge calibrate --json`; repeatable [default: all].",
)
@click.option("--policy", "policies", multiple=True, help="One more policy; repeatable.")
@click.pass_context
def main(
    context: click.Context,
    texts: Path | None,
    distributions: Path | None,
    draft: Path | None,
    threads: int | None,
    curves: Sequence[str],
    policies: Sequence[str],
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
    model = None
    if draft is not None:
        model = DraftModel(
            draft,
            num_ctx=max(len(text.prompt) + len(text.tokens) for text in recorded),
            num_threads=num_threads,
            vocab_limit=min(text.num_vocab for text in recorded),
        )
    with closing(Distributions(distributions or texts.with_suffix(".sqlite"), model)) as source:
        study = Study(recorded, machines, source)
        study.run(policies)
    print(SIMULATION)
    document = study.show_speedups(extra=policies)
    study.show_accept_lengths()
    print("\nCurves:\n")
    for machine in machines:
        print(f"- {machine.title}: {machine.basis}")
    found = {
        "simulation": True,
        "texts": [text.id for text in recorded],
        "target": sorted({text.target for text in recorded}),
        "newly_evaluated": source.num_evaluated,
        "accept_length": study.accept_lengths(),
        "curves": document,
    }
    finish(where, found)


class Study:
    """Everything replayed, a result per text.

    Attributes:
        fixed: by policy, for those whose passes do not depend on prices.
        priced: `priced`, by machine.
    """

    def __init__(
        self, texts: Sequence[RecordedText], machines: Sequence[Machine], source: Source
    ) -> None:
        self.texts = texts
        self.machines = machines
        self.fixed: dict[str, list[Result]] = {}
        self.priced: dict[str, list[Result]] = {machine.name: [] for machine in machines}
        self._source = source

    def run(self, policies: Sequence[str]) -> None:
        """Replay everything, text by text: the draft then reads each prompt once."""
        specs = [*(f"chain:{k}" for k in CHAINS), *(f"dyspec:{n}" for n in TREES), *policies]
        fixed = [(spec, partial(_parsed, spec)) for spec in dict.fromkeys(specs)]
        with progress_bar() as bar:
            per_text = len(fixed) + len(self.machines)
            task = bar.add_task("", total=per_text * len(self.texts))

            def replayed(text: RecordedText, name: str, new: NewPolicy, on: Machine) -> Result:
                bar.update(task, description=f"{text.id} {name}, {on.name}")
                policy = new(np.array(text.end_tokens, np.int32))
                bar.advance(task)
                return replay(text, policy, self._source, Clock(on))

            for text in self.texts:
                for name, new in fixed:
                    result = replayed(text, name, new, self.machines[0])
                    self.fixed.setdefault(name, []).append(result)
                for machine in self.machines:
                    result = replayed(text, "priced", PricedPolicy, machine)
                    self.priced[machine.name].append(result)

    def speedups(self, name: str, machine: Machine) -> Figures:
        """Of a policy against plain decoding, one per text."""
        results = self.priced[machine.name] if name == "priced" else self.fixed[name]
        return [result.speedup(machine) for result in results]

    def accept_lengths(self) -> dict[str, Figures]:
        """By policy, the mean of each text; that of `priced` belongs to a machine."""
        found = dict(self.fixed)
        for machine in self.machines:
            found[f"priced, {machine.title}"] = self.priced[machine.name]
        return {name: [r.accept_length for r in results] for name, results in found.items()}

    def show_speedups(self, *, extra: Sequence[str]) -> dict[str, Any]:
        """A row per machine; the best chain of every text is chosen afterwards."""
        rows, document = [], {}
        for machine in self.machines:
            of = {name: self.speedups(name, machine) for name in (*self.fixed, "priced")}
            by_length = np.array([of[f"chain:{k}"] for k in CHAINS])
            best = by_length.max(axis=0).tolist()
            tree = max((f"dyspec:{n}" for n in TREES), key=lambda name: mean(of[name]))
            rows.append(
                {
                    "curve": machine.title,
                    "best chain per prompt, chosen afterwards": _shown(best),
                    "best `dyspec:N`": f"{_shown(of[tree])} `{tree}`",
                    "priced": f"**{_shown(of['priced'])}**",
                    **{f"`{name}`": _shown(of[name]) for name in extra},
                }
            )
            document[machine.name] = {
                "title": machine.title,
                "basis": machine.basis,
                "best_chain": best,
                "best_chain_length": [CHAINS[i] for i in by_length.argmax(axis=0)],
                **of,
            }
        num_tokens = sum(len(text.tokens) for text in self.texts)
        show(
            "SIMULATED speed against plain decoding, T = 0, geometric mean (worst prompt); "
            f"{len(self.texts)} texts, {num_tokens} tokens",
            rows,
        )
        return document

    def show_accept_lengths(self) -> None:
        """A row per policy."""
        show(
            "SIMULATED accept length, T = 0, mean of the texts",
            [
                {
                    "policy": name,
                    "accept length": f"{statistics.mean(found):.2f}",
                    "least": f"{min(found):.2f}",
                    "most": f"{max(found):.2f}",
                }
                for name, found in self.accept_lengths().items()
            ],
        )


def _parsed(spec: str, end_tokens: npt.NDArray[np.int32]) -> Policy:
    policy = parse(spec, end_tokens)
    if policy.max_nodes == 0:
        raise click.UsageError("--policy none: plain decoding is what all are compared with")
    if isinstance(policy, PricedPolicy):  # its passes go by the prices of a machine
        raise click.UsageError("--policy priced: it is always there, on every curve by itself")
    if policy.max_leaves > NUM_SEQUENCES:
        raise click.UsageError(f"--policy {spec}: a replay has trees of {NUM_SEQUENCES} leaves")
    return policy


def _shown(speedups: Sequence[float]) -> str:
    return f"{mean(speedups):.2f} ({min(speedups):.2f})"


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
    journal = Journal(texts)
    known = {text.id for text in read_texts(texts)}
    bench.expect(len(prompts))
    for prompt in prompts:

        def write(prompt: Prompt = prompt) -> dict[str, Any]:
            if prompt.id not in known:
                journal.add({"text": prompt.id}, asdict(_written(bench, prompt)))
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
