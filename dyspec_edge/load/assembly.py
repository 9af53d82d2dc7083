"""Models, contexts and the decoder over them, opened by one configuration and one placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dyspec_edge import llama
from dyspec_edge.decode import cost
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft import backend
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.policy import Policy
from dyspec_edge.decode.policy.priced import LONGEST_READ, PricedPolicy
from dyspec_edge.decode.policy.sequoia import SequoiaPolicy
from dyspec_edge.decode.verify import MatchVerifier, ResidualVerifier, Verifier
from dyspec_edge.files import stores
from dyspec_edge.files.model_file import FileReport
from dyspec_edge.files.pair import PairReport
from dyspec_edge.load.calibration import Calibrator, Shelf, file_key
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.machine import physical_cores
from dyspec_edge.load.plan import Placement
from dyspec_edge.load.sequoia_rates import rates_key, recall

Progress = Callable[[str, float], None]

CACHE_STEP = 256
"""llama.cpp rounds a context up to this many cells."""


class Builder:
    """Opens models, and decoders over them as often as asked, by one configuration.

    Attributes:
        plan: how models are loaded.
    """

    def __init__(self, config: EngineConfig, plan: Placement, on_progress: Progress | None) -> None:
        self._config = config
        self.plan = plan
        self._on_progress = on_progress
        self._adapters: list[Any] = []

    def model(self, path: Path, role: str, *, layers: int) -> llama.Model:
        """The model of a file; `role` is "target", which gets the adapters, or "draft"."""
        streamed = self.plan.streamed
        report = self._on_progress
        model = llama.Model(
            path,
            num_gpu_layers=layers,
            # A streamed target would push a mapped draft out of memory in every pass.
            use_mmap=self._config.use_mmap and not (streamed and role == "draft"),
            use_mlock=self._config.use_mlock,
            use_extra_bufts=not (streamed and role == "target"),
            on_progress=(lambda x: report(f"loading {role} {path.name}", x)) if report else None,
        )
        if role == "target":
            with closing_on_error() as opened:
                opened.callback(model.close)
                self._adapters = [model.load_adapter(path) for path in self._config.lora]
        return model

    def decoder(
        self,
        model: llama.Model,
        draft_model: llama.Model | None,
        pair: PairReport | None,
        policy: Policy | None,
        verify: str,
    ) -> Conversation:
        """Contexts of the size that `policy` needs, and the decoder over them."""
        config, num_ctx = self._config, self.plan.num_ctx
        if isinstance(policy, SequoiaPolicy) and config.draft is not None:
            kind = "residual" if verify == "residual" else "match"
            key = rates_key(config.model, config.draft, kind, config.draft_temperature)
            policy.fit(recall(key))
        with closing_on_error() as opened:
            target = self._cache(model, num_ctx, policy, self._adapters)
            opened.callback(target.close)
            drafter = None
            if draft_model is not None and pair is not None:
                num_ctx_draft = self.plan.num_ctx_draft
                drafter = ModelDrafter(
                    self._cache(draft_model, num_ctx_draft, policy, [], drafts=True),
                    num_ctx=num_ctx_draft,
                    vocab_limit=pair.draft_limit,
                    excluded=pair.excluded_ids,
                    substitute=pair.substitute_id,
                    temperature=config.draft_temperature,
                )
                opened.callback(drafter.close)
                on_gpu = self.plan.layers_draft != 0
                backend.choose(drafter, config.device_sampling, on_gpu=on_gpu)
                if isinstance(policy, PricedPolicy):
                    drafter.longest_read = LONGEST_READ
            verifier: Verifier = MatchVerifier()
            if verify == "residual":
                verifier = policy.residual_verifier() if policy else ResidualVerifier()
            return Conversation(
                target, model.end_tokens, drafter=drafter, policy=policy, verifier=verifier
            )

    def calibrator(
        self, report: FileReport, draft_report: FileReport | None, *, afresh: bool
    ) -> Calibrator:
        """What measures these models, placed as they are."""
        config, plan = self._config, self.plan
        common = {
            "threads": self._num_threads,
            "cache_types": [config.cache_type_k, config.cache_type_v],
            "devices": [d.description for d in llama.gpu_devices()] if llama.supports_gpu() else [],
            "streamed": plan.streamed,
        }
        key = file_key(report.path, layers=plan.layers, flash_attn=plan.flash_attn, **common)
        draft_key = None
        if draft_report is not None:
            draft_key = file_key(
                draft_report.path,
                layers=plan.layers_draft,
                flash_attn=plan.flash_attn_draft,
                device_sampling=config.device_sampling,
                **common,
            )
        return Calibrator(Shelf(stores.cache_dir() / "curves"), key, draft_key, afresh=afresh)

    @property
    def _num_threads(self) -> int:
        return self._config.num_threads or physical_cores()

    def _cache(
        self,
        model: llama.Model,
        num_ctx: int,
        policy: Policy | None,
        adapters: list[Any],
        *,
        drafts: bool = False,
    ) -> Cache:
        nodes = 1 + (policy.max_nodes if policy else 0)
        capacity = policy.tree_capacity if policy else 1
        # The draft may evaluate any node of a tree, the target those that it checks.
        cells = num_ctx + (capacity if drafts else nodes)
        cells = -(-cells // CACHE_STEP) * CACHE_STEP
        context = llama.Context(
            model,
            num_ctx=cells,
            num_sequences=policy.max_leaves if policy else 1,
            num_outputs=max(nodes, 1 + max(cost.LENGTHS)),
            num_threads=self._num_threads,
            flash_attn=self.plan.flash_attn_draft if drafts else self.plan.flash_attn,
            type_k=self._config.cache_type_k,
            type_v=self._config.cache_type_v,
            adapters=adapters,
        )
        return Cache(context, capacity)


@contextmanager
def closing_on_error() -> Iterator[ExitStack]:
    """Closes what was noted, last first, if the block raises; else leaves it open."""
    with ExitStack() as opened:
        yield opened
        opened.pop_all()
