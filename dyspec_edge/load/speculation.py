"""What the files allow: trees, chains or plain decoding, and whether the target's head drafts.

Decided from headers alone, never by trying: llama.cpp ends the process on a wrong file.
"""

from __future__ import annotations

from dyspec_edge.decode.policy import Policy
from dyspec_edge.errors import OptionError
from dyspec_edge.files.model_file import FileReport
from dyspec_edge.files.transfer import format_bytes
from dyspec_edge.llama import hidden_states
from dyspec_edge.load.config import HEAD, EngineConfig


def can_speculate(report: FileReport) -> bool:
    """Whether the target can check a tree, or a chain at least."""
    return report.state in ("none", "snapshots")


def chain_notice(report: FileReport, num_snapshots: int) -> str:
    """What becomes of trees above a recurrent state, as a line to show."""
    size = format_bytes(report.state_bytes)
    return (
        f"{report.path.name} is {report.kind} ({report.architecture}): trees are chains of at most "
        f"{num_snapshots} tokens, taken back by as many snapshots of its state of {size}"
    )


def plain_reason_of(
    config: EngineConfig, report: FileReport, asked: Policy, has_head: bool
) -> str | None:
    """Why decoding is plain whatever the draft, as a line to show; None if it need not be."""
    if not can_speculate(report):
        return (
            f"{report.path.name} is {report.kind} ({report.architecture}): its state cannot branch "
            "into a tree nor be taken back, so decoding is plain"
        )
    if config.draft_file is None and not has_head:
        if asked.needs_draft:
            raise OptionError(f"policy '{config.policy}' needs a draft model; name one with -md")
        if asked.uses_draft and config.verify == "residual":
            return "no draft model: with --verify residual decoding is plain (-md adds one)"
    return None


def draft_obstacle(config: EngineConfig, draft: FileReport, asked: Policy) -> str | None:
    """Why a draft cannot draft, as a line to show; None if it can."""
    if draft.state == "none":
        return None
    lookup = asked.uses_draft and not asked.needs_draft and config.verify != "residual"
    then = "it is not used" if lookup else "decoding is plain"
    return (
        f"{draft.path.name} is {draft.kind} ({draft.architecture}): it cannot draft a tree, so "
        f"{then}"
    )


def drafts_by_head(config: EngineConfig, target: FileReport) -> bool:
    """Whether the multi-token-prediction head in the target's file is the draft.

    Raises:
        OptionError: it was asked for, and cannot draft.
    """
    can = target.has_head and hidden_states.are_available()
    if config.draft == HEAD and not can:
        why = "has no multi-token-prediction head"
        if target.has_head:
            why = "has a head, but this llama.cpp does not give it the target's hidden states"
        elif target.num_head_layers:
            why = f"has a head that cannot draft here (architecture {target.architecture!r})"
        raise OptionError(
            f"-md mtp: {target.path.name} {why}; name a draft's file, or leave it out"
        )
    return can and config.draft in (None, HEAD)


def head_notice(target: FileReport, *, is_used: bool) -> str:
    """What is done with it, as a line to show."""
    name = f"the multi-token-prediction head of {target.path.name}"
    if is_used:
        return f"draft: {name}; -md none leaves it out"
    return f"{name} is not used: the weights are read from disk in every pass"
