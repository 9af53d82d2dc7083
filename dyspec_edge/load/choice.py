"""Which policy runs: the one that was asked for, or what files, verifier and prices allow."""

from __future__ import annotations

from dataclasses import dataclass

from dyspec_edge.decode.policy import DEFAULT, DEFAULT_UNDER_RESIDUAL, PlainPolicy
from dyspec_edge.decode.prices import REQUIRED_GAIN, Prices
from dyspec_edge.load.models import Models


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy and why it is this one.

    Attributes:
        spec: as --policy spells it.
        by_prices: nobody has asked for it, so that prices decide whether anything is drafted; a
            policy that weighs them itself is no such choice.
        notices: lines to show.
    """

    spec: str
    by_prices: bool = False
    notices: tuple[str, ...] = ()

    def settled(self, prices: Prices) -> Choice:
        """What it comes to at these prices."""
        if not self.by_prices:
            return self
        gain = f"{prices.fixed_gain:.2f}x predicted ({prices.summary})"
        if prices.fixed_gain >= REQUIRED_GAIN:
            line = f"policy {self.spec}: a draft should pay here, {gain}"
            return Choice(self.spec, notices=(*self.notices, line))
        line = f"policy {PlainPolicy.name}: a draft would not pay here, {gain}"
        return Choice(PlainPolicy.name, notices=(*self.notices, line))


def choose(models: Models) -> Choice:
    """The policy that can run, as far as that does not depend on prices."""
    config = models.config
    reasons: tuple[str, ...] = (models.plain_reason,) if models.plain_reason is not None else ()
    spec = config.policy or DEFAULT
    asked = policy = models.policy(spec, config.verify)
    if not models.can_speculate:
        return Choice(PlainPolicy.name, notices=reasons)
    if config.verify == "residual" and not asked.allows_residual:
        spec = DEFAULT_UNDER_RESIDUAL
        policy = models.policy(spec, config.verify)
    if policy.needs_draft and models.draft is None:
        return Choice(PlainPolicy.name, notices=reasons)
    if config.policy is None and not policy.needs_prices:
        return Choice(spec, by_prices=True, notices=reasons)
    if policy is not asked:
        reasons += (f"policy {spec}: {asked.name} trees need --verify match",)
    return Choice(spec, notices=reasons)
