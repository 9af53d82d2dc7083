"""The step loop: grow a tree, let the target check it in one pass, commit what it agreed with.

Token ids only.  Both caches are valid after every step, whatever happens next: a consumer may
walk away from the generator, a pass may be cancelled or fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import TreeCache
from dyspec_edge.decode.draft.interface import Drafter, NoDrafter
from dyspec_edge.decode.draft.model import NUM_CANDIDATES
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.policy import ROOT, Policy
from dyspec_edge.decode.sampling import Sampler
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import MatchVerifier, Verifier

Progress = Callable[[int, int], None]

NO_DRAFTER = NoDrafter()


class Step(NamedTuple):
    """What one target pass gave.

    Attributes:
        tokens: the emitted ids, the bonus token last.
        num_drafted: nodes that the target checked.
        num_accepted: drafted tokens among `tokens`.
        path: the accepted nodes of the decoder's tree, the root first.
        seconds: wall time of the step, but for a draft that read the prompt only now.
        is_chain: what the target checked has no branches.
        nodes: what the target checked, the root first.
    """

    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int
    path: tuple[int, ...]
    seconds: float
    is_chain: bool = True
    nodes: tuple[int, ...] = (0,)


class SpeculativeDecoder:
    """A target and, unless decoding is plain, a policy, most often with a drafter.

    Args:
        target: the target's cache; `close` closes it.
        end_tokens: int32 ids that end a text.
        drafter: a policy that works without one is the only reason to leave it out.
        policy: None decodes plainly.
        verifier: `match` or `residual`.
    """

    def __init__(
        self,
        target: TreeCache,
        end_tokens: npt.NDArray[np.int32],
        *,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.policy = policy
        self.verifier: Verifier = verifier or MatchVerifier()
        self.tree = TokenTree(policy.tree_capacity if policy else 1, NUM_CANDIDATES)
        self.end_tokens = frozenset(end_tokens.tolist())

    def begin(
        self, prompt: Sequence[int], ranking: Ranking, *, on_progress: Progress | None = None
    ) -> int:
        """Read a prompt: all but its last token, which becomes the first root.

        Args:
            on_progress: (tokens read, tokens to read), both models together.

        Returns:
            The number of prompt tokens that the target had in its cache.
        """
        before = prompt[:-1]
        drafter, report = self.drafter, on_progress or (lambda _done, _total: None)
        if drafter is not None:
            drafter.begin(before, ranking)
        reads = self.policy.begin(prompt, drafter) if self.policy is not None else True
        more = drafter.num_behind if drafter is not None and reads else 0
        reused = self.target.prefill(
            before, on_progress=lambda done, total: report(done, total + more)
        )
        if drafter is not None and reads:
            read = len(before) - reused
            drafter.read(on_progress=lambda done, total: report(read + done, read + total))
        return reused

    def generate(self, root: int, sampler: Sampler, max_tokens: int) -> Iterator[Step]:
        """Steps until an end token or `max_tokens` tokens, after `begin`.

        Raises:
            Cancelled, DecodeError: caches as they were after the last step.
        """
        try:
            index = 0
            while index < max_tokens:
                step = self._step(root, sampler, index, max_tokens - index)
                index += len(step.tokens)
                root = step.tokens[-1]
                yield step
                if root in self.end_tokens:
                    return
        finally:
            self.rewind(len(self.target.tokens))

    def _step(self, root: int, sampler: Sampler, index: int, room: int) -> Step:
        started = time.perf_counter()
        tree, target, drafter, policy = self.tree, self.target, self.drafter, self.policy
        tree.reset(root)
        nodes = ROOT
        read_before = drafter.read_seconds if drafter is not None else 0.0
        if drafter is not None:
            drafter.start_step(target.tokens, index)
        if policy is not None and room > 1:
            nodes = policy.grow(tree, drafter or NO_DRAFTER, max_depth=room - 1)
        grown, rows_before = time.perf_counter(), target.num_rows
        drafting = drafter or NO_DRAFTER
        found = self.verifier.verify(target, drafting, tree, nodes, sampler, index)
        drafting.commit(tree, found.path)
        verified = time.perf_counter()
        seconds = verified - started
        if drafter is not None:
            seconds -= drafter.read_seconds - read_before
        if policy is not None:
            policy.learn(
                tree,
                found.path,
                found.tokens,
                num_rows=target.num_rows - rows_before,
                target_seconds=verified - grown - found.draw_seconds,
                seconds=seconds - found.draw_seconds,
            )
        checked = tuple(nodes.tolist())
        return Step(
            tokens=tuple(found.tokens),
            num_drafted=len(checked) - 1,
            num_accepted=found.num_accepted,
            path=tuple(found.path),
            seconds=seconds,
            # Depth first: the last node is as deep as there are others only without a branch.
            is_chain=tree.depth.item(checked[-1]) == len(checked) - 1,
            nodes=checked,
        )

    def rewind(self, length: int) -> None:
        """Cut both caches to the first `length` tokens of the text, and drop any tree."""
        self.target.rewind(length)
        if self.drafter is not None:
            self.drafter.rewind(length)

    def set_abort(self, abort: bool) -> None:
        """Stop a running pass of either model as soon as possible, or allow passes again."""
        flag = self.target.context.abort_flag
        if abort:
            flag.set()
        else:
            flag.clear()
        if self.drafter is not None:
            self.drafter.set_abort(abort)

    def close(self) -> None:
        """Close both contexts.  Idempotent."""
        self.target.close()
        if self.drafter is not None:
            self.drafter.close()
