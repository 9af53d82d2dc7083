"""`priced`: every spend is compared with what its seconds would otherwise earn.

A node in the tree costs the target a row; a node that is expanded costs the draft a row.  Both
prices are measured (cost.py); what a node may earn is P, the product of the confidences on its
path.  A second is worth R tokens, those of the best plain chain at the present acceptance.  One
step (native/src/planning.cpp weighs, this module pays):

    the text's own copy enters the tree for nothing
    while drafting some nodes promises more than verifying now: draft them, enter their children
    verify the best

An account keeps a reply never later than plain decoding by more than `STAKE` tokens' time and
`EPS` of its time, whatever the predictions were worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.cost import LiveCurve, chain_rate
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.lookup import Lookup
from dyspec_edge.decode.policy.interface import ROOT, Nodes, Policy
from dyspec_edge.decode.prices import HEADROOM, HOPE, TARGET_ROWS, LivePrices
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree

A0, AW, A_MAX = 0.8, 0.05, 0.985
"""Chance that the draft's first child is right: start, weight of an observation, at most."""

A_RETURN = 0.02
"""Share of the way back to `A0` that a goes in a step without a draft, to try it again."""

KAP, KW = 2.0, 4.0
"""A copy that has matched m tokens breaks with chance kappa / m: start, and its weight."""

STAKE, EPS = 4.0, 0.01
"""Later than plain decoding at most: in tokens' time, and as a share of all time."""

K, ROWS, LEAVES = 4, TARGET_ROWS, 16
"""Children kept per drafted node; rows of one verify; leaves, and live branches of the draft."""

MAX_CONFIDENCE = 0.995
LEAST_COPY, LEAST_P = 0.02, 0.004
"""The least confidence in a copied token; a copy ends where its P falls below the second."""

POOL = 1024
"""Nodes of a tree while it grows, most of which are never checked."""

EXPECTED_REPLY = 128
"""Tokens of a reply before any was seen."""

LONGEST_READ = 1024
"""Of a long prompt the draft reads the end; that was as good as all of it."""


class PricedPolicy(Policy):
    """`priced`, with a draft or with the text's own copies alone.

    Args:
        end_tokens: int32 ids that end a text; nothing is drafted below them.

    Attributes:
        prices: what passes cost; set by `set_prices` before the first reply.
        target, draft: the curves of those that are used; a draft that cannot pay is left out.
        acceptance: a.
        miss, seen: kappa is their ratio.
        plain, seconds: the account, what the tokens of this reply would have cost plainly, and did
            cost together with what earlier replies still owe.
    """

    needs_draft = False
    needs_prices = True
    allows_residual = False
    longest_read = LONGEST_READ

    def __init__(self, end_tokens: npt.NDArray[np.int32]) -> None:
        self.name = "priced"
        self.max_nodes = ROWS - 1
        self.max_leaves = LEAVES
        self.acceptance = A0
        self.miss, self.seen = KAP * KW, KW
        self.plain = self.seconds = 0.0
        self.target: LiveCurve
        self.draft: LiveCurve | None = None
        self._end_tokens = end_tokens
        self._ends = frozenset(end_tokens.tolist())
        self._lookup = Lookup()
        self._planner: tuple[TokenTree, native.Planner] | None = None
        self._drafter: Drafter | None = None
        self._has_read, self._emitted = False, 0
        self._num_replies, self._reply_tokens = 1, EXPECTED_REPLY

    @property
    def tree_capacity(self) -> int:
        """Nodes that a tree may have while it grows."""
        return POOL

    @property
    def kappa(self) -> float:
        """A copy that has matched m tokens breaks with chance kappa / m."""
        return self.miss / self.seen

    def set_prices(self, prices: LivePrices) -> None:
        """Go by these prices, which this policy also keeps true."""
        self.prices, self.target = prices, prices.target
        self.draft = prices.draft if prices.measured.draft_has_headroom else None
        self._planner = None

    @property
    def uses_draft(self) -> bool:
        """Not at prices at which no draft could pay."""
        return self.prices is None or self.draft is not None

    @property
    def explanation(self) -> str | None:
        """What was measured, and what it means."""
        assert self.prices is not None, "set_prices() comes first"
        own = "the draft and the text's own" if self.draft is not None else "the text's"
        found = self.prices.measured
        return f"policy {self.name}, from {own} repetitions: {found.verdict} ({found.summary})"

    def has_headroom(self) -> bool:
        """Whether a nearly perfect draft could pay at the present prices."""
        return self._rate(HOPE) * self.target.at(1) >= HEADROOM

    def begin(self, text: Sequence[int], drafter: Drafter) -> bool:
        """Follow the text, and decide whether the draft reads the prompt now."""
        self._lookup.follow(text)
        self._drafter = drafter if self.draft is not None else None
        if self._emitted:
            self._num_replies += 1
            self._reply_tokens += self._emitted
        self._emitted = 0
        # Every reply answers for itself: what earlier ones saved is not at stake.
        self.plain, self.seconds = 0.0, max(0.0, self.seconds - self.plain / (1 - EPS))
        self._has_read = self._pays_to_read()
        return self._has_read

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Spend draft passes while they promise more than they cost."""
        self._copy(tree, max_depth)
        may_draft = self._may_draft()
        if tree.size == 1 and not may_draft:
            return ROOT
        planner = self._planner_for(tree)
        worth = 1.0 / self.target.at(1)
        first, later = None, (0.0, 0.0, 0.0)
        if self._drafter is not None and may_draft:
            worth = self._rate(self.acceptance)
            first = self._draft_prices(self._drafter.num_behind)
            later = self._draft_prices(0)
        planner.set_prices(
            target=self.target.table,
            acceptance=self.acceptance,
            worth=worth,
            left=self.left,
            max_depth=max_depth,
            first=first,
            later=later,
        )
        if self._drafter is None or first is None:
            return planner.plan().nodes
        nodes = planner.grow(drafter.proposer(tree))
        assert self.draft is not None
        for num_rows, seconds in self._drafter.passes():
            self.draft.observe(num_rows, seconds)
        return nodes

    def learn(
        self,
        tree: TokenTree,
        path: Sequence[int],
        tokens: Sequence[int],
        cost: StepCost,
    ) -> None:
        """Count hits and misses, and settle the account."""
        drafted = [i for i, node in enumerate(path) if tree.num_candidates[node] > 0]
        for i in drafted:
            hit = tree.candidate_ids[path[i], 0] == tokens[i]
            self.acceptance = min(A_MAX, self.acceptance + AW * (float(hit) - self.acceptance))
        if not drafted:
            self.acceptance += A_RETURN * (A0 - self.acceptance)
        for token in tokens:
            length, start = self._lookup.match()
            if length:
                self.miss += self._lookup.tokens[start] != token
                self.seen += 1.0 / length
            self._lookup.append((token,))
        self._emitted += len(tokens)
        # Deciding to do nothing cannot be saved by doing nothing more often: a plain step costs
        # what plain decoding costs, however slow its pass was.
        idle = cost.num_rows == 1 and tree.num_candidates[0] < 0
        spent = cost.seconds - cost.draw_seconds
        self.plain += cost.target_seconds if idle else self.target.at(1) * len(tokens)
        self.seconds += cost.target_seconds if idle else spent
        self.target.observe(cost.num_rows, cost.target_seconds)

    @property
    def left(self) -> float:
        """Seconds that this step may cost."""
        return self.target.at(1) * (1 + STAKE) + self.plain - (1 - EPS) * self.seconds

    def figures(self) -> Mapping[str, float]:
        """What was learned: a, kappa, R in tokens a second, the account in seconds."""
        return {
            "acceptance": self.acceptance,
            "kappa": self.kappa,
            "worth": self._rate(self.acceptance if self._has_read else 0.0),
            "account": self.plain - self.seconds,
            "plain": self.plain,
        }

    def as_dict(self) -> dict[str, Any]:
        """What was learned, for JSON; neither text nor prices are part of it."""
        return {
            "acceptance": self.acceptance,
            "miss": self.miss,
            "seen": self.seen,
            "num_replies": self._num_replies,
            "reply_tokens": self._reply_tokens,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take what `as_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        acceptance, miss, seen = (float(saved[name]) for name in ("acceptance", "miss", "seen"))
        replies, tokens = int(saved["num_replies"]), int(saved["reply_tokens"])
        numbers = (acceptance, miss, seen, replies, tokens)
        finite = all(map(math.isfinite, numbers)) and 0 <= acceptance <= A_MAX
        if not (finite and miss >= 0 and seen > 0 and replies >= 1 and tokens >= 1):
            raise ValueError("not what a priced policy has learned")
        self.acceptance, self.miss, self.seen = acceptance, miss, seen
        self._num_replies, self._reply_tokens = replies, tokens

    def _rate(self, acceptance: float) -> float:
        draft = self.draft.at(1) if self.draft is not None else None
        return chain_rate(self.target.table, draft, acceptance)

    def _planner_for(self, tree: TokenTree) -> native.Planner:
        if self._planner is None or self._planner[0] is not tree:
            planner = native.Planner(
                tree,
                ROWS,
                num_children=K,
                max_leaves=LEAVES,
                max_confidence=MAX_CONFIDENCE,
                eog=self._end_tokens,
            )
            self._planner = tree, planner
        return self._planner[1]

    def _copy(self, tree: TokenTree, max_depth: int) -> None:
        """Add what followed the longest match, as far as it may be right."""
        length, start = self._lookup.match()
        if not length:
            return
        node = 0
        for j, token in enumerate(self._lookup.copy(start, min(max_depth, ROWS - 1))):
            confidence = max(LEAST_COPY, 1.0 - self.kappa / (length + j))
            if tree.value[node] * confidence < LEAST_P:
                return
            ends = token in self._ends
            node = tree.add(node, token, confidence, terminal=ends)
            if ends:
                return

    def _may_draft(self) -> bool:
        """Whether the draft may be asked in this step; it has read the prompt then."""
        if self._drafter is not None and not self._has_read and self._pays_to_read():
            self._drafter.read()
            self._has_read = True
        return self._has_read

    def _pays_to_read(self) -> bool:
        """Whether reading the prompt costs the draft less than it should save."""
        if self._drafter is None or self.draft is None or not self.has_headroom():
            return False
        if self._drafter.num_behind == 0:
            return True
        mean = self._reply_tokens / self._num_replies
        # A reply that has outlived the mean is expected to go on for as long again.
        remaining = max(mean - self._emitted, float(self._emitted))
        saved = self.target.at(1) - 1.0 / self._rate(self.acceptance)
        return self.draft.at(self._drafter.num_behind) < remaining * saved

    def _draft_prices(self, behind: int) -> tuple[float, float, float]:
        assert self.draft is not None
        one, four, sixteen = (self.draft.at(behind + width) for width in native.WIDTHS)
        return one, four, sixteen
