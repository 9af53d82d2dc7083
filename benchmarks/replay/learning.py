"""`replay learning`: what it costs that prices are unknown at first, or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.replay.command import SIMULATION, mean
from benchmarks.replay.curves import Machine, own_machines, sure
from benchmarks.replay.simulation import Clock, Result, replay
from benchmarks.replay.synthetic import END, SyntheticSource, fresh_tokens, made_up, varied
from benchmarks.workbench import PROGRAM, finish, show
from dyspec_edge.bench.conditions import conditions
from dyspec_edge.decode.cost import TARGET_SIZES, CostCurve
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.prices import LivePrices, Prices

ENDS = np.array([END], np.int32)
FACTOR = 3.0
ONE_SIZES = (2, 3, 4, 8, 16)

Belief = Callable[[CostCurve], CostCurve]
"""What is believed of a target's true curve."""


def known(curve: CostCurve) -> CostCurve:
    """The truth at every size that is measured."""
    return sure(kept(curve))


def kept(curve: CostCurve) -> CostCurve:
    """The same, but of another day."""
    return CostCurve(TARGET_SIZES, tuple(curve.at(n) for n in TARGET_SIZES))


def only(*sizes: int) -> Belief:
    """The truth at these sizes."""
    return lambda curve: CostCurve(sizes, tuple(curve.at(n) for n in sizes), sure=frozenset(sizes))


def off_at(size: int, factor: float) -> Belief:
    """The truth but at one size."""

    def believed(curve: CostCurve) -> CostCurve:
        points = {n: curve.at(n) for n in TARGET_SIZES}
        points[size] *= factor
        return CostCurve(tuple(points), tuple(points.values()))

    return believed


def off_beyond_one(factor: float) -> Belief:
    """Right for one row only."""

    def believed(curve: CostCurve) -> CostCurve:
        seconds = tuple(curve.at(n) * (1.0 if n == 1 else factor) for n in TARGET_SIZES)
        return CostCurve(TARGET_SIZES, seconds)

    return believed


def beliefs() -> Iterator[tuple[str, Belief]]:
    """All that are tried, by name."""
    yield "kept", kept
    yield "only T(1)", only(1)
    yield "T(1), T(8), T(32)", only(1, 8, 32)
    for word, factor in (("dear", FACTOR), ("cheap", 1 / FACTOR)):
        yield f"all 3x too {word}", off_beyond_one(factor)
        for size in ONE_SIZES:
            yield f"T({size}) 3x too {word}", off_at(size, factor)


def written(
    machine: Machine, believe: Belief, *, acceptance: float, seed: int, num_tokens: int
) -> Result:
    """A made-up text, written by `priced` with what it believes."""
    tokens = fresh_tokens(num_tokens + 1, seed)
    text = made_up(tokens[:1], tokens[1:])
    policy = PricedPolicy(ENDS)
    policy.set_prices(LivePrices(Prices(believe(machine.target), machine.draft)))
    source = SyntheticSource(text, varied(acceptance, seed), seed=seed)
    return replay(text, policy, source, Clock(machine))


@click.command()
@click.option("--curve", "curves", multiple=True, help="Repeatable [default: all].")
@click.option("--texts", "num_texts", default=4, show_default=True, help="Made-up texts a case.")
@click.option("--tokens", "num_tokens", default=500, show_default=True, help="Tokens of a text.")
@click.option("--acceptance", default=0.75, show_default=True, help="Of the draft.")
def learning(curves: tuple[str, ...], num_texts: int, num_tokens: int, acceptance: float) -> None:
    """What learning prices costs against knowing them, on every curve."""
    machines = [m for name, m in own_machines().items() if not curves or name in curves]

    def speed(machine: Machine, believe: Belief) -> float:
        return mean(
            [
                written(
                    machine, believe, acceptance=acceptance, seed=seed, num_tokens=num_tokens
                ).speedup(machine)
                for seed in range(num_texts)
            ]
        )

    knowing = [speed(machine, known) for machine in machines]
    document = {"known": dict(zip([m.name for m in machines], knowing, strict=True))}
    rows = [{"believed": "known", **{on: f"{s:.3f}x" for on, s in document["known"].items()}}]
    for name, believe in track(list(beliefs()), "replaying", console=Console(stderr=True)):
        found = [speed(machine, believe) for machine in machines]
        document[name] = dict(zip([m.name for m in machines], found, strict=True))
        costs = {on: f"{s / document['known'][on] - 1:+.1%}" for on, s in document[name].items()}
        rows.append({"believed": name, **costs})
    print(SIMULATION)
    show(
        f"SIMULATED speed against plain decoding with known prices, and the difference that other "
        f"beliefs make; {num_texts} made-up texts of {num_tokens} tokens, acceptance {acceptance}",
        rows,
    )
    finish(conditions({}, 1, PROGRAM), {"simulation": True, "cases": document})
