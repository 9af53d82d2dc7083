"""A step with its token tree as JSON: what streams, the page and traces show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.loop import Conversation, Step


class StepWriter:
    """Writes the steps of one reply.

    Args:
        conversation: whose reply it is.
        piece: the bytes of a token id, those of control tokens included.
    """

    def __init__(self, conversation: Conversation, piece: Callable[[int], bytes]) -> None:
        self._conversation = conversation
        self._piece = piece
        self._index = 0
        self._passes = conversation.drafter.totals.num_passes
        self._tokens, self._seconds = 0, 0.0

    def write(self, step: Step) -> dict[str, Any]:
        """The step that has just ended, for JSON."""
        passes = self._conversation.drafter.totals.num_passes
        self._tokens += len(step.tokens)
        self._seconds += step.seconds
        found = {
            "index": self._index,
            "seconds": step.seconds,
            "draft_seconds": step.cost.draft_seconds,
            "target_seconds": step.cost.target_seconds,
            "emitted": [{"id": token, "text": self._text(token)} for token in step.tokens],
            "nodes": self._nodes(step),
            "rows": step.cost.num_rows,
            "draft_passes": passes - self._passes,
            "tokens_per_second": self._tokens / self._seconds if self._seconds > 0 else 0.0,
        }
        prices = self._conversation.policy.prices
        if prices is not None:
            found["prices"] = {
                name: _points(curve.as_curve())
                for name, curve in (("target", prices.target), ("draft", prices.draft))
                if curve is not None
            }
        self._index += 1
        self._passes = passes
        return found

    def _nodes(self, step: Step) -> list[dict[str, Any]]:
        tree = step.tree
        if tree is None:
            return []
        columns = (tree.token, tree.parent, tree.confidence, tree.checked, tree.accepted)
        return [
            {
                "parent": parent,
                "id": token,
                "text": self._text(token),
                "probability": probability if node else 1.0,
                "checked": checked,
                "accepted": accepted,
            }
            for node, (token, parent, probability, checked, accepted) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]

    def _text(self, token: int) -> str:
        return self._piece(token).decode("utf-8", "replace")


def _points(curve: CostCurve) -> dict[str, float]:
    return {str(n): s for n, s in zip(curve.sizes, curve.seconds, strict=True)}
