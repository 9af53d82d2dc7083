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
from dyspec_edge.load.states import StatePlan


def can_speculate(report: FileReport) -> bool:
    """Whether the target can check a tree, or a chain at least."""
    return report.state != "whole"


def chain_notice(target: FileReport, draft: FileReport | None, states: StatePlan) -> str:
    """What becomes of trees where a state cannot branch, as a line to show."""
    if target.state == "none":
        assert draft is not None, "one of them has a state"
        who, taken_back = draft, "copies of its state"
    else:
        who = target
        num = states.num_snapshots
        taken_back = f"{num} snapshots of its state" if num else "a copy of its state"
    return (
        f"{who.path.name} is {who.kind} ({who.architecture}): trees are chains of at most "
        f"{states.longest_chain} tokens, taken back by {taken_back} of "
        f"{format_bytes(who.state_bytes)}; states take {format_bytes(states.num_bytes)} in all"
    )


def plain_reason_of(
    config: EngineConfig, report: FileReport, asked: Policy, has_head: bool
) -> str | None:
    """Why decoding is plain whatever the draft, as a line to show; None if it need not be."""
    if not can_speculate(report):
        return (
            f"{report.path.name} is {report.kind} ({report.architecture}): its state can be "
            "neither cut nor copied, so decoding is plain"
        )
    if config.draft_file is None and not has_head:
        if asked.needs_draft:
            raise OptionError(f"policy '{config.policy}' needs a draft model; name one with -md")
        if asked.uses_draft and config.verify == "residual":
            return "no draft model: with --verify residual decoding is plain (-md adds one)"
    return None


def draft_obstacle(config: EngineConfig, draft: FileReport, asked: Policy) -> str | None:
    """Why a draft cannot draft, as a line to show; None if it can."""
    if draft.state != "whole":
        return None
    lookup = asked.uses_draft and not asked.needs_draft and config.verify != "residual"
    then = "it is not used" if lookup else "decoding is plain"
    return (
        f"{draft.path.name} is {draft.kind} ({draft.architecture}): its state can be "
        f"neither cut nor copied, so {then}"
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
