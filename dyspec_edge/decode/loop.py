"""A conversation: a text that grows step by step, one token tree after another.

    grow        the policy spends draft passes on a tree, and says which nodes are checked
    verify      one pass of the target over them, the walk, the commit: exact
    commit      the drafter keeps what it had read of the accepted path
    learn       the policy hears how it ended, and what it cost

Token ids only.  Both caches are valid after every step, whatever happens next: a consumer may
walk away from the generator, a pass may be cancelled or fail, and other conversations may take
their steps in the same contexts between two of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode import logprobs
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft.interface import Drafter, NoDrafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.decode.policy import ROOT, Nodes, PlainPolicy, Policy
from dyspec_edge.decode.policy.copies import FORCED_CONFIDENCE
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.snapshot import TreeSnapshot
from dyspec_edge.decode.timing import StepCost, StepTimer
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree
from dyspec_edge.decode.verify import MatchVerifier, Verifier
from dyspec_edge.errors import Cancelled, OptionError

Progress = Callable[[int, int], None]

BEST_KEPT = 0.9
"""Of the most that a tree had accepted, from step to step."""

SHARE_WEIGHT = 0.2
"""Of one step in the share of forced tokens that the target takes at once."""


class Step(NamedTuple):
    """What one target pass gave.

    Attributes:
        tokens: the emitted ids, the bonus token last.
        num_drafted: nodes that the target checked.
        num_accepted: drafted tokens among `tokens`.
        path: the accepted nodes of the tree, the root first.
        seconds: wall time of the step, but for a draft that read the prompt only now.
        is_chain: what the target checked has no branches.
        nodes: what the target checked, the root first.
        num_forced: those of them that the grammar left no choice about.
        cost: the parts of `seconds`.
        tree: the tree as it was, where `generate` was asked to keep it.
        logprobs: those of `tokens`, where `generate` was asked for them.
    """

    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int
    path: tuple[int, ...]
    seconds: float
    is_chain: bool = True
    nodes: tuple[int, ...] = (0,)
    num_forced: int = 0
    cost: StepCost = StepCost()
    tree: TreeSnapshot | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


class Conversation:
    """A text in the caches of a target and, most often, of a drafter.

    Args:
        target: the target's cache; closed by `close`.
        end_tokens: int32 ids that end a text.
        drafter: closed by `close`; a policy that works without one is the only reason to leave it
            out.
        policy: of this conversation alone; None decodes plainly.
        verifier: `match` or `residual`.
        on_close: called once, after the caches were closed.

    Attributes:
        tree: of the step under way or the last one.
        end_tokens: ids that end a text.
    """

    def __init__(
        self,
        target: Cache,
        end_tokens: npt.NDArray[np.int32],
        *,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        verifier: Verifier | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.target = target
        self.drafter = drafter or NoDrafter()
        self.policy = policy or PlainPolicy()
        self.verifier: Verifier = verifier or MatchVerifier()
        self.tree = TokenTree(self.policy.tree_capacity, NUM_CANDIDATES)
        self.end_tokens = frozenset(end_tokens.tolist())
        self._timer = StepTimer(self.target, self.drafter)
        self._abort_flag = native.AbortFlag()
        self._is_open, self._on_close = True, on_close
        self._root = 0
        self._forced_share = 1.0  # of what a grammar forces, accepted at once
        self._best = 1.0  # the most that a tree had accepted of late
        self._sampler: Sampler | None = None

    def use(self, policy: Policy, verifier: Verifier) -> None:
        """Let another policy grow the trees of replies to come, and another verifier check them.

        The trees must be no larger than those of the policy that the caches were made for.
        """
        self.policy, self.verifier = policy, verifier
        self.drafter.longest_read = policy.longest_read

    def begin(
        self, prompt: Sequence[int], sampler: Sampler, *, on_progress: Progress | None = None
    ) -> int:
        """Read a prompt: all but its last token, which becomes the first root.

        Args:
            prompt: the whole text so far; what the caches know of it is not read again.
            sampler: of the reply that `generate` then makes.
            on_progress: (tokens read, tokens to read), both models together.

        Returns:
            The number of prompt tokens that the target had in its cache.

        Raises:
            OptionError: a grammar, and a verifier that cannot keep it.
            Cancelled, DecodeError: what was read until then is kept.
        """
        if sampler.grammar is not None and self.verifier.name != "match":
            raise OptionError(f"verify {self.verifier.name} keeps no grammar; use --verify match")
        self.take_turn()
        before, self._root, self._sampler = prompt[:-1], prompt[-1], sampler
        drafter, report = self.drafter, on_progress or (lambda _done, _total: None)
        drafter.begin(before, self._ranking(sampler))
        reads = self.policy.begin(prompt, drafter)
        more = drafter.num_behind if reads else 0

        def tell(first: int) -> None:
            self._tell(first)
            if reads and drafter.longest_read is None:  # all of it: states need not wait
                drafter.read()

        reused = self.target.prefill(
            before,
            on_progress=lambda done, total: report(done, total + more),
            on_read=tell if drafter.hears else None,
        )
        if reads:
            read = len(before) - reused
            drafter.read(on_progress=lambda done, total: report(read + done, read + total))
        return reused

    def generate(
        self, max_tokens: int, *, keep_trees: bool = False, num_logprobs: int | None = None
    ) -> Iterator[Step]:
        """Steps until an end token or `max_tokens` tokens, after `begin`.

        Args:
            keep_trees: whether steps carry their trees.
            num_logprobs: steps carry the log-probabilities of their tokens and of so many most
                likely ones; None for none.

        Raises:
            Cancelled, DecodeError: caches as they were after the last step.
        """
        try:
            index = 0
            while index < max_tokens:
                if self.is_aborted:  # on a GPU nobody looks at it inside a pass
                    raise Cancelled("stopped")
                self.take_turn()
                step = self._step(index, max_tokens - index, keep_trees, num_logprobs)
                index += len(step.tokens)
                self._root = step.tokens[-1]
                yield step
                if self._root in self.end_tokens:
                    return
        finally:
            self.rewind(len(self.target.tokens))

    def _step(self, index: int, room: int, keep_tree: bool, num_logprobs: int | None) -> Step:
        tree, drafter, timer = self.tree, self.drafter, self._timer
        assert self._sampler is not None, "begin() comes first"
        timer.start()
        tree.reset(self._root)
        drafter.start_step(self.target.tokens, index)
        nodes = self._grow(tree, room - 1) if room > 1 else ROOT
        timer.grown()
        found = self.verifier.verify(self.target, drafter, tree, nodes, self._sampler, index)
        drafter.commit(tree, found.path)
        timer.verified()
        checked = tuple(nodes.tolist())
        if drafter.hears:
            self._tell(len(self.target.tokens) - len(found.path), checked, found.path)
        cost = timer.finished(found.draw_seconds)
        self.policy.learn(tree, found.path, found.tokens, cost)
        if not tree.num_forced:
            self._best = max(found.num_accepted, BEST_KEPT * self._best)
        else:  # the target may cut the text into other tokens
            share = min(1.0, found.num_accepted / tree.num_forced)
            self._forced_share += SHARE_WEIGHT * (share - self._forced_share)
        likely = None
        if num_logprobs is not None:  # until the target's next pass its rows are there
            likely = logprobs.of_path(self.target, checked, found.path, found.tokens, num_logprobs)
        return Step(
            tokens=tuple(found.tokens),
            num_drafted=len(checked) - 1,
            num_accepted=found.num_accepted,
            path=tuple(found.path),
            seconds=cost.seconds,
            # Depth first: the last node is as deep as there are others only without a branch.
            is_chain=tree.depth.item(checked[-1]) == len(checked) - 1,
            nodes=checked,
            num_forced=sum(0 < node <= tree.num_forced for node in checked),
            cost=cost,
            tree=TreeSnapshot.of(tree, nodes, found.path) if keep_tree else None,
            logprobs=likely,
        )

    def _grow(self, tree: TokenTree, max_depth: int) -> Nodes:
        """What the target checks: a tree, or alone what the grammar forces, if that is longer."""
        policy, grammar = self.policy, self._sampler.grammar if self._sampler else None
        if grammar is not None and not policy.weighs_forced:
            forced = grammar.forced(min(max_depth, policy.max_nodes))
            if self._forced_share * len(forced) > self._best:
                tree.add_chain(forced, FORCED_CONFIDENCE)
                tree.num_forced = len(forced)
                return np.arange(tree.size, dtype=np.int32)
        return policy.grow(tree, self.drafter, max_depth)

    def _tell(self, first: int, rows: Sequence[int] = (), path: Sequence[int] = ()) -> None:
        """Let the drafter hear what the target has read from position `first` on.

        Args:
            rows: the nodes of its last pass; empty: tokens, all of which are part of the text.
            path: those that are.
        """
        tokens = self.target.tokens[first:]
        states = self.target.context.hidden_states(len(rows) or len(tokens))
        if rows:
            states = states[[rows.index(node) for node in path]]
        self.drafter.hear(first, tokens, states)

    def rewind(self, length: int) -> None:
        """Cut both caches to the first `length` tokens of the text, and drop any tree."""
        self.target.rewind(length)
        self.drafter.rewind(length)

    def abort(self) -> None:
        """Stop a running pass of either model as soon as possible, and allow no other.

        From any thread or a signal handler; `begin` and `generate` then raise Cancelled.
        """
        self._abort_flag.set()

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called and `clear_abort` was not."""
        return self._abort_flag.is_set

    def clear_abort(self) -> None:
        """Allow passes again; an `abort` that another thread has just called means those before."""
        self._abort_flag = native.AbortFlag()

    def close(self) -> None:
        """Give the cells of both caches back to their contexts.  Idempotent."""
        self.target.close()
        self.drafter.close()
        if self._is_open:
            self._is_open = False
            self._on_close()

    def take_turn(self) -> None:
        """Let passes look at this conversation's flag: another one may have had the contexts.

        `begin` and `generate` do it by themselves; `on_progress` has to, if it lets others go on.
        """
        self.target.context.poll(self._abort_flag)
        self.drafter.poll(self._abort_flag)

    def _ranking(self, sampler: Sampler) -> Ranking:
        return Ranking(
            sampler.params,
            sampler.seed,
            residual=self.verifier.name == "residual",
            draft_temperature=self.drafter.temperature,
            grammar=sampler.grammar,
        )
