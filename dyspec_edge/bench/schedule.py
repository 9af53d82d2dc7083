"""Which policies run on which prompts, and in what order.

    round 0, prompt 0:   none      chain:4   priced
             prompt 1:   chain:4   priced    none          all take turns, and each comes first
             prompt 2:   priced    none      chain:4       as often as any other

What is compared runs within minutes, so that a machine that gets slower is slower for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dyspec_edge.bench.prompts import Prompt
from dyspec_edge.decode.policy import parse


@dataclass(frozen=True, slots=True)
class Lane:
    """One competitor."""

    policy: str
    verify: str
    temperature: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: a competitor's reply to a prompt; `order` is its place among the competitors."""

    lane: Lane
    prompt: Prompt
    round: int
    order: int


def turns(
    prompts: Sequence[Prompt],
    policies: Sequence[str],
    verifiers: Sequence[str],
    temperatures: Sequence[float],
    num_rounds: int,
) -> list[Turn]:
    """All runs, rounds outermost: what is cut short has something of everything."""
    planned = []
    for number in range(num_rounds):
        for shift, prompt in enumerate(prompts, start=number):
            for temperature in dict.fromkeys(temperatures):
                lanes = lanes_at(temperature, policies, verifiers)
                first = shift % len(lanes)
                for order, lane in enumerate(lanes[first:] + lanes[:first]):
                    planned.append(Turn(lane, prompt, number, order))
    return planned


def lanes_at(temperature: float, policies: Sequence[str], verifiers: Sequence[str]) -> list[Lane]:
    """The competitors at one temperature.

    Under `residual` nothing is new of a policy that drafts nothing, or that needs `match`.
    """
    lanes: list[Lane] = []
    for spec in policies:
        policy = parse(spec, np.empty(0, np.int32))
        both = policy.max_nodes > 0 and policy.allows_residual
        lanes += [Lane(spec, verify, temperature) for verify in (verifiers if both else ("match",))]
    return list(dict.fromkeys(lanes))
