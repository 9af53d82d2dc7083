"""Whether two model files can be a target and its draft.

A draft needs the target's vocabulary: the two are compared token by token.  Ids that mean another
text in the other file are tolerated while they are few; they are never drafted.

    target  0 ........ differing ids ........ draft_limit | padding
    draft   0 ........ (excluded_ids) ....... |

A draft with a trimmed vocabulary (trimmed.py) has ids of its own: its tokens are compared with
those that they are in the target.  So has a draft of another family: its tokens are those of the
target that stand for the same bytes (common_tokens.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.errors import ModelFileError, VocabularyError
from dyspec_edge.files.common_tokens import common_ids
from dyspec_edge.files.model_file import FileReport
from dyspec_edge.files.trimmed import TrimmedVocabulary

# Tokens (padding apart) by which one vocabulary may be longer than the other: as in llama.cpp.
_MAX_EXTRA = 128

# Vocabularies of one family differ in a handful of special tokens, those of two families in nearly
# all tokens.  The smaller share keeps two unrelated toy vocabularies from counting as one family.
_MAX_RENAMED = 16
_RENAMED_SHARE = 1 / 100
_SMALL_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A token id that means one text to the target and another to the draft."""

    token: int
    target_text: str
    draft_text: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """How a draft's vocabulary fits a target's.

    Attributes:
        reason: why they cannot be a pair, one line; None if they can.
        num_shared: ids with the same text in both.
        differing: ids that both have, with different texts; ascending.
        num_only_target, num_only_draft: ids beyond the other's end.
        draft_limit: ids from this one on are never drafted.
        excluded_ids: ids below `draft_limit` that are never drafted.
        substitute_id: what the draft reads in place of a token that it lacks.
        target_ids: int32[draft's vocabulary], the target's id by the draft's, -1 where it must not
            be drafted; None where both have the same ids.
        is_translated: whether the vocabularies are two, which have tokens in common.
        notes: what differs without harm, one line each; none where there is a reason.
    """

    target_path: Path
    draft_path: Path
    reason: str | None
    num_shared: int
    num_only_target: int
    num_only_draft: int
    draft_limit: int
    substitute_id: int
    notes: tuple[str, ...]
    differing: tuple[TokenDifference, ...] = field(repr=False)
    target_ids: npt.NDArray[np.int32] | None = field(default=None, repr=False, compare=False)
    is_translated: bool = False

    @property
    def compatible(self) -> bool:
        """Whether the two can be a pair."""
        return self.reason is None

    @property
    def excluded_ids(self) -> tuple[int, ...]:
        """Ids that both files have but give different texts."""
        return tuple(difference.token for difference in self.differing)

    def summary(self) -> str:
        """One line: the reason against the pair, or what is never drafted."""
        if self.reason:
            return self.reason
        if self.is_translated:
            num_draft = self.num_shared + self.num_only_draft
            return (
                "the draft's vocabulary is another one, its tokens are translated: "
                f"{self.num_shared:,} of {num_draft:,} ({self.num_shared / num_draft:.0%}) are the "
                "target's, too; the others are never drafted"
            )
        parts = []
        if self.target_ids is not None:
            parts.append(f"the draft's vocabulary is trimmed to {len(self.target_ids):,} tokens")
        if self.differing:
            first = self.differing[0]
            parts.append(
                f"{_ids(len(self.differing), 'differs', 'differ')} (first {first.token}: "
                f"{first.target_text!r} against {first.draft_text!r})"
            )
        for count, owner in ((self.num_only_target, "target"), (self.num_only_draft, "draft")):
            if count:
                parts.append(f"{_ids(count, 'is', 'are')} in the {owner} only")
        if not parts:
            return f"the vocabularies are the same ({self.num_shared:,} tokens)"
        return f"{', '.join(parts)}: never drafted; {self.num_shared:,} ids are shared"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; of the differing ids the first 20."""
        return {
            "target": str(self.target_path),
            "draft": str(self.draft_path),
            "compatible": self.compatible,
            "summary": self.summary(),
            "num_shared": self.num_shared,
            "num_differing": len(self.differing),
            "differing": [
                {"id": d.token, "target": d.target_text, "draft": d.draft_text}
                for d in self.differing[:20]
            ],
            "num_only_target": self.num_only_target,
            "num_only_draft": self.num_only_draft,
            "draft_limit": self.draft_limit,
            "notes": list(self.notes),
        }


def compare(target: FileReport, draft: FileReport) -> PairReport:
    """How the draft's vocabulary fits the target's, token by token."""
    obstacle = _obstacle(target, draft)
    found = _by_ids(target, draft, obstacle)
    if found.compatible or obstacle is not None or draft.trimmed is not None:
        return found
    ids = common_ids(target, draft)
    return found if ids is None else _by_bytes(target, draft, ids)


def _by_bytes(target: FileReport, draft: FileReport, ids: npt.NDArray[np.int32]) -> PairReport:
    num_shared = int((ids >= 0).sum())
    return PairReport(
        target_path=target.path,
        draft_path=draft.path,
        reason=None,
        num_shared=num_shared,
        num_only_target=target.num_vocab - num_shared,
        num_only_draft=draft.num_vocab - num_shared,
        draft_limit=draft.num_vocab,
        substitute_id=draft.eos_id if draft.eos_id is not None else 0,
        notes=tuple(_notes(target, draft)),
        differing=(),
        target_ids=ids,
        is_translated=True,
    )


def _by_ids(target: FileReport, draft: FileReport, obstacle: str | None) -> PairReport:
    ids = draft.trimmed.ids if draft.trimmed is not None else None
    limit = min(target.num_vocab, draft.num_vocab)
    if ids is not None:
        limit = int(np.searchsorted(ids, target.num_vocab))
    differing = tuple(
        TokenDifference(token, target.token_text(token), draft.token_text(own))
        for own, token in enumerate(range(limit) if ids is None else ids[:limit].tolist())
        if target.tokens[token] != draft.tokens[own]
    )
    if ids is not None:
        never = np.isin(ids, [difference.token for difference in differing])
        ids = np.where(never | (ids >= target.num_vocab), -1, ids).astype(np.int32)
    reason = obstacle or _reason(target, draft, differing)
    return PairReport(
        target_path=target.path,
        draft_path=draft.path,
        reason=reason,
        num_shared=limit - len(differing),
        num_only_target=target.num_vocab - limit,
        num_only_draft=draft.num_vocab - limit,
        draft_limit=limit,
        substitute_id=draft.eos_id if draft.eos_id is not None else 0,
        notes=() if reason else tuple(_notes(target, draft)),
        differing=differing,
        target_ids=ids,
    )


def require_pair(target: FileReport, draft: FileReport) -> PairReport:
    """`compare`, for files that must be a pair.

    Raises:
        VocabularyError: the draft's vocabulary does not fit; names the first differing token.
    """
    report = compare(target, draft)
    if report.reason:
        raise VocabularyError(f"{draft.path}: {report.reason}")
    return report


def require_target(report: FileReport) -> None:
    """Refuse what can only draft.

    Raises:
        ModelFileError: its vocabulary is trimmed.
    """
    if report.trimmed is not None:
        raise ModelFileError(f"{report.path}: {_cannot_be_target(report.trimmed)}")


def _cannot_be_target(trimmed: TrimmedVocabulary) -> str:
    return (
        f"is a draft with {len(trimmed.ids):,} of its {trimmed.size:,} tokens and cannot be a "
        "target; name it with -md"
    )


def _obstacle(target: FileReport, draft: FileReport) -> str | None:
    """Why they can be no pair whatever their vocabularies."""
    for role, report in (("target", target), ("draft", draft)):
        if report.obstacle:
            return f"the {role} {report.obstacle}"
    if target.trimmed is not None:
        return f"the target {_cannot_be_target(target.trimmed)}"
    return None


def _reason(
    target: FileReport, draft: FileReport, differing: Sequence[TokenDifference]
) -> str | None:
    sizes = f"{target.num_vocab} and {draft.num_vocab} tokens"
    limit = min(target.num_vocab, draft.trimmed.size if draft.trimmed else draft.num_vocab)
    tolerated = max(min(_MAX_RENAMED, int(limit * _SMALL_SHARE)), int(limit * _RENAMED_SHARE))
    other_kind = target.tokenizer != draft.tokenizer
    if differing and (other_kind or len(differing) > tolerated):
        first = differing[0]
        if draft.trimmed is not None:
            return (
                f"draft vocabulary is trimmed from another one than the target's: token "
                f"{first.token} is {first.target_text!r} to the target and {first.draft_text!r} to "
                "the draft; trim a draft of the target's family"
            )
        return (
            f"draft vocabulary differs from the target's at token {first.token}: "
            f"{first.target_text!r} against {first.draft_text!r} ({sizes}); "
            "use a draft of the same family"
        )
    if other_kind:
        return (
            f"draft vocabulary is of another kind: {target.tokenizer!r} against "
            f"{draft.tokenizer!r} ({sizes}); use a draft of the same family"
        )
    if draft.trimmed is not None:
        return None
    longer, owner = (target, "target") if target.num_vocab > limit else (draft, "draft")
    extra = [i for i in range(limit, longer.num_vocab) if not longer.is_padding(i)]
    if len(extra) > _MAX_EXTRA:
        return (
            f"draft vocabulary differs from the target's at token {extra[0]}: "
            f"{longer.token_text(extra[0])!r} and {len(extra) - 1:,} more are in the {owner} only "
            f"({sizes}); use a draft of the same family"
        )
    return None


def _notes(target: FileReport, draft: FileReport) -> Iterator[str]:
    def of_draft(token: int | None) -> int | None:
        return token if token is None or not draft.trimmed else int(draft.trimmed.ids[token])

    for name, one, other in (
        ("beginning-of-text ids", target.bos_id, of_draft(draft.bos_id)),
        ("end-of-text ids", target.eos_id, of_draft(draft.eos_id)),
        ("end-of-turn ids", target.eot_id, of_draft(draft.eot_id)),
        ("add_bos flags", target.add_bos, draft.add_bos),
        ("pre-tokenizers", target.pre_tokenizer, draft.pre_tokenizer),
    ):
        if one != other:
            yield f"the {name} differ ({one} and {other}); the target's is used"
    if target.chat_template != draft.chat_template:
        yield "the chat templates differ; the target's is used"
    if draft.weights_bytes > target.weights_bytes:
        yield "the draft is larger than the target; are they the wrong way round?"
    for role, report in (("target", target), ("draft", draft)):
        if report.state == "whole":
            yield f"the {role} is a {report.kind} model, whose state can be neither cut nor copied"
        elif report.state != "none":
            yield f"the {role} is a {report.kind} model: trees are chains"


def _ids(count: int, singular: str, plural: str) -> str:
    return f"1 id {singular}" if count == 1 else f"{count:,} ids {plural}"
