"""Contexts of both models, opened once, and the conversations that share them.

sequence ids    0 .. 15          16 .. 31          32 .. 47         of both contexts
conversation 0   conversation 1    conversation 2   a block for each
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from dyspec_edge import llama
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft import backend
from dyspec_edge.decode.draft.head import HeadDrafter
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.layered_head import LayeredHeadDrafter
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.draft.translation import TranslatedDrafter
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.measuring import measure_curve
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.prices import TARGET_ROWS, Prices
from dyspec_edge.decode.verify import MatchVerifier
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.load.calibration import Calibrator
from dyspec_edge.load.models import Models, Progress, closing_on_error
from dyspec_edge.load.spelling import translation

CELL_STEP = 256
"""llama.cpp rounds a context up to this many cells."""


class Contexts:
    """Room for conversations over open models.

    Args:
        policy: contexts are as large as its trees need.
        verify: "auto", "match" or "residual".
        drafts: whether the draft gets a context, where there is a draft.
        measures: whole curves will be measured, not only plain passes.

    Raises:
        DeviceError: no memory for the contexts.
        OptionError: the conversations need more sequence ids than a context has.
    """

    def __init__(
        self,
        models: Models,
        policy: Policy,
        verify: str,
        *,
        drafts: bool = True,
        measures: bool = False,
    ) -> None:
        self._models = models
        self._residual = verify == "residual"
        self._num_ids = policy.max_leaves
        self._num_nodes = 1 + policy.max_nodes
        self._capacity = policy.tree_capacity
        most = models.plan.states.num_snapshots
        self._num_snapshots = None if most is None else min(most, policy.max_nodes)
        self._num_outputs = max(self._num_nodes, backend.NUM_ROWS, TARGET_ROWS if measures else 0)
        self._drafts = drafts
        self._free = list(range(models.config.num_conversations))
        self._open: dict[int, Conversation] = {}
        self._draft: llama.Context | None = None
        self._further_layers: list[llama.Context] = []  # of a head, beside the first one
        self._translation = None
        if models.draft is not None and models.pair is not None:
            self._translation = translation(models.target, models.draft, models.pair)
        with closing_on_error() as opened:
            self._target = self._target_context()
            opened.callback(self._target.close)
            if drafts and models.draft is not None:
                self._draft = self._draft_context(models.draft)
                opened.callback(self._draft.close)
                if not models.uses_head:
                    self._choose_backend()
                for layer in range(1, models.num_head_layers):
                    self._further_layers.append(self._draft_context(models.draft, layer))
                    opened.callback(self._further_layers[-1].close)

    def conversation(
        self, policy: Policy, on_close: Callable[[], None] = lambda: None
    ) -> Conversation:
        """A new conversation with an empty text, which takes a block of ids until it is closed.

        Args:
            policy: of this conversation alone.
            on_close: called once when it is closed.

        Raises:
            DyspecError: as many as there is room for are open.
        """
        if not self._free:
            raise DyspecError(
                f"{len(self._open)} conversations are open, as many as was asked for; close one"
            )
        block = self._free.pop(0)
        with closing_on_error() as taken:
            taken.callback(self._free.append, block)
            found = self._open[block] = self._conversation(block, policy, on_close)
        return found

    def _conversation(
        self, block: int, policy: Policy, on_close: Callable[[], None]
    ) -> Conversation:
        def closed() -> None:
            del self._open[block]
            self._free.append(block)
            on_close()

        target = self._cache(self._target, block)
        drafter = self._translated(self._drafter(block)) if policy.uses_draft else None
        if drafter is not None:
            drafter.longest_read = policy.longest_read
        if policy.needs_prices and policy.prices is not None:
            _pad(policy.prices.measured, target, drafter)
        return Conversation(
            target,
            self._models.target.end_tokens,
            drafter=drafter,
            policy=policy,
            verifier=policy.residual_verifier() if self._residual else MatchVerifier(),
            on_close=closed,
        )

    def require_room(self, policy: Policy) -> None:
        """Make sure that conversations have room for this policy's trees.

        Raises:
            OptionError: they have not, or there is no draft for it.
        """
        if policy.needs_draft and self._draft is None:
            raise OptionError(
                f"policy {policy.name} needs a draft; start with -md FILE, --policy {policy.name}"
            )
        for what, size, room in (
            ("leaves", policy.max_leaves, self._num_ids),
            ("nodes", 1 + policy.max_nodes, self._num_nodes),
            ("nodes", policy.tree_capacity, self._capacity),
        ):
            if size > room:
                raise OptionError(
                    f"policy {policy.name} grows trees of {size} {what}; there is room for {room}; "
                    f"start with --policy {policy.name}"
                )

    def calibrate(self, calibrator: Calibrator, on_progress: Progress | None) -> Prices:
        """What passes cost, measured or found; before there is any conversation."""
        with closing(self._cache(self._target, 0)) as target:
            if self._draft is None:
                return calibrator.calibrate(target, None, _measuring(on_progress))
            with closing(self._cache(self._draft, 0)) as draft:
                return calibrator.calibrate(target, draft, _measuring(on_progress))

    def plain_seconds(self, on_progress: Progress | None) -> float:
        """What a token of plain decoding costs; before there is any conversation."""
        with closing(self._cache(self._target, 0)) as target:
            return measure_curve(target, (1,), _measuring(on_progress)).at(1)

    def close_draft(self) -> None:
        """Close the draft's contexts; before there is any conversation.  Idempotent."""
        if self._draft is not None:
            self._draft.close()
            self._draft = None
        while self._further_layers:
            self._further_layers.pop().close()

    def close(self) -> None:
        """Close conversations and contexts.  Idempotent."""
        for conversation in list(self._open.values()):
            conversation.close()
        self.close_draft()
        self._target.close()

    def _target_context(self) -> llama.Context:
        models, plan = self._models, self._models.plan
        return self._context(
            models.target,
            cells=plan.num_ctx + self._num_nodes,
            flash_attn=plan.flash_attn,
            types=self._models.config.cache_types,
            adapters=models.adapters,
            num_snapshots=self._num_snapshots,
            gives_states=self._drafts and models.uses_head,
        )

    def _draft_context(self, model: llama.Model, head_layer: int = 0) -> llama.Context:
        plan = self._models.plan
        # The draft may evaluate any node of a tree, the target those that it checks.
        cells = plan.num_ctx_draft + self._capacity
        types = self._models.config.cache_types_draft
        return self._context(
            model,
            cells=cells,
            flash_attn=plan.flash_attn_draft,
            types=types,
            num_snapshots=plan.states.num_snapshots_draft,
            head_layer=head_layer if self._models.uses_head else None,
        )

    def _context(
        self,
        model: llama.Model,
        *,
        cells: int,
        flash_attn: str,
        types: tuple[str, str],
        **options: Any,
    ) -> llama.Context:
        config = self._models.config
        cells *= config.num_conversations
        return llama.Context(
            model,
            num_ctx=-(-cells // CELL_STEP) * CELL_STEP,
            num_sequences=config.num_conversations * self._num_ids,
            num_outputs=self._num_outputs,
            num_threads=self._models.num_threads,
            flash_attn=flash_attn,
            type_k=types[0],
            type_v=types[1],
            **options,
        )

    def _cache(self, context: llama.Context, block: int) -> Cache:
        first_id = block * self._num_ids
        return Cache(context, self._capacity, first_id=first_id, num_ids=self._num_ids)

    def _drafter(self, block: int) -> Drafter | None:
        models, has_own_ids = self._models, self._translation is not None
        if self._draft is None or models.draft is None or models.pair is None:
            return None
        options: dict[str, Any] = {
            "num_ctx": models.plan.num_ctx_draft,
            "vocab_limit": models.draft.num_vocab if has_own_ids else models.pair.draft_limit,
            "excluded": () if has_own_ids else models.pair.excluded_ids,
            "substitute": models.pair.substitute_id,
            "temperature": models.config.draft_temperature,
        }
        caches = [self._cache(context, block) for context in (self._draft, *self._further_layers)]
        if len(caches) > 1:
            return LayeredHeadDrafter(caches, **options)
        kind = HeadDrafter if models.uses_head else ModelDrafter
        return kind(caches[0], **options)

    def _translated(self, drafter: Drafter | None) -> Drafter | None:
        """A drafter of the target's ids."""
        if not isinstance(drafter, ModelDrafter) or self._translation is None:
            return drafter
        return TranslatedDrafter(drafter, self._translation)

    def _choose_backend(self) -> None:
        """Where candidates are found is the context's, once for all drafters."""
        drafter = self._drafter(0)
        if isinstance(drafter, ModelDrafter):
            on_gpu = self._models.plan.layers_draft != 0
            with closing(drafter):
                backend.choose(drafter, self._models.config.device_sampling, on_gpu=on_gpu)


def _pad(prices: Prices, target: Cache, drafter: Drafter | None) -> None:
    """Fill passes up to the sizes whose prices are known."""
    target.pad_to(prices.target.pass_sizes)
    draft = drafter.shared_cache if drafter is not None else None
    if draft is not None and prices.draft is not None:
        draft.pad_to(prices.draft.pass_sizes)


def _measuring(on_progress: Progress | None) -> Callable[[float], None] | None:
    return (lambda done: on_progress("measuring passes", done)) if on_progress else None
