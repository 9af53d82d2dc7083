"""Looks at prices that are doubtful, and the stake that pays for them."""

from __future__ import annotations

import math

from dyspec_edge.decode.cost import TARGET_SIZES, Seconds, chain_rate
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.live_curve import DRIFT, PATIENCE, LiveCurve
from dyspec_edge.decode.prices import HEADROOM, HOPE

SHARE = 0.01
"""Of all time; one plain token's time a reply comes on top."""

TOO_DEAR = 3.0
"""A draft that is left alone is looked at if it would pay were it cheaper by that factor."""

FIRST_LOOK = 4
"""Not before that step of a reply: the target's prices are looked at first."""


class Trials:
    """What may still be lost by hoping that passes cost less than is believed."""

    def __init__(self) -> None:
        self._lost = self._time = 0.0
        self._until_look = PATIENCE  # steps without the draft before its price is looked at

    def begin(self, plain: float) -> None:
        """Hear of a new reply.

        Args:
            plain: seconds of a token without speculation.
        """
        self._lost = max(0.0, self._lost - plain - SHARE * self._time)
        self._time, self._until_look = 0.0, FIRST_LOOK

    def left(self, plain: float) -> float:
        """Seconds that the next step may lose."""
        return plain + SHARE * self._time - self._lost

    def settle(self, seconds: float, lost: float) -> None:
        """Take a step's time, and by how much its pass took longer than was hoped."""
        self._time += seconds
        self._lost += max(0.0, lost)

    def size_to_see(
        self,
        target: LiveCurve,
        hoped: Seconds,
        draft_seconds: float,
        acceptance: float,
        longest: int,
    ) -> int:
        """The smallest doubtful size, if the use of the draft hangs on such prices; else 1.

        Args:
            hoped: the target's prices as they may be bought now.
            draft_seconds: D(1).
            longest: nodes of the longest chain.
        """
        size = next((n for n in TARGET_SIZES[1:] if not target.is_sure(n)), 1)
        best = chain_rate(hoped, draft_seconds, acceptance, longest)
        known = chain_rate(target.feared, draft_seconds, acceptance, longest)
        return size if best >= HEADROOM * known and hoped[size] < target.at(size) else 1

    def asked(self) -> None:
        """The draft was asked in this step: its passes tell what they cost."""
        self._until_look = PATIENCE

    def see_draft(
        self, drafter: Drafter, draft: LiveCurve, target: LiveCurve, longest: int
    ) -> float:
        """Time a pass of a draft that is left alone, once in a while, should that change much.

        Args:
            longest: nodes of the longest chain.

        Returns:
            Seconds that it took; 0 for none.
        """
        self._until_look -= 1
        believed, token = draft.at(1), target.at(1)
        if self._until_look > 0 or believed > self.left(token):
            return 0.0
        self._until_look = PATIENCE
        if chain_rate(target.table, believed / TOO_DEAR, HOPE, longest) * token < HEADROOM:
            return 0.0
        seconds = drafter.time_pass(1)
        draft.observe(1, seconds)
        self.settle(0.0, seconds)
        if seconds > 0 and abs(math.log(seconds / believed)) > DRIFT:
            self._until_look = 1  # it takes more than one to be believed
        return seconds
