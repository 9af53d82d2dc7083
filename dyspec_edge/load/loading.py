"""From a configuration to a decoder that is ready: files checked, models placed, policy chosen."""

from __future__ import annotations

from dataclasses import dataclass

from dyspec_edge import llama
from dyspec_edge.decode import cost
from dyspec_edge.decode.draft.interface import NoDrafter
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.policy import Policy, parse
from dyspec_edge.decode.policy.plain import PlainPolicy
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.policy.sequoia import SequoiaPolicy
from dyspec_edge.errors import DeviceError, OptionError
from dyspec_edge.files.model_file import FileReport, inspect_file
from dyspec_edge.files.pair import PairReport, require_pair
from dyspec_edge.load.assembly import Builder, Progress, closing_on_error
from dyspec_edge.load.calibration import Calibration, Calibrator
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.load.machine import available_memory
from dyspec_edge.load.plan import place

__all__ = ["EngineConfig", "Loaded", "Models", "load", "open_models"]

DEFAULT_POLICY = "priced"
RESIDUAL_POLICY = "dyspec:8"
"""Priced trees look at the tokens that they buy, which the residual verifier does not allow."""


@dataclass(frozen=True, slots=True)
class Models:
    """Open weights, over which decoders can be built as often as asked.

    Attributes:
        target, draft: the draft is None where decoding cannot use one.
        reports: what the files of both are.
        pair: how their vocabularies fit.
        plain_reason: why decoding is plain whatever the policy, as a line to show.
        notices: other lines to show.
    """

    builder: Builder
    target: llama.Model
    draft: llama.Model | None
    reports: tuple[FileReport, FileReport | None]
    pair: PairReport | None
    num_ctx: int
    plain_reason: str | None
    notices: tuple[str, ...]

    def decoder(self, policy: Policy | None, verify: str, *, drafts: bool = True) -> Conversation:
        """A decoder with contexts of its own.

        Args:
            verify: "auto", "match" or "residual".
            drafts: whether the draft gets a context.

        Raises:
            DeviceError: no memory for the contexts.
        """
        draft = self.draft if drafts else None
        return self.builder.decoder(self.target, draft, self.pair, policy, verify)

    def calibrator(self, *, afresh: bool = False) -> Calibrator:
        """What measures these models, placed as they are."""
        return self.builder.calibrator(*self.reports, afresh=afresh)

    def close(self) -> None:
        """Close the models; decoders come first.  Idempotent."""
        if self.draft is not None:
            self.draft.close()
        self.target.close()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that an engine needs; `plain_seconds` of a token are None if not measured."""

    decoder: Conversation
    models: Models
    plain_seconds: float | None
    notices: tuple[str, ...] = ()
    calibration: Calibration | None = None
    calibrator: Calibrator | None = None

    def close(self) -> None:
        """Keep what was learned; close contexts, then models.  Idempotent."""
        policy = self.decoder.policy
        if self.calibrator is not None and isinstance(policy, PricedPolicy):
            self.calibrator.remember(policy)
        self.decoder.close()
        self.models.close()


def load(
    config: EngineConfig, on_progress: Progress | None = None, *, measure_afresh: bool = False
) -> Loaded:
    """Open the models of `config` and choose the policy.

    Args:
        on_progress: called with what is being done and a fraction 0..1.
        measure_afresh: do not use cost curves that were kept.

    Raises:
        As `open_models`.
    """
    with closing_on_error() as opened:
        models = open_models(config, on_progress)
        opened.callback(models.close)
        spec = _policy_spec(config, models)
        policy = parse(spec, models.target.end_tokens)
        decoder = models.decoder(policy, config.verify)
        opened.callback(decoder.close)
        notices = [*models.notices, *([models.plain_reason] if models.plain_reason else [])]
        calibrator = calibration = None
        plain_seconds: float
        if isinstance(policy, SequoiaPolicy) and policy.needs_prices:
            calibrator = models.calibrator(afresh=measure_afresh)
            calibration = calibrate(decoder, calibrator, on_progress)
            set_prices(policy, calibration)
            pad_passes(decoder, calibration)
            plain_seconds, pays = calibration.target.at(1), True
        elif isinstance(policy, PricedPolicy):
            calibrator = models.calibrator(afresh=measure_afresh)
            calibration = calibrate(decoder, calibrator, on_progress)
            set_prices(policy, calibration)
            pad_passes(decoder, calibration)
            if policy.draft is not None:
                calibrator.recall(policy)
            notices.append(_explanation(policy, calibration))
            plain_seconds, pays = calibration.target.at(1), policy.draft is not None
        else:
            chooses = config.policy is None and models.draft is not None
            costs = _measure(decoder, on_progress, chooses=chooses)
            plain_seconds, pays = costs.plain, costs.pays or not chooses
            if chooses:
                notices.append(_verdict(costs))
                decoder.policy = policy if pays else PlainPolicy()
            elif config.policy == DEFAULT_POLICY and policy.max_nodes > 0:
                notices.append(f"policy {spec}: {DEFAULT_POLICY} trees need --verify match")
        if isinstance(policy, SequoiaPolicy):
            notices.append(policy.explanation)
        if models.draft is not None and not pays:
            _close_draft(decoder, models.draft)
        return Loaded(decoder, models, plain_seconds, tuple(notices), calibration, calibrator)


def open_models(config: EngineConfig, on_progress: Progress | None = None) -> Models:
    """Check the files of `config`, place the models and open them.

    Args:
        on_progress: called with what is being done and a fraction 0..1.

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
        plain_reason = _draft_obstacle(config, draft_report)
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
        num_ctx_draft=config.num_ctx_draft,
        layers=config.num_gpu_layers,
        layers_draft=config.num_gpu_layers_draft,
        flash_attn=config.flash_attn,
        gpu_build=llama.supports_gpu(),
    )
    notices.extend(plan.notices)
    builder = Builder(config, plan, on_progress)
    with closing_on_error() as opened:
        target = builder.model(config.model, "target", layers=plan.layers)
        opened.callback(target.close)
        draft = None
        if draft_report is not None:
            draft = builder.model(draft_report.path, "draft", layers=plan.layers_draft)
    return Models(
        builder,
        target,
        draft,
        (report, draft_report),
        pair if draft is not None else None,
        plan.num_ctx,
        plain_reason,
        tuple(notices),
    )


def _plain_reason(config: EngineConfig, report: FileReport) -> str | None:
    """Why decoding is plain whatever the draft, as a line to show; None if it need not be."""
    if report.kind in ("recurrent", "hybrid"):
        return (
            f"{report.path.name} is {report.kind} ({report.architecture}): its state cannot branch "
            "into a tree, so decoding is plain"
        )
    if config.draft is None:
        if config.policy not in (None, "none", DEFAULT_POLICY):
            raise OptionError(f"policy '{config.policy}' needs a draft model; name one with -md")
        if config.policy != "none" and config.verify == "residual":
            return "no draft model: with --verify residual decoding is plain (-md adds one)"
    return None


def _draft_obstacle(config: EngineConfig, draft: FileReport) -> str | None:
    if draft.kind in ("recurrent", "hybrid"):
        lookup = config.policy in (None, DEFAULT_POLICY) and config.verify != "residual"
        then = "it is not used" if lookup else "decoding is plain"
        return (
            f"{draft.path.name} is {draft.kind} ({draft.architecture}): it cannot draft a tree, so "
            f"{then}"
        )
    return None


def _policy_spec(config: EngineConfig, models: Models) -> str:
    """The policy that runs, as `parse` reads it."""
    spec = config.policy or DEFAULT_POLICY
    if models.reports[0].kind in ("recurrent", "hybrid"):
        return "none"
    if spec == DEFAULT_POLICY and config.verify == "residual":
        spec = RESIDUAL_POLICY
    return spec if models.draft is not None or spec == DEFAULT_POLICY else "none"


def calibrate(
    decoder: Conversation, calibrator: Calibrator, on_progress: Progress | None
) -> Calibration:
    """Measure what the passes of a decoder cost, or find what was measured before."""
    report = (lambda done: on_progress("measuring passes", done)) if on_progress else None
    draft = decoder.drafter.shared_cache
    return calibrator.calibrate(decoder.target, draft, report)


def set_prices(policy: PricedPolicy | SequoiaPolicy, calibration: Calibration) -> None:
    """Tell a policy what was measured; a draft that cannot pay is left out of `priced`."""
    policy.set_prices(calibration.target, calibration.draft)
    if isinstance(policy, PricedPolicy) and not policy.has_headroom():
        policy.set_prices(calibration.target, None)


def pad_passes(decoder: Conversation, calibration: Calibration) -> None:
    """Fill the passes of both models up to the sizes whose prices are known."""
    decoder.target.pad_to(calibration.target.pass_sizes)
    draft = decoder.drafter.shared_cache
    if draft is not None and calibration.draft is not None:
        draft.pad_to(calibration.draft.pass_sizes)


def _explanation(policy: PricedPolicy, calibration: Calibration) -> str:
    """The line that says what was measured and what it means."""
    used = "the draft and the text's own repetitions" if policy.draft else "the text's repetitions"
    return f"policy {policy.name}, from {used}: {calibration.verdict} ({calibration.prices})"


def _close_draft(decoder: Conversation, model: llama.Model) -> None:
    decoder.drafter.close()
    decoder.drafter = NoDrafter()
    model.close()


def _measure(
    decoder: Conversation, on_progress: Progress | None, *, chooses: bool
) -> cost.PassCosts:
    """Pass costs of what is loaded; only those that the choice of a policy needs."""
    drafter = decoder.drafter
    draft = drafter.shared_cache if chooses else None
    sizes = (1, *(1 + k for k in cost.LENGTHS)) if draft else (1,)
    report = (lambda done: on_progress("measuring passes", done)) if on_progress else None
    return cost.measure(decoder.target, draft, sizes, report)


def _verdict(costs: cost.PassCosts) -> str:
    """The line that says which policy runs, and why."""
    passes = ", ".join(f"T({n}) {1e3 * s:.0f} ms" for n, s in costs.target.items())
    prices = f"{passes}, D(1) {1e3 * (costs.draft or 0):.0f} ms"
    gain = costs.predicted_gain()
    if costs.pays:
        return (
            f"policy {RESIDUAL_POLICY}: a draft should pay here, {gain:.2f}x predicted ({prices})"
        )
    return f"policy none: a draft would not pay here, {gain:.2f}x predicted ({prices})"
