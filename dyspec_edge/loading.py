"""From a configuration to a decoder that is ready: files checked, models placed, policy chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dyspec_edge import cost, llama
from dyspec_edge.cache import TreeCache
from dyspec_edge.draft.model import ModelDrafter
from dyspec_edge.errors import DeviceError, OptionError
from dyspec_edge.inspection import PairReport, require_pair
from dyspec_edge.model_file import FileReport, inspect_file
from dyspec_edge.placement import Placement, available_memory, place
from dyspec_edge.policy import Policy, parse
from dyspec_edge.speculative import SpeculativeDecoder
from dyspec_edge.verify import MatchVerifier, ResidualVerifier, Verifier

Progress = Callable[[str, float], None]

DEFAULT_POLICY = "dyspec:8"
CACHE_STEP = 256
"""llama.cpp rounds a context up to this many cells."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how; the command line's options of the same meaning stand behind.

    Attributes:
        model, draft: GGUF files, of split ones the first shard (-m, -md).
        num_ctx, num_ctx_draft: usable tokens; None for the default, 0 for the training length of
            the target (-c, -cd).
        num_threads: None for the number of physical cores (-t).
        num_gpu_layers, num_gpu_layers_draft: None for what fits, -1 for all (-ngl, -ngld).
        require_gpu: refuse to run without a GPU (--require-gpu).
        flash_attn: "auto", "on" or "off" (-fa).
        cache_type_k, cache_type_v: a key of llama.CACHE_TYPES (-ctk, -ctv).
        lora: adapters of the target (--lora).
        policy: None chooses by what passes cost here (--policy).
        verify: "auto", "match" or "residual" (--verify).
        draft_temperature: None for the verifier's own choice (--draft-temp).
        chat_template: Jinja text instead of the file's own template (--chat-template).
        verbose: show llama.cpp's log.
    """

    model: Path
    draft: Path | None = None
    num_ctx: int | None = None
    num_ctx_draft: int | None = None
    num_threads: int | None = None
    num_gpu_layers: int | None = None
    num_gpu_layers_draft: int | None = None
    require_gpu: bool = False
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    lora: tuple[Path, ...] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    policy: str | None = None
    verify: str = "auto"
    draft_temperature: float | None = None
    chat_template: str | None = None
    verbose: bool = False

    def check(self) -> None:
        """Raise OptionError for a value that has no meaning."""
        for name, allowed in (
            ("flash_attn", tuple(llama.FLASH_ATTN)),
            ("cache_type_k", tuple(llama.CACHE_TYPES)),
            ("cache_type_v", tuple(llama.CACHE_TYPES)),
            ("verify", ("auto", "match", "residual")),
        ):
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"{name} is '{getattr(self, name)}'; it must be one of {', '.join(allowed)}"
                )
        if self.flash_attn == "off" and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise OptionError(
                f"cache_type_v {self.cache_type_v} works with flash attention only; drop -fa off, "
                "or use f16"
            )
        for option, tokens in (("-c", self.num_ctx), ("-cd", self.num_ctx_draft)):
            if tokens is not None and tokens < 0:
                raise OptionError(
                    f"a context of {tokens} tokens: {option} must be 0 (training length) or more"
                )
        if self.policy is not None:
            parse(self.policy, np.empty(0, np.int32))  # before anything is loaded
        if self.num_threads is not None and self.num_threads < 1:
            raise OptionError(f"{self.num_threads} threads: -t must be 1 or more")
        if self.draft_temperature is not None and not self.draft_temperature > 0:
            raise OptionError(f"--draft-temp is {self.draft_temperature}; it must be above 0")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that `load` opened."""

    decoder: SpeculativeDecoder
    model: llama.Model
    draft_model: llama.Model | None
    report: FileReport
    num_ctx: int
    plain_seconds: float
    notices: tuple[str, ...]

    def close(self) -> None:
        """Close contexts, then models.  Idempotent."""
        self.decoder.close()
        if self.draft_model is not None:
            self.draft_model.close()
        self.model.close()


def load(config: EngineConfig, on_progress: Progress | None = None) -> Loaded:
    """Open the models of `config` and choose the policy.

    Raises:
        ModelFileError, VocabularyError, DeviceError, OptionError: as their names say; nothing
            stays open.
    """
    config.check()
    llama.set_verbose(config.verbose)
    report = inspect_file(config.model)
    plain_reason = _plain_reason(config, report)
    pair: PairReport | None = None
    draft_report: FileReport | None = None
    notices: list[str] = []
    if plain_reason is None and config.draft is not None:
        draft_report = inspect_file(config.draft)
        plain_reason = _draft_obstacle(draft_report)
    if plain_reason is None and draft_report is not None:
        pair = require_pair(report, draft_report)
        if pair.num_only_target or pair.num_only_draft or pair.differing:
            notices.append(f"vocabularies: {pair.summary()}")
    else:
        draft_report = None
    if config.policy == "none":
        draft_report = None
    devices = llama.gpu_devices() if llama.supports_gpu() else ()
    if config.require_gpu and not devices:
        raise DeviceError(
            "no GPU: this llama.cpp is built without one or finds none; see README, GPU"
        )
    plan = place(
        report,
        draft_report,
        devices,
        memory=available_memory(),
        cache_types=(config.cache_type_k, config.cache_type_v),
        num_ctx=config.num_ctx,
        layers=config.num_gpu_layers,
        layers_draft=config.num_gpu_layers_draft,
        gpu_build=llama.supports_gpu(),
    )
    notices.extend(plan.notices)
    with _closing_on_error() as opened:
        builder = _Builder(config, plan, on_progress, opened)
        model = builder.model(config.model, "target", layers=plan.layers)
        draft_model = None
        if draft_report is not None:
            draft_model = builder.model(draft_report.path, "draft", layers=plan.layers_draft)
        spec = "none" if draft_report is None else config.policy or DEFAULT_POLICY
        policy = parse(spec, model.end_tokens)
        decoder = builder.decoder(model, draft_model, policy, pair)
        costs = _measure(decoder, on_progress, chooses=config.policy is None)
        if plain_reason:
            notices.append(plain_reason)
        elif config.policy is None:
            notices.append(_verdict(costs))
            if not costs.pays and decoder.drafter is not None:
                decoder.drafter.close()
                decoder.drafter, decoder.policy = None, None
                if draft_model is not None:
                    draft_model.close()
                    draft_model = None
        return Loaded(
            decoder, model, draft_model, report, plan.num_ctx, costs.plain, tuple(notices)
        )


class _Builder:
    """Opens models and contexts by one configuration, and notes them for closing."""

    def __init__(
        self,
        config: EngineConfig,
        plan: Placement,
        on_progress: Progress | None,
        opened: ExitStack,
    ) -> None:
        self._config = config
        self._plan = plan
        self._on_progress = on_progress
        self._opened = opened

    def model(self, path: Path, role: str, *, layers: int) -> llama.Model:
        streamed = self._plan.streamed
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
        self._opened.callback(model.close)
        return model

    def decoder(
        self,
        model: llama.Model,
        draft_model: llama.Model | None,
        policy: Policy | None,
        pair: PairReport | None,
    ) -> SpeculativeDecoder:
        config, num_ctx = self._config, self._plan.num_ctx
        adapters = [model.load_adapter(path) for path in config.lora]
        target = self._cache(model, num_ctx, policy, adapters)
        drafter = None
        if draft_model is not None and pair is not None:
            num_ctx_draft = min(config.num_ctx_draft or num_ctx, num_ctx)
            drafter = ModelDrafter(
                self._cache(draft_model, num_ctx_draft, policy, []),
                num_ctx=num_ctx_draft,
                vocab_limit=pair.draft_limit,
                excluded=pair.excluded_ids,
                substitute=pair.substitute_id,
                temperature=config.draft_temperature,
            )
        verifier: Verifier = ResidualVerifier() if config.verify == "residual" else MatchVerifier()
        return SpeculativeDecoder(
            target, model.end_tokens, drafter=drafter, policy=policy, verifier=verifier
        )

    def _cache(
        self, model: llama.Model, num_ctx: int, policy: Policy | None, adapters: list[Any]
    ) -> TreeCache:
        nodes = 1 + (policy.max_nodes if policy else 0)
        cells = -(-(num_ctx + nodes) // CACHE_STEP) * CACHE_STEP
        context = llama.Context(
            model,
            num_ctx=cells,
            num_sequences=policy.max_leaves if policy else 1,
            num_outputs=max(nodes, 1 + max(cost.LENGTHS)),
            num_threads=self._config.num_threads or physical_cores(),
            flash_attn=self._config.flash_attn,
            type_k=self._config.cache_type_k,
            type_v=self._config.cache_type_v,
            adapters=adapters,
        )
        self._opened.callback(context.close)
        return TreeCache(context, nodes)


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return min(cores, allowed) if allowed else cores


def _plain_reason(config: EngineConfig, report: FileReport) -> str | None:
    """Why decoding is plain whatever the draft, as a line to show; None if it need not be."""
    if report.kind in ("recurrent", "hybrid"):
        return (
            f"{report.path.name} is {report.kind} ({report.architecture}): its state cannot branch "
            "into a tree, so decoding is plain"
        )
    if config.draft is None:
        if config.policy not in (None, "none"):
            raise OptionError(f"policy '{config.policy}' needs a draft model; name one with -md")
        return "no draft model: decoding is plain (-md adds one)" if config.policy is None else None
    return None


def _draft_obstacle(draft: FileReport) -> str | None:
    if draft.kind in ("recurrent", "hybrid"):
        return (
            f"{draft.path.name} is {draft.kind} ({draft.architecture}): it cannot draft a tree, so "
            "decoding is plain"
        )
    return None


def _measure(
    decoder: SpeculativeDecoder, on_progress: Progress | None, *, chooses: bool
) -> cost.PassCosts:
    """Pass costs of what is loaded; only those that the choice of a policy needs."""
    drafter = decoder.drafter
    draft = drafter.cache if drafter and chooses else None
    sizes = (1, *(1 + k for k in cost.LENGTHS)) if draft else (1,)
    report = (lambda done: on_progress("measuring passes", done)) if on_progress else None
    return cost.measure(decoder.target, draft, sizes, report)


def _verdict(costs: cost.PassCosts) -> str:
    """The line that says which policy runs, and why."""
    passes = ", ".join(f"T({n}) {1e3 * s:.0f} ms" for n, s in costs.target.items())
    prices = f"{passes}, D(1) {1e3 * (costs.draft or 0):.0f} ms"
    gain = costs.predicted_gain()
    if costs.pays:
        return f"policy {DEFAULT_POLICY}: a draft should pay here, {gain:.2f}x predicted ({prices})"
    return f"policy none: a draft would not pay here, {gain:.2f}x predicted ({prices})"


@contextmanager
def _closing_on_error() -> Iterator[ExitStack]:
    """Closes what was noted, last first, if the block raises; else leaves it open."""
    with ExitStack() as opened:
        yield opened
        opened.pop_all()
