"""Steps as the server would send them, made up around a text that is given."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

Step = dict[str, Any]

PRICES = {
    "target": {"1": 0.069, "2": 0.091, "4": 0.13, "8": 0.21, "16": 0.33, "32": 0.61, "64": 1.2},
    "draft": {"1": 0.029, "2": 0.034, "4": 0.05, "8": 0.09, "16": 0.14},
}
OTHERS = (" the", " a", " and", ",", "\n", " of", " tree", "ing", " is", "</b>", " café", " return")


def tokens_of(text: str) -> list[str]:
    """The text in pieces of a token's size."""
    return re.findall(r"\s?\w{1,6}|\s?[^\w\s]|\s", text)


class _Tree:
    def __init__(self, root: str) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.add(-1, root, 1.0, checked=True, accepted=True)

    def add(
        self, parent: int, text: str, probability: float, *, checked: bool, accepted: bool
    ) -> int:
        node = {"parent": parent, "id": zlib.crc32(text.encode()) % 50000, "text": text}
        figures = {"probability": probability, "checked": checked, "accepted": accepted}
        self.nodes.append(node | figures)
        return len(self.nodes) - 1


def _grown(rng: random.Random, root: str, coming: list[str], accepted: int) -> _Tree:
    """Siblings beside each of the tokens to come, some with children; the path ends early."""
    tree = _Tree(root)
    parent = 0
    for depth, text in enumerate(coming[: accepted + 2]):
        right = depth < accepted
        share = rng.uniform(0.5, 0.95) if right else rng.uniform(0.1, 0.4)
        guesses = [text if right else rng.choice(OTHERS), *rng.sample(OTHERS, rng.randint(0, 2))]
        children = []
        for at, guess in enumerate(guesses):
            probability = share if at == 0 else (1 - share) / (at + 1)
            children.append(
                tree.add(
                    parent,
                    guess,
                    round(probability, 4),
                    checked=probability > 0.04 and depth <= accepted,
                    accepted=right and at == 0,
                )
            )
        if len(children) > 1:
            checked = bool(tree.nodes[children[1]]["checked"])
            tree.add(children[1], rng.choice(OTHERS), 0.61, checked=checked, accepted=False)
        parent = children[0]
    return tree


def example_steps(text: str, *, seed: int = 1, largest: int = 5) -> list[Step]:
    """Steps whose emitted tokens join to `text`; at most `largest` accepted in one."""
    rng = random.Random(seed)
    texts = tokens_of(text)
    steps: list[Step] = []
    seconds, start = 0.0, 0
    while start < len(texts):
        accepted = min(rng.choice((0, 1, 2, 3, largest)), len(texts) - start - 1)
        root = texts[start - 1] if start else ":"
        tree = _grown(rng, root, texts[start:], accepted) if largest else _Tree(root)
        emitted = texts[start : start + accepted + 1]
        rows = sum(node["checked"] for node in tree.nodes)
        target = 0.06 + 0.019 * rows * rng.uniform(0.9, 1.15)
        draft = 0.03 * (accepted + 1) if largest else 0.0
        seconds += target + draft + 0.001
        start += len(emitted)
        steps.append(
            {
                "index": len(steps),
                "seconds": target + draft + 0.001,
                "draft_seconds": draft,
                "target_seconds": target,
                "emitted": [
                    {"id": zlib.crc32(piece.encode()) % 50000, "text": piece} for piece in emitted
                ],
                "nodes": tree.nodes,
                "rows": rows,
                "draft_passes": accepted + 1 if largest else 0,
                "tokens_per_second": start / seconds,
                "prices": PRICES,
            }
        )
    return steps
