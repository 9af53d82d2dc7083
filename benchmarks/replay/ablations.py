"""The priced policy without one of its pieces: what is each of them worth?

The pieces are taken out here, by overriding; the product has no such switches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.decode.policy.copies import Copies
from dyspec_edge.decode.policy.priced import A0, PricedPolicy
from dyspec_edge.decode.tree import TokenTree

NEVER = 1e9
"""Seconds that no step spends."""


class _NoCopies(Copies):
    """Finds none."""

    def add_to(self, _tree: TokenTree, _max_nodes: int, _grammar: Grammar | None = None) -> None:
        """Add nothing."""


class WithoutLookup(PricedPolicy):
    """Nothing is copied from the text."""

    def __init__(self, end_tokens: npt.NDArray[np.int32]) -> None:
        super().__init__(end_tokens)
        self.copies = _NoCopies(end_tokens)


class WithoutAccount(PricedPolicy):
    """Nothing limits what a step may cost."""

    @property
    def left(self) -> float:
        """No limit."""
        return math.inf


class FixedAcceptance(PricedPolicy):
    """The chance a stays where it starts."""

    def learn(self, tree: TokenTree, path: Sequence[int], *args: Any, **values: Any) -> None:
        """All but a."""
        super().learn(tree, path, *args, **values)
        self.acceptance = A0


class _Replanned(PricedPolicy):
    """Tells the planner other prices than `PricedPolicy` does."""

    def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `native.Planner.set_prices`, changed."""
        raise NotImplementedError

    def _planner_for(self, tree: TokenTree) -> native.Planner:
        planner = super()._planner_for(tree)

        def tell(**prices: Any) -> None:
            native.Planner.set_prices(planner, **self.change(prices))

        planner.set_prices = tell  # type: ignore[method-assign]
        return planner


class WorthOfPlain(_Replanned):
    """R = 1/T(1)."""

    def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Another worth of a second."""
        return {**asked, "worth": 1.0 / self.target.at(1)}


class NotDeeper(_Replanned):
    """Looks ahead one draft pass, not 4 or 16."""

    def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Following passes cost too much."""
        return {**asked, "later": (NEVER,) * len(native.WIDTHS)}


class NotWider(_Replanned):
    """Considers drafting one node, not 4 or 16."""

    def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Wider passes cost too much."""
        first = asked["first"]
        if first is None:
            return asked
        return {**asked, "first": (first[0], *(NEVER,) * (len(first) - 1))}


class WithoutLookAhead(NotDeeper, NotWider):
    """Considers one pass over one node."""

    def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Both."""
        return NotWider.change(self, NotDeeper.change(self, asked))


ABLATIONS: Mapping[str, type[PricedPolicy]] = {
    "without lookup": WithoutLookup,
    "look-ahead not deeper than one pass": NotDeeper,
    "look-ahead not wider than one node": NotWider,
    "without look-ahead": WithoutLookAhead,
    "without the account": WithoutAccount,
    "a fixed": FixedAcceptance,
    "R = 1/T(1)": WorthOfPlain,
}
