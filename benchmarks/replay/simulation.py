"""The step loop on a virtual clock: real loop and policies, a target that knows the text.

    policy      real: grow() and learn(), whose seconds are virtual
    loop        real: Conversation, MatchVerifier
    drafter     fake: candidates come from a `Source`, a pass costs D(rows)
    target      fake: its next token is the recorded one, a pass costs T(rows)

Only passes cost time; planning, drawing and the reading of the prompt are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast
from unittest import mock

import numpy as np
import numpy.typing as npt

from benchmarks.replay.curves import Machine, sure
from benchmarks.replay.texts import RecordedText
from benchmarks.workbench import GREEDY
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.prices import LivePrices, Prices
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree
from dyspec_edge.decode.verify import MatchVerifier

CAPACITY = 1024
"""Nodes of a tree while it grows, for all policies."""

Nodes = npt.NDArray[np.int32]
Candidates = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


class Source(Protocol):
    """Where a draft's distributions come from."""

    def start_step(self, text: Sequence[int]) -> None:
        """Take the tokens before the root."""
        ...

    def candidates(self, tree: TokenTree, nodes: Nodes) -> Candidates:
        """Ids int32[n, NUM_CANDIDATES] and logits float32 of the likeliest tokens, best first."""
        ...

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Hear which path was accepted."""
        ...


class Clock:
    """Seconds that passes cost, at a machine's prices.

    Attributes:
        machine: whose prices.
        now: virtual seconds.
        slowness: factor on every pass from now on.
        target_passes, draft_passes: how many passes there were, by rows.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = 0.0
        self.slowness = 1.0
        self.target_passes: Counter[int] = Counter()
        self.draft_passes: Counter[int] = Counter()

    def read(self) -> float:
        """Virtual seconds."""
        return self.now

    def target_pass(self, num_rows: int) -> int:
        """Let a target pass go by; returns its rows, with those that fill it up."""
        self.target_passes[num_rows] += 1
        return self._pass(num_rows, self.machine.target)[0]

    def draft_pass(self, num_rows: int) -> tuple[int, float]:
        """Let a draft pass go by; returns its rows, with those that fill it up, and seconds."""
        self.draft_passes[num_rows] += 1
        return self._pass(num_rows, self.machine.draft)

    def _pass(self, num_rows: int, curve: CostCurve) -> tuple[int, float]:
        seconds = self.slowness * curve.at(num_rows)
        self.now += seconds
        return next((size for size in curve.pass_sizes if size >= num_rows), num_rows), seconds


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the text stood after a step: tokens emitted, virtual seconds, rows checked."""

    num_tokens: int
    now: float
    num_rows: int


@dataclass(slots=True)
class Result:
    """A text that was written.

    Attributes:
        marks: one per step.
        target_passes, draft_passes: how many there were, by rows.
    """

    marks: list[Mark] = field(default_factory=list)
    target_passes: Counter[int] = field(default_factory=Counter)
    draft_passes: Counter[int] = field(default_factory=Counter)

    @property
    def num_tokens(self) -> int:
        """Tokens that were written."""
        return self.marks[-1].num_tokens

    @property
    def accept_length(self) -> float:
        """Drafted tokens that a step accepted, in the mean; the bonus token is none of them."""
        return self.num_tokens / len(self.marks) - 1

    def speedup(self, machine: Machine) -> float:
        """Against plain decoding, had the same passes happened on `machine`.

        A policy of fixed size makes the same passes everywhere.
        """
        target = sum(k * machine.target.at(n) for n, k in self.target_passes.items())
        draft = sum(k * machine.draft.at(n) for n, k in self.draft_passes.items())
        return self.num_tokens * machine.target.at(1) / (target + draft)


class ReplayDrafter(Drafter):
    """A drafter whose candidates come from a source and whose passes cost virtual time.

    It has read the prompt when a reply begins.
    """

    def __init__(self, source: Source, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._read_seconds = 0.0
        self._text: Sequence[int] = ()
        self._index = 0
        self._num_read = 0
        self._evaluated: set[int] = set()
        self._passes: list[tuple[int, float]] = []
        self.ranking: Ranking

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        """Take a new text, as read."""
        self._text, self._num_read, self.ranking = text, len(text), ranking

    @property
    def num_behind(self) -> int:
        """Tokens before the root that the next pass has to read first."""
        return len(self._text) - self._num_read

    def read(self, **_reporting: object) -> None:
        """Read them now."""
        if self.num_behind:
            self._read_seconds += self._clock.draft_pass(self.num_behind)[1]
        self._num_read = len(self._text)

    @property
    def read_seconds(self) -> float:
        """Running total of `read`."""
        return self._read_seconds

    def start_step(self, text: Sequence[int], index: int) -> None:
        """Take the tokens before the root, and the reply index of the token below the root."""
        self._text, self._index = text, index
        self._evaluated.clear()
        self._passes.clear()
        self._source.start_step(text)

    def propose(self, tree: TokenTree, nodes: Nodes) -> None:
        """Write the candidates of `nodes` into the tree, in one pass."""
        behind = 0 if self._evaluated else self.num_behind
        self._passes.append(self._clock.draft_pass(behind + len(nodes)))
        self._num_read = len(self._text)
        self._evaluated.update(nodes.tolist())
        ids, logits = self._source.candidates(tree, nodes)
        (
            tree.candidate_ids[nodes],
            tree.candidate_probs[nodes],
            tree.num_candidates[nodes],
        ) = self.ranking.rank(ids, logits, self._index + tree.depth[nodes], nodes)

    def passes(self) -> list[tuple[int, float]]:
        """Rows and seconds of this step's passes so far."""
        return self._passes

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep what was evaluated of the accepted path."""
        self._num_read += sum(node in self._evaluated for node in path)
        self._source.commit(tree, path)

    def rewind(self, length: int) -> None:
        """Keep nothing beyond the first `length` tokens."""
        self._num_read = min(self._num_read, length)


class ReplayTarget:
    """A target cache without a model: it knows which nodes were checked."""

    def __init__(self, clock: Clock) -> None:
        self.tokens: list[int] = []
        self.num_rows = 0
        self.rows = np.zeros(CAPACITY, np.uint64)  # stand for addresses of logits
        self.context = mock.Mock()  # nothing here can be aborted
        self._clock = clock

    def prefill(self, tokens: Sequence[int], **_reporting: object) -> int:
        """Take the prompt; reading it costs nothing here."""
        self.tokens = list(tokens)
        return 0

    def evaluate(self, tree: TokenTree, nodes: Nodes) -> None:
        """One pass over `nodes`."""
        assert (tree.parent[nodes[1:]] >= 0).all()
        self.num_rows += self._clock.target_pass(len(nodes))
        self.rows[:] = 0
        self.rows[nodes] = 1

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep the accepted path."""
        self.tokens.extend(tree.token[list(path)].tolist())

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.tokens[length:]


class ReplaySampler:
    """Draws the recorded tokens."""

    params, seed, grammar = GREEDY, 0, None

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def sample(self, _row_address: int, index: int) -> int:
        """The token number `index` of the reply."""
        return self._tokens[index]

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing depends on what was emitted."""


def replay(
    text: RecordedText,
    policy: Policy,
    source: Source,
    clock: Clock,
    *,
    on_step: Callable[[int], None] = lambda _num_tokens: None,
) -> Result:
    """Let `policy` write the text again.

    Args:
        policy: a fresh one; `priced` gets the machine's own prices.
        on_step: called with the number of emitted tokens before every step; it may change the
            clock.
    """
    if policy.needs_prices and policy.prices is None:
        policy.set_prices(LivePrices(Prices(sure(clock.machine.target), clock.machine.draft)))
    # The loop asks of these two no more than they have.
    drafter = ReplayDrafter(source, clock)
    target = cast(Cache, ReplayTarget(clock))
    sampler = cast(Sampler, ReplaySampler(text.tokens))
    ends = np.array(text.end_tokens, np.int32)
    decoder = Conversation(
        target, ends, drafter=drafter, policy=policy, verifier=MatchVerifier(in_parts=True)
    )
    decoder.tree = TokenTree(CAPACITY, NUM_CANDIDATES)  # a cache takes trees of one size only
    result = Result(target_passes=clock.target_passes, draft_passes=clock.draft_passes)
    with mock.patch("time.perf_counter", clock.read):
        decoder.begin(text.prompt, sampler)
        emitted = 0
        on_step(emitted)
        for step in decoder.generate(len(text.tokens)):
            emitted += len(step.tokens)
            result.marks.append(Mark(emitted, clock.now, len(step.nodes)))
            on_step(emitted)
    return result
