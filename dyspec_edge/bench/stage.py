"""Open models on which policies take turns.

Weights are read once and shared.  Every run gets contexts of its own, of the size that its policy
needs, and no two runs have contexts at the same time: each finds the memory, the empty cache and
the one sequence id (plain decoding) or the many that it would have alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from dyspec_edge.bench.prompts import Prompt
from dyspec_edge.bench.schedule import Lane, Turn
from dyspec_edge.decode.loop import Step
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.prices import LivePrices, Prices
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.engine import Engine, EngineConfig
from dyspec_edge.errors import Cancelled, OptionError
from dyspec_edge.load.contexts import Contexts
from dyspec_edge.load.loading import Loaded
from dyspec_edge.load.models import Progress, open_models

NUM_BINS = 10
"""Of the draft's confidence, from 0 to 1."""

WARM_UP_TOKENS = 8


class Stage:
    """Models, and the policies that run on them.

    Args:
        config: which files, placed how; its policy and verifier are not used.
        fresh: a policy forgets after every run what it has learned.

    Raises:
        OptionError: a policy that needs a draft, and there is none.
        DyspecError: as `Engine.load`.
    """

    def __init__(
        self,
        config: EngineConfig,
        lanes: Sequence[Lane],
        *,
        fresh: bool,
        on_progress: Progress | None = None,
    ) -> None:
        self._config = replace(config, policy=None, verify="match")
        self._fresh = fresh
        self._policies: dict[Lane, Policy] = {}
        self._prices: Prices | None = None
        self._engine: Engine | None = None
        self._stopped = False
        self._models = open_models(self._config, on_progress)
        try:
            self._check(lanes)
            policies = [self._models.policy(lane.policy, lane.verify) for lane in lanes]
            weighing = next((policy for policy in policies if policy.needs_prices), None)
            if weighing is not None:
                calibrator = self._models.calibrator()
                with closing(Contexts(self._models, weighing, "match", measures=True)) as contexts:
                    self._prices = contexts.calibrate(calibrator, on_progress)
        except BaseException:
            self.close()
            raise

    def check_lengths(self, prompts: Sequence[Prompt], num_tokens: int) -> None:
        """Raise OptionError for a prompt that leaves less than `num_tokens` in the context."""
        with self._opened(Lane("none", "match", 0.0)) as engine:
            for prompt in prompts:
                needed = len(engine.prepare(prompt.messages).tokens) + num_tokens
                if needed > engine.num_ctx:
                    raise OptionError(
                        f"prompt {prompt.id} and its reply need {needed} tokens, the context has "
                        f"{engine.num_ctx}; try -c {needed}"
                    )

    def warm_up(self, lane: Lane) -> None:
        """A short reply that nobody times: weights are read, repacked, and in memory."""
        with self._opened(lane) as engine:
            sampling = SamplingParams(temperature=0.0, seed=0)
            engine.generate("Hello", sampling=sampling, max_tokens=WARM_UP_TOKENS)
        self._policies.pop(lane, None)

    def restore(self, lane: Lane, learned: Mapping[str, Any]) -> None:
        """Let a lane go on with what it had learned when a run of it was finished.

        Raises:
            KeyError, TypeError, ValueError: that is of no use to this policy.
        """
        self._policy(lane).restore(learned)

    def play(self, turn: Turn, sampling: SamplingParams, num_tokens: int) -> dict[str, Any]:
        """One reply, and everything that is known of it.

        Raises:
            Cancelled: `cancel` was called.
            DyspecError: as `Engine.stream`.
        """
        confidence, tokens = Confidence(), list[int]()
        with self._opened(turn.lane) as engine:
            started = time.perf_counter()
            for chunk in engine.stream(
                turn.prompt.messages, sampling=sampling, max_tokens=num_tokens
            ):
                tokens.extend(chunk.tokens)
                if chunk.finish_reason is None and engine.last_step is not None:
                    confidence.add(engine.conversation.tree, engine.last_step)
            seconds = time.perf_counter() - started
        if chunk.finish_reason == "cancelled" or chunk.stats is None:
            raise Cancelled("stopped")
        policy = self._policies[turn.lane]
        return {
            "stats": chunk.stats.as_dict(),
            "finish_reason": chunk.finish_reason,
            "tokens_sha256": hashlib.sha256(np.array(tokens, "<i4").tobytes()).hexdigest(),
            "request_seconds": seconds,
            "confidence": confidence.as_dict(),
            "learned": policy.as_dict() or None,
            "basis": policy.explanation,
            "order": turn.order,
            "load": psutil.getloadavg()[0],
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }

    def cancel(self) -> None:
        """End the run that is under way, and every later one; from any thread."""
        self._stopped = True
        if self._engine is not None:
            self._engine.cancel()

    def close(self) -> None:
        """Close the models.  Idempotent."""
        self._models.close()

    def _check(self, lanes: Sequence[Lane]) -> None:
        models = self._models
        for lane in lanes:
            policy = models.policy(lane.policy, lane.verify)
            has_draft = models.draft is not None or not policy.needs_draft
            if policy.max_nodes > 0 and not (models.can_speculate and has_draft):
                reason = models.plain_reason or "no draft model; name one with -md"
                raise OptionError(f"policy '{policy.name}' cannot run: {reason}")

    @contextmanager
    def _opened(self, lane: Lane) -> Iterator[Engine]:
        """An engine with contexts of its own for as long as the block lasts."""
        if self._stopped:
            raise Cancelled("stopped")
        policy = self._policy(lane)
        contexts = Contexts(self._models, policy, lane.verify, drafts=policy.uses_draft)
        with closing(contexts):
            try:
                loaded = Loaded(self._models, contexts, lambda: policy)
                self._engine = Engine(self._config, loaded)
                yield self._engine
            finally:
                self._engine = None

    def _policy(self, lane: Lane) -> Policy:
        if self._fresh or lane not in self._policies:
            policy = self._models.policy(lane.policy, lane.verify)
            if self._prices is not None:
                policy.set_prices(LivePrices(self._prices))
            self._policies[lane] = policy
        return self._policies[lane]


class Confidence:
    """How often drafted tokens are right, by what the draft thought of them.

    Only children of accepted nodes count: what hangs below a wrong token is never right.
    """

    def __init__(self) -> None:
        self._drafted = np.zeros(NUM_BINS, np.int64)
        self._accepted = np.zeros(NUM_BINS, np.int64)

    def add(self, tree: TokenTree, step: Step) -> None:
        """Count a step whose tree still stands."""
        path, tokens = np.array(step.path), np.array(step.tokens)
        nodes = np.array(step.nodes[1:], np.int64)
        nodes = nodes[tree.depth[nodes] <= len(path)]
        above = tree.depth[nodes] - 1
        reached = tree.parent[nodes] == path[above]
        nodes, above = nodes[reached], above[reached]
        bins = np.minimum((tree.confidence[nodes] * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        right = tree.token[nodes] == tokens[above]
        self._drafted += np.bincount(bins, minlength=NUM_BINS)
        self._accepted += np.bincount(bins[right], minlength=NUM_BINS)

    def as_dict(self) -> dict[str, list[int]]:
        """Counts by tenth of confidence, from 0 to 1."""
        return {"drafted": self._drafted.tolist(), "accepted": self._accepted.tolist()}
