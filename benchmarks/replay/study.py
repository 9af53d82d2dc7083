"""`replay synthetic`: priced against the best chain where the draft's acceptance is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.replay.command import CHAINS, SIMULATION, mean
from benchmarks.replay.curves import Machine, find_machine
from benchmarks.replay.simulation import Clock, Result, replay
from benchmarks.replay.synthetic import END, Chance, SyntheticSource, fresh_tokens, made_up, varied
from benchmarks.workbench import PROGRAM, finish, show
from dyspec_edge.bench.conditions import conditions
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.policy.chain import ChainPolicy
from dyspec_edge.decode.policy.priced import PricedPolicy

ACCEPTANCES = (0.5, 0.7, 0.8, 0.9)
ENDS = np.array([END], np.int32)
KINDS: dict[str, Callable[[float, int], Chance]] = {
    "same everywhere": lambda a, _seed: lambda _index: a,
    "varied": varied,
}


@dataclass(frozen=True, slots=True)
class _Case:
    """A draft, and one text for each seed."""

    kind: str
    acceptance: float
    num_tokens: int

    def replay(self, policy: Policy, seed: int, clock: Clock) -> Result:
        tokens = fresh_tokens(self.num_tokens + 1, seed)
        text = made_up(tokens[:1], tokens[1:])
        source = SyntheticSource(text, KINDS[self.kind](self.acceptance, seed), seed=seed)
        return replay(text, policy, source, clock)


@click.command()
@click.option("--curve", "curves", multiple=True, default=("f16-ram", "gpu-8b"))
@click.option("--texts", "num_texts", default=6, show_default=True, help="Made-up texts a case.")
@click.option("--tokens", default=512, show_default=True, help="Tokens of a text.")
def synthetic(curves: tuple[str, ...], num_texts: int, tokens: int) -> None:
    """Priced against the best chain, on made-up drafts of known acceptance."""
    machines = [find_machine(name) for name in curves]
    cases = [_Case(kind, a, tokens) for kind in KINDS for a in ACCEPTANCES]
    rows, document = [], []
    for case in track(cases, "replaying", console=Console(stderr=True)):

        def replayed(new: Callable[[], Policy], machine: Machine, of: _Case = case) -> list[Result]:
            return [of.replay(new(), seed, Clock(machine)) for seed in range(num_texts)]

        chains = {k: replayed(partial(ChainPolicy, k, ENDS), machines[0]) for k in CHAINS}
        for machine in machines:
            by_length = {k: mean([r.speedup(machine) for r in chains[k]]) for k in CHAINS}
            best = max(by_length, key=lambda k: by_length[k])
            found: dict[str, Any] = {"best_chain": best, "chain": by_length[best]}
            results = replayed(partial(PricedPolicy, ENDS), machine)
            found["priced"] = [result.speedup(machine) for result in results]
            key = {"curve": machine.name, "confidence": case.kind, "acceptance": case.acceptance}
            document.append({**key, **found})
            rows.append(
                {
                    **{name: str(value) for name, value in key.items()},
                    "best chain, chosen afterwards": f"{by_length[best]:.2f} `chain:{best}`",
                    "against the chain": f"{mean(found['priced']) / by_length[best]:.2f}x",
                    "priced": f"{mean(found['priced']):.2f} ({min(found['priced']):.2f})",
                }
            )
    rows.sort(key=lambda row: (row["curve"], row["confidence"]))
    print(SIMULATION)
    show(
        f"SIMULATED speed against plain decoding, geometric mean (worst text) of {num_texts} "
        f"made-up texts of {tokens} tokens; drafts of known acceptance",
        rows,
    )
    finish(conditions({}, 1, PROGRAM), {"simulation": True, "cases": document})
