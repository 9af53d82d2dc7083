"""Made-up texts, and drafts whose acceptance is known, for questions that no pair answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import numpy as np

from benchmarks.replay.simulation import Candidates, Nodes
from benchmarks.replay.texts import RecordedText
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree

END = 2
NUM_WORDS = 40_000
WRONG = 50_000
"""From here on there are ids that no text holds."""

NUM_SHOWN = 8
"""Candidates with some probability."""

SHOWN = np.arange(NUM_SHOWN)
LEAST = 1e-6

Chance = Callable[[int], float]
"""A probability by the index of a token in the text, the prompt included."""


def made_up(prompt: Sequence[int], tokens: Sequence[int]) -> RecordedText:
    """A text of these tokens."""
    return RecordedText(
        id="made up",
        category="synthetic",
        target="none",
        num_vocab=100_000,
        prompt=tuple(prompt),
        tokens=tuple(tokens),
        end_tokens=(END,),
    )


def fresh_tokens(num_tokens: int, seed: int = 0) -> list[int]:
    """Tokens none of which comes again."""
    found: list[int] = np.random.default_rng(seed).permutation(NUM_WORDS)[:num_tokens].tolist()
    return [token + END + 1 for token in found]


def varied(acceptance: float, seed: int = 0) -> Chance:
    """Chances that differ from place to place, `acceptance` in the mean; most are high or low.

    None is below 1/3, where the second candidate would be as good as the first.
    """
    share = 1.5 * acceptance - 0.5

    @cache
    def at(index: int) -> float:
        return (1.0 + 2.0 * Random(hash((seed, index))).betavariate(share, 1.0 - share)) / 3.0

    return at


class SyntheticSource:
    """Candidates of a draft that knows the true token with a given chance.

    Where the first candidate is wrong, the second one is right half of the time, else the third
    half of the time, and so on.

    Args:
        text: what the target will write.  A draft that is given another text is always wrong.
        hit: chance that the first candidate is the true token.
        claimed: what the draft says that chance is; None for the truth.
        seed: of the luck; the same context has the same luck under every policy.
    """

    def __init__(
        self, text: RecordedText, hit: Chance, *, claimed: Chance | None = None, seed: int = 0
    ) -> None:
        self._tokens = (*text.prompt, *text.tokens)
        self._hit = hit
        self._claimed = claimed or hit
        self._seed = seed
        self._num_before = 0

    def start_step(self, text: Sequence[int]) -> None:
        """Take the tokens before the root."""
        self._num_before = len(text)

    def candidates(self, tree: TokenTree, nodes: Nodes) -> Candidates:
        """As `Source.candidates`; the true token may be any of the first eight, or none."""
        ids = np.full((len(nodes), NUM_CANDIDATES), -1, np.int32)
        logits = np.full((len(nodes), NUM_CANDIDATES), -np.inf, np.float32)
        for row, node in enumerate(nodes.tolist()):
            path = tuple(tree.token[tree.path(node)].tolist())
            index = self._num_before + len(path)  # of the token that comes next
            luck = Random(hash((self._seed, index, path)))
            ids[row, :NUM_SHOWN] = WRONG + NUM_SHOWN * luck.randrange(NUM_WORDS) + SHOWN
            missed = 0
            if luck.random() >= self._hit(index):
                missed = 1 + int(-math.log2(1.0 - luck.random()))
            on_path = self._tokens[self._num_before : index] == path
            if on_path and index < len(self._tokens) and missed < NUM_SHOWN:
                ids[row, missed] = self._tokens[index]
            claimed = min(max(self._claimed(index), LEAST), 1.0 - LEAST)
            logits[row, :NUM_SHOWN] = math.log(1.0 - claimed) - math.log(2.0) * SHOWN
            logits[row, 0] = math.log(claimed)
        return ids, logits

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep nothing."""
