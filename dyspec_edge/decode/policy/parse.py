"""What --policy says, as an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.policy.chain import ChainPolicy
from dyspec_edge.decode.policy.dyspec import DySpecPolicy, ThresholdPolicy
from dyspec_edge.decode.policy.interface import Policy
from dyspec_edge.decode.policy.plain import PlainPolicy
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.policy.sequoia import Acceptance, SequoiaPolicy
from dyspec_edge.decode.policy.specinfer import SpecInferPolicy
from dyspec_edge.decode.tree import NUM_CANDIDATES
from dyspec_edge.errors import OptionError
from dyspec_edge.native import MAX_SEQUENCES

DEFAULT = "priced"
DEFAULT_UNDER_RESIDUAL = "dyspec:8"
"""What runs if nothing is asked for, or nothing that the verifier allows."""

MAX_NODES = 1024
FORMS = (
    "none, chain:K[:P], specinfer:K1xK2x..., sequoia:N[:D], sequoia:auto, dyspec:N, "
    "dyspec-threshold:N[:t], priced"
)


def parse(
    spec: str,
    end_tokens: npt.NDArray[np.int32],
    rates: Callable[[], Sequence[Acceptance]] = tuple,
) -> Policy:
    """The policy that `spec` names.

    Args:
        spec: one of `FORMS`.
        end_tokens: int32 ids that end a text.
        rates: looks up the acceptance rates that were measured, for a policy that goes by them.

    Raises:
        OptionError: no such policy, or a number out of range.
    """
    kind, *values = spec.split(":")
    if kind == "none" and not values:
        return PlainPolicy()
    if kind == "priced" and not values:
        return PricedPolicy(end_tokens)
    if kind == "chain" and len(values) in (1, 2):
        floor = _fraction(spec, values[1]) if len(values) == 2 else None
        return ChainPolicy(_count(spec, values[0]), end_tokens, floor)
    if kind == "specinfer" and len(values) == 1:
        widths = [_count(spec, width, NUM_CANDIDATES) for width in values[0].split("x")]
        return _sized(SpecInferPolicy(widths, end_tokens))
    if kind == "sequoia" and len(values) in (1, 2):
        size = None if values == ["auto"] else _count(spec, values[0])
        depth = _count(spec, values[1]) if len(values) == 2 else None
        return SequoiaPolicy(size, end_tokens, max_depth=depth, fits=rates())
    if kind == "dyspec" and len(values) == 1:
        return DySpecPolicy(_count(spec, values[0]), end_tokens)
    if kind == "dyspec-threshold" and len(values) in (1, 2):
        threshold = _fraction(spec, values[1]) if len(values) == 2 else None
        return ThresholdPolicy(_count(spec, values[0]), end_tokens, threshold)
    raise OptionError(f"no policy is called '{spec}'; there are {FORMS}")


def _count(spec: str, text: str, largest: int = MAX_NODES) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= largest:
        return int(text)
    raise OptionError(f"policy '{spec}': '{text}' is not a number from 1 to {largest}")


def _fraction(spec: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 < value < 1:
        return value
    raise OptionError(f"policy '{spec}': '{text}' is not a number between 0 and 1")


def _sized(policy: Policy) -> Policy:
    """The policy, if a batch can hold its trees."""
    for what, size, largest in (
        ("leaves", policy.max_leaves, MAX_SEQUENCES),
        ("nodes", policy.max_nodes, MAX_NODES),
    ):
        if size > largest:
            raise OptionError(
                f"policy '{policy.name}' grows trees of {size} {what}; {largest} is the most"
            )
    return policy
