"""Recurrent states: how many are held beside caches, and how long a chain they allow.

A state cannot branch, so trees above it are chains.  What is refused of one comes off by snapshots
that llama.cpp keeps, or else by copies that the cache makes within a step (native/src/state.cpp);
a target is checked in one pass, before which one copy is enough, a draft makes one before each.
"""

from __future__ import annotations

from dataclasses import dataclass

from dyspec_edge.decode.cache import NUM_COPIES
from dyspec_edge.files.model_file import FileReport

LONGEST_CHAIN = 16
"""Tokens of a chain above a recurrent state, and snapshots of one."""

SHARE = 1 / 4
"""Of the memory for caches, what states may take."""


@dataclass(frozen=True, slots=True)
class StatePlan:
    """What is held of recurrent states.

    Attributes:
        num_snapshots: of the target's state at most; 0 where copies stand in for them; None where
            it has no state that can be saved.
        num_snapshots_draft: the same of the draft, for which llama.cpp keeps none.
        longest_chain: tokens of a tree, which cannot branch; None where it can.
        num_bytes: of all states, snapshots and copies, at most.
    """

    num_snapshots: int | None = None
    num_snapshots_draft: int | None = None
    longest_chain: int | None = None
    num_bytes: int = 0


def plan_states(
    target: FileReport, draft: FileReport | None, *, room: float, num_conversations: int
) -> StatePlan:
    """As many as pay, within a share of the memory.

    Args:
        draft: None where there is none, or the head in the target's own file.
        room: bytes for caches.
    """
    at_any_length, per_token = 0, 0  # bytes
    has_snapshots, has_copies = target.state == "snapshots", target.state == "saved"
    if has_snapshots or has_copies:
        # One copy within a step and one of a pass that is timed.
        at_any_length += (1 + NUM_COPIES + 2 * has_copies) * target.state_bytes
        per_token += target.state_bytes * has_snapshots
    drafts_chains = draft is not None and draft.state in ("saved", "snapshots")
    if draft is not None and drafts_chains:
        at_any_length += (2 + NUM_COPIES) * draft.state_bytes
        per_token += draft.state_bytes
    if not (has_snapshots or has_copies or drafts_chains):
        return StatePlan()
    at_any_length *= num_conversations
    per_token *= num_conversations
    fit = int((SHARE * max(0.0, room) - at_any_length) // max(1, per_token))
    longest = max(1, min(LONGEST_CHAIN, fit)) if per_token else LONGEST_CHAIN
    return StatePlan(
        num_snapshots=longest if has_snapshots else 0 if has_copies else None,
        num_snapshots_draft=0 if drafts_chains else None,
        longest_chain=longest,
        num_bytes=at_any_length + longest * per_token,
    )
