"""`priced`: every spend is compared with what its seconds would otherwise earn.

A node in the tree costs the target a row; a node that is expanded costs the draft a row.  Both
prices are measured (cost.py); what a node may earn is P, the product of the confidences on its
path.  A second is worth R tokens, those of the best plain chain at the present acceptance
(acceptance.py).  One step (native/src/planning.cpp weighs, this module pays):

    the text's own copy enters the tree for nothing
    while drafting some nodes promises more than verifying now: draft them, enter their children
    verify the best

An account (account.py) keeps a reply from being late whatever predictions are worth; a small stake
(trials.py) buys looks at prices that are doubtful; reading.py decides what the draft reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.cost import chain_rate, chain_rates
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.live_curve import LiveCurve
from dyspec_edge.decode.policy.acceptance import Acceptance
from dyspec_edge.decode.policy.account import Account
from dyspec_edge.decode.policy.copies import LEAST_CONFIDENCE, Copies
from dyspec_edge.decode.policy.interface import ROOT, Nodes, Policy
from dyspec_edge.decode.policy.reading import MOST_MISSED, Reading
from dyspec_edge.decode.policy.trials import Trials
from dyspec_edge.decode.prices import HEADROOM, HOPE, TARGET_ROWS, LivePrices
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree

K, ROWS, LEAVES, WIDE_LEAVES = 4, TARGET_ROWS, 16, TARGET_ROWS
"""Children kept per drafted node; rows of one verify; leaves, and live branches of the draft, the
last where rows are nearly free."""

MAX_CONFIDENCE, POOL = 0.995, 1024
"""The most that a guess counts; nodes of a tree while it grows, few of which are checked."""


class PricedPolicy(Policy):
    """`priced`, with a draft or with the text's own copies alone.

    Args:
        end_tokens: int32 ids that end a text; nothing is drafted below them.

    Attributes:
        prices: what passes cost; set by `set_prices` before the first reply.
        target, draft: the curves of those that are used; a draft that cannot pay is left out.
        acceptance: of the draft, in this text and in others.
        copies: the text's own.
        account: what this reply cost, and would have cost plainly.
    """

    needs_draft = allows_residual = False
    needs_prices = weighs_forced = True
    wide_leaves = WIDE_LEAVES
    longest_read = MOST_MISSED

    def __init__(self, end_tokens: npt.NDArray[np.int32]) -> None:
        self.name = "priced"
        self.max_nodes, self.max_leaves = ROWS - 1, LEAVES
        self.acceptance = Acceptance()
        self.copies = Copies(end_tokens)
        self.account = Account()
        self.target: LiveCurve
        self.draft: LiveCurve | None = None
        self._end_tokens = end_tokens
        self._planner: tuple[TokenTree, native.Planner] | None = None
        self._drafter: Drafter | None = None
        self._has_read = False
        self._trials, self._reading, self._planned = Trials(), Reading(), np.zeros(ROWS + 1)

    @property
    def tree_capacity(self) -> int:
        """Nodes that a tree may have while it grows."""
        return POOL

    def set_prices(self, prices: LivePrices) -> None:
        """Go by these prices, which this policy also keeps true."""
        self.prices, self.target = prices, prices.target
        self.draft = prices.draft if prices.draft_may_pay else None
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
        num_new = self.copies.follow(text)
        self.acceptance.begin()
        self._drafter = drafter if self.draft is not None else None
        self.account.begin()
        self._trials.begin(self.target.at(1))
        self._reading.begin(self.target.at(num_new))
        self._has_read = self._pays_to_read()
        return self._has_read

    def grow(self, tree: TokenTree, drafter: Drafter, max_depth: int) -> Nodes:
        """Spend draft passes while they promise more than they cost."""
        self._reading.room = max_depth + 1
        max_depth, token = min(max_depth, self.max_nodes), self.target.at(1)
        self._planned = self.target.table
        if self.target.asks_for_one_row:
            return ROOT
        rule = drafter.ranking
        self.copies.add_to(tree, max_depth, rule.grammar if rule else None)
        may_draft = self._may_draft()
        if self._drafter is not None and self.draft is not None:
            looked = self._trials.see_draft(self._drafter, self.draft, self.target, self.max_nodes)
            self.account.settle(0.0, looked)
        stake = min(self._trials.left(token), self.left - token)
        # Enough to see what lies beyond a size that never pays; a token's time is left.
        self._planned = self.target.hoped(stake, max(2 * token, self.left - token))
        if tree.size == 1 and not may_draft:
            return self._look(tree, max_depth)
        planner = self._planner_for(tree)
        worth, left = 1.0 / token, self.left
        first, later = None, (0.0, 0.0, 0.0)
        if self._drafter is not None and self.draft is not None and may_draft:
            worth = self._rate(self.acceptance.now)
            behind = self._drafter.num_behind
            missed = self.draft.at(behind) if behind else 0.0
            if missed < self._reading.budget(token, token - 1.0 / worth):
                # Missed in plain steps is no reason to miss more: reading serves all that follow.
                behind, left = 0, left - missed
            first = self._draft_prices(behind)
            later = self._draft_prices(0)
        planner.set_prices(
            target=self._planned,
            acceptance=self.acceptance.now,
            worth=worth,
            left=left,
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
            self._trials.asked()
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
        self.acceptance.see([tree.candidate_ids[path[i], 0].item() == tokens[i] for i in drafted])
        self.copies.learn(tokens)
        self._reading.emit(len(tokens))
        # Deciding to do nothing cannot be saved by doing nothing more often: a plain step costs
        # what plain decoding costs, however slow its pass was.
        idle = cost.num_rows == 1 and tree.num_candidates[0] < 0
        spent = cost.target_seconds if idle else cost.seconds - cost.draw_seconds
        self.account.settle(spent if idle else self.target.at(1) * len(tokens), spent)
        n = min(cost.num_rows, 1 + self.max_nodes)
        hoped, was_trial = self._planned.item(n), self._planned.item(n) < self.target.at(n)
        self._trials.settle(spent, cost.target_seconds - hoped if was_trial else 0.0)
        self.target.observe(cost.num_rows, cost.target_seconds)

    @property
    def left(self) -> float:
        """Seconds that this step may cost."""
        return self.account.left(self.target.at(1))

    def figures(self) -> Mapping[str, float]:
        """What was learned: a, kappa, R in tokens a second, the account in seconds."""
        return {
            "acceptance": self.acceptance.now,
            "kappa": self.copies.kappa,
            "worth": self._rate(self.acceptance.now if self._has_read else 0.0),
            "account": self.account.plain - self.account.seconds,
            "plain": self.account.plain,
        }

    def as_dict(self) -> dict[str, Any]:
        """What was learned, for JSON; neither text nor prices are part of it."""
        return {
            "acceptances": self.acceptance.texts,
            "miss": self.copies.miss,
            "seen": self.copies.seen,
            "num_replies": self._reading.num_replies,
            "reply_tokens": self._reading.num_tokens,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take what `as_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        miss, seen = float(saved["miss"]), float(saved["seen"])
        replies, tokens = int(saved["num_replies"]), int(saved["reply_tokens"])
        finite = math.isfinite(miss) and math.isfinite(seen)
        if not (finite and miss >= 0 and seen > 0 and replies >= 1 and tokens >= 1):
            raise ValueError("not what a priced policy has learned")
        self.acceptance.remember(saved["acceptances"])
        self.copies.miss, self.copies.seen = miss, seen
        self._reading.num_replies, self._reading.num_tokens = replies, tokens

    def _rate(self, acceptance: float) -> float:
        draft = self.draft.at(1) if self.draft is not None else None
        return chain_rate(self.target.table, draft, acceptance, self.max_nodes)

    def _planner_for(self, tree: TokenTree) -> native.Planner:
        if self._planner is None or self._planner[0] is not tree:
            planner = native.Planner(
                tree,
                1 + self.max_nodes,
                num_children=K,
                max_leaves=self.max_leaves,
                max_confidence=MAX_CONFIDENCE,
                eog=self._end_tokens,
            )
            self._planner = tree, planner
        return self._planner[1]

    def _look(self, tree: TokenTree, max_depth: int) -> Nodes:
        """Fill rows up to see a price on which the draft's use depends; else the root alone."""
        root = tree.token.item(0)
        if self._drafter is None or self.draft is None or root in self._end_tokens:
            return ROOT
        plain, one, a = self.target.at(1), self.draft.at(1), self.acceptance.now
        size = self._trials.size_to_see(self.target, self._planned, one, a, self.max_nodes)
        if not 1 < size <= max_depth:
            return ROOT
        for node in range(size - 1):
            tree.add(node, root, LEAST_CONFIDENCE)
        self._planned[size] = plain
        return np.arange(size, dtype=np.int32)

    def _may_draft(self) -> bool:
        """Whether the draft may be asked in this step; it has read the prompt then."""
        if self._drafter is None:
            return False
        if not self._has_read and self._pays_to_read():
            self._drafter.read()
            self._has_read = True
        self._drafter.longest_read = MOST_MISSED
        return self._has_read

    def _pays_to_read(self) -> bool:
        """Whether the draft should read what it has not; and how much of it."""
        if self._drafter is None or self.draft is None or not self.has_headroom():
            return False
        self._drafter.longest_read = MOST_MISSED
        if self._drafter.num_behind == 0:
            return True
        token, one, target = self.target.at(1), self.draft.at(1), self.target.feared
        if self.left < 2 * token:  # nothing would be left to use it
            return False

        def saved(share: float) -> float:
            """In the mean of what the text may be: where drafting does not pay, it is left."""
            possible = [share * a for a in self.acceptance.possible]
            rates: list[float] = chain_rates(target, one, possible, self.max_nodes).tolist()
            return token - sum(1.0 / rate for rate in rates) / len(rates)

        share = self._reading.choose(self._drafter, token, saved, self.draft.at)
        if share > 0.0:
            self.acceptance.read(share)
        return share > 0.0

    def _draft_prices(self, behind: int) -> tuple[float, float, float]:
        assert self.draft is not None
        one, four, sixteen = (self.draft.at(behind + width) for width in native.WIDTHS)
        return one, four, sixteen
