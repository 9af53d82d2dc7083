"""From a configuration to something that decodes: models, contexts, prices, the choice of a policy.

open_models     files checked, placed and read                         models.py
Contexts        room for conversations, as large as the policy needs   contexts.py
prices          measured, or what was measured before                  calibration.py
Loaded          makes conversations: the policy is known by then, and whether it has a draft
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.prices import LivePrices, Prices
from dyspec_edge.decode.verify import MatchVerifier, Verifier
from dyspec_edge.errors import OptionError
from dyspec_edge.load.calibration import Calibrator
from dyspec_edge.load.choice import choose
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.contexts import Contexts
from dyspec_edge.load.models import Models, Progress, closing_on_error, open_models


class Loaded:
    """Everything that conversations share.

    Args:
        models: opened.
        contexts: opened over them.
        new_policy: makes the policy of a conversation.
        plain_seconds: of a token; None if not measured.
        notices: lines to show.
        prices: of passes; None if not measured.
        calibrator: keeps what policies learn, if it is to be kept.
        learned: by an earlier policy of this kind.
    """

    def __init__(
        self,
        models: Models,
        contexts: Contexts,
        new_policy: Callable[[], Policy],
        *,
        plain_seconds: float | None = None,
        notices: tuple[str, ...] = (),
        prices: Prices | None = None,
        calibrator: Calibrator | None = None,
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = models
        self.plain_seconds = plain_seconds
        self.notices = notices
        self.prices = prices
        self._contexts = contexts
        self._new_policy = new_policy
        self._calibrator = calibrator
        self._learned = learned

    def conversation(self) -> Conversation:
        """A new conversation; when it is closed, what its policy has learned is kept.

        Raises:
            DyspecError: as many as there is room for are open.
        """
        policy = self._new_policy()
        if self._learned is not None:
            policy.restore(self._learned)
        before = policy.as_dict()

        def remember() -> None:
            now = policy.as_dict()
            if self._calibrator is not None and now != before:
                self._learned = now
                self._calibrator.remember(policy)

        return self._contexts.conversation(policy, remember)

    def policy(self, spec: str | None, verify: str) -> tuple[Policy, Verifier]:
        """Another policy and verifier for conversations, which have room for its trees.

        Args:
            spec: as --policy spells it; None for the one that was chosen at load.
            verify: "match" or "residual".

        Raises:
            OptionError: there is no such policy or verifier, or it does not fit what was loaded;
                the flag is named with which it would.
        """
        if verify not in ("match", "residual"):
            raise OptionError(f"verify is '{verify}'; it must be match or residual")
        chosen = self._new_policy()
        policy = self.models.policy(spec or chosen.name, verify)
        if chosen.prices is not None:
            policy.set_prices(chosen.prices)
        self._contexts.require_room(policy)
        if policy.needs_prices and policy.prices is None:
            raise OptionError(
                f"policy {policy.name} goes by prices, which were not measured; "
                f"start with --policy {policy.name}"
            )
        if verify == "match":
            return policy, MatchVerifier()
        if not policy.allows_residual:
            raise OptionError(f"policy {policy.name} needs --verify match")
        return policy, policy.residual_verifier()

    def close(self) -> None:
        """Close conversations, contexts and models.  Idempotent."""
        self._contexts.close()
        self.models.close()


def load(
    config: EngineConfig, on_progress: Progress | None = None, *, measure_afresh: bool = False
) -> Loaded:
    """Open the models of `config`, choose the policy and measure what it goes by.

    Args:
        on_progress: called with what is being done and a fraction 0..1.
        measure_afresh: do not use cost curves that were kept.

    Raises:
        As `open_models`.
    """
    with closing_on_error() as opened:
        models = open_models(config, on_progress)
        opened.callback(models.close)
        choice = choose(models)
        policy = models.policy(choice.spec, config.verify)
        measures = policy.needs_prices or choice.by_prices
        contexts = Contexts(models, policy, config.verify, measures=measures)
        opened.callback(contexts.close)
        calibrator = prices = learned = None
        if measures:
            calibrator = models.calibrator(afresh=measure_afresh)
            prices = contexts.calibrate(calibrator, on_progress)
            choice = choice.settled(prices)
            new_policy = _policies(models, choice.spec, LivePrices(prices))
            plain_seconds = prices.target.at(1)
        else:
            new_policy = _policies(models, choice.spec, None)
            plain_seconds = contexts.plain_seconds(on_progress)
        policy = new_policy()
        if calibrator is not None:
            learned = calibrator.recall(policy)
        if models.draft is not None and not policy.uses_draft:
            contexts.close_draft()
            models = models.without_draft()
        said = (policy.explanation,) if policy.explanation is not None else ()
        return Loaded(
            models,
            contexts,
            new_policy,
            plain_seconds=plain_seconds,
            notices=(*models.notices, *choice.notices, *said),
            prices=prices,
            calibrator=calibrator,
            learned=learned,
        )


def _policies(models: Models, spec: str, prices: LivePrices | None) -> Callable[[], Policy]:
    """Makes policies that share prices, and nothing else."""

    def new() -> Policy:
        policy = models.policy(spec, models.config.verify)
        if prices is not None:
            policy.set_prices(prices)
        return policy

    return new
