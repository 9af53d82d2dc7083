"""Open weights: the files are checked and placed, then read once, whatever runs over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dyspec_edge import llama
from dyspec_edge.decode.policy import DEFAULT, Policy, parse
from dyspec_edge.errors import DeviceError
from dyspec_edge.files import stores
from dyspec_edge.files.model_file import FileReport, inspect_file
from dyspec_edge.files.pair import PairReport, require_pair, require_target
from dyspec_edge.llama import rpc
from dyspec_edge.load import self_draft
from dyspec_edge.load.calibration import Calibrator, file_key
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.disk_cache import DiskCache
from dyspec_edge.load.machine import available_memory, physical_cores
from dyspec_edge.load.plan import LoadPlan, plan_load
from dyspec_edge.load.sequoia_rates import rates_key, recall
from dyspec_edge.load.speculation import (
    can_speculate,
    chain_notice,
    draft_obstacle,
    drafts_by_head,
    head_notice,
    plain_reason_of,
)
from dyspec_edge.load.streaming import Streaming, stream_as_planned

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Models:
    """Open weights, over which contexts can be opened as often as asked.

    Attributes:
        plan: how they were loaded.
        target, draft: the draft is None where decoding cannot use one, and the target itself where
            the head in its file drafts.
        adapters: of the target.
        reports: what the files of both are.
        pair: how their vocabularies fit.
        plain_reason: why decoding is plain whatever the policy, as a line to show.
        notices: other lines to show.
        streaming: how the target's weights are read in every pass; None where they are in memory,
            or left to the system.
    """

    config: EngineConfig
    plan: LoadPlan
    target: llama.Model
    draft: llama.Model | None
    adapters: tuple[Any, ...]
    reports: tuple[FileReport, FileReport | None]
    pair: PairReport | None
    plain_reason: str | None
    notices: tuple[str, ...]
    streaming: Streaming | None = None

    @property
    def num_ctx(self) -> int:
        """Usable tokens of a conversation."""
        return self.plan.num_ctx

    @property
    def num_threads(self) -> int:
        """Threads that passes take."""
        return self.config.num_threads or physical_cores()

    @property
    def can_speculate(self) -> bool:
        """Whether the target can check a tree, or a chain at least."""
        return can_speculate(self.reports[0])

    def policy(self, spec: str, verify: str) -> Policy:
        """A new policy, with what was measured for these models."""
        config = self.config

        def rates() -> Any:
            if config.draft_file is None:
                return ()
            kind = "residual" if verify == "residual" else "match"
            return recall(
                rates_key(config.model, config.draft_file, kind, config.draft_temperature)
            )

        policy = parse(spec, self.target.end_tokens, rates)
        if self.plan.states.longest_chain is not None:
            policy.narrow(self.plan.states.longest_chain)
        elif self.plan.streamed:
            policy.widen(llama.MAX_SEQUENCES // config.num_conversations)
        return policy

    def calibrator(self, *, afresh: bool = False) -> Calibrator:
        """What measures these models, placed as they are."""
        config, plan = self.config, self.plan
        report, draft_report = self.reports
        common: Mapping[str, Any] = {
            "threads": self.num_threads,
            "devices": [device.description for device in _devices(config)],
            "streamed": self.streaming.share if self.streaming else plan.streamed,
        }
        if plan.states.longest_chain is not None:
            common = {**common, "snapshots": plan.states.num_snapshots}
        key = file_key(
            report.path,
            layers=plan.layers,
            flash_attn=plan.flash_attn,
            cache_types=list(config.cache_types),
            **common,
        )
        draft_key = None
        if draft_report is not None:
            draft_key = file_key(
                draft_report.path,
                layers=plan.layers_draft,
                flash_attn=plan.flash_attn_draft,
                cache_types=list(config.cache_types_draft),
                device_sampling=config.device_sampling,
                **({"head": True} if self.uses_head else {}),
                **common,
            )
        kept = DiskCache(stores.cache_dir() / "curves")
        return Calibrator(kept, key, draft_key, afresh=afresh, is_streamed=plan.streamed)

    @property
    def uses_head(self) -> bool:
        """Whether the draft is the head in the target's file."""
        return self.draft is self.target

    @property
    def num_head_layers(self) -> int:
        """Of the head that drafts; 0 where none does."""
        return self.reports[0].num_head_layers if self.uses_head else 0

    def without_draft(self) -> Models:
        """The same without its draft, which is closed if it has a file of its own."""
        if self.draft is not None and not self.uses_head:
            self.draft.close()
        return replace(self, draft=None, pair=None)

    def close(self) -> None:
        """Close the models; contexts come first.  Idempotent."""
        self.without_draft()
        self.target.close()


def open_models(config: EngineConfig, on_progress: Progress | None = None) -> Models:
    """Check the files of `config`, place the models and open them.

    Args:
        on_progress: called with what is being done and a fraction 0..1.

    Raises:
        ModelFileError, VocabularyError, DeviceError, OptionError: as their names say; nothing
            stays open.
    """
    config = self_draft.resolved(config, on_progress)
    config.check()
    llama.set_verbose(config.verbose)
    asked = parse(config.policy or DEFAULT, np.empty(0, np.int32))
    report = inspect_file(config.model)
    require_target(report)
    has_head = drafts_by_head(config, report)
    plain_reason = plain_reason_of(config, report, asked, has_head)
    pair: PairReport | None = None
    draft_report: FileReport | None = None
    notices: list[str] = []
    if plain_reason is None and has_head:
        draft_report = report
    elif plain_reason is None and config.draft_file is not None:
        draft_report = inspect_file(config.draft_file)
        plain_reason = draft_obstacle(config, draft_report, asked)
    if plain_reason is None and draft_report is not None:
        pair = require_pair(report, draft_report)
        if pair.num_only_target or pair.num_only_draft or pair.differing:
            notices.append(f"vocabularies: {pair.summary()}")
    else:
        draft_report = None
    if not asked.uses_draft:
        draft_report = None
    has_head = has_head and draft_report is not None
    own_draft = None if has_head else draft_report
    plan = _plan(config, report, own_draft)
    notices.extend(plan.notices)
    if has_head:
        has_head = not plan.streamed  # its weights would be gone when it is its turn
        draft_report = report if has_head else None
        notices.append(head_notice(report, is_used=has_head))
    if plan.states.longest_chain is not None and plain_reason is None and asked.max_nodes:
        notices.append(chain_notice(report, own_draft, plan.states))
    with closing_on_error() as opened:
        target = _open(config, plan, config.model, "target", on_progress, with_head=has_head)
        opened.callback(target.close)
        adapters = tuple(target.load_adapter(path) for path in config.lora)
        streaming = stream_as_planned(
            target, plan, own_draft, notices, on_progress, wanted=config.stream != "off"
        )
        maps_draft = streaming.maps_draft if streaming else plan.streamed and plan.room <= 0
        draft = target if has_head else None
        if own_draft is not None:
            draft = _open(config, plan, own_draft.path, "draft", on_progress, maps_draft)
    return Models(
        config,
        plan,
        target,
        draft,
        adapters,
        (report, draft_report),
        pair if draft is not None else None,
        plain_reason,
        tuple(notices),
        streaming,
    )


@contextmanager
def closing_on_error() -> Iterator[ExitStack]:
    """Closes what was noted, last first, if the block raises; else leaves it open."""
    with ExitStack() as opened:
        yield opened
        opened.pop_all()


def _open(
    config: EngineConfig,
    plan: LoadPlan,
    path: Path,
    role: str,
    report: Progress | None,
    maps_draft: bool = False,
    *,
    with_head: bool = False,
) -> llama.Model:
    is_draft = role == "draft"
    streams = plan.streamed and not is_draft
    # Beside a streamed target a mapped draft is pushed out of memory, unless nothing else is left.
    use_mmap = streams or (maps_draft if plan.streamed else config.use_mmap)
    return llama.Model(
        path,
        num_gpu_layers=plan.layers_draft if is_draft else plan.layers,
        rpc=() if is_draft else config.rpc,
        use_mmap=use_mmap,
        use_mlock=config.use_mlock and not plan.streamed,
        use_extra_bufts=not (streams or maps_draft),
        with_head=with_head,
        on_progress=(lambda x: report(f"loading {role} {path.name}", x)) if report else None,
    )


def _devices(config: EngineConfig) -> tuple[llama.Device, ...]:
    return llama.gpu_devices(config.rpc) if llama.supports_gpu() else ()


def _plan(config: EngineConfig, report: FileReport, draft_report: FileReport | None) -> LoadPlan:
    for endpoint in config.rpc:
        rpc.connect(endpoint)
    devices = _devices(config)
    if config.require_gpu and not devices:
        raise DeviceError(
            "no GPU: this llama.cpp is built without one or finds none; see README, GPU"
        )
    return plan_load(
        report,
        draft_report,
        devices,
        memory=available_memory(config.memory_limit),
        cache_types=config.cache_types,
        cache_types_draft=config.cache_types_draft,
        num_ctx=config.num_ctx,
        num_ctx_draft=config.num_ctx_draft,
        num_conversations=config.num_conversations,
        layers=config.num_gpu_layers,
        layers_draft=config.num_gpu_layers_draft,
        flash_attn=config.flash_attn,
        gpu_build=llama.supports_gpu(),
        stream=config.stream,
    )
