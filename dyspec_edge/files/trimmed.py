"""Drafts with a trimmed vocabulary: what their files say of the vocabulary that was cut.

dyspec_edge.target_ids               int32 array: by the file's token id, ascending, the id that
                                     the token has in the vocabulary before the cut
dyspec_edge.target_vocabulary_size   uint32: the number of tokens before the cut
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge.files.gguf_header import GgufHeader

TARGET_IDS = "dyspec_edge.target_ids"
TARGET_SIZE = "dyspec_edge.target_vocabulary_size"


class TrimmedVocabulary(NamedTuple):
    """The ids that the tokens of a trimmed file have in the vocabulary that was cut.

    Attributes:
        ids: int32[number of tokens], ascending.
        size: tokens before the cut.
    """

    ids: npt.NDArray[np.int32]
    size: int


def trimmed_vocabulary(header: GgufHeader) -> TrimmedVocabulary | None:
    """What the header says of it; None if the vocabulary is whole or `map_flaw_of` finds one."""
    if TARGET_IDS not in header.fields or map_flaw_of(header) is not None:
        return None
    ids = header.fields[TARGET_IDS].astype(np.int32)
    return TrimmedVocabulary(ids, header.integer(TARGET_SIZE) or 0)


def map_flaw_of(header: GgufHeader) -> str | None:
    """What is wrong with a trimmed file's map of ids, as the end of "FILE: ..."."""
    ids = header.fields.get(TARGET_IDS)
    if ids is None:
        return None
    tokens, size = header.fields.get("tokenizer.ggml.tokens"), header.integer(TARGET_SIZE)
    num_tokens = len(tokens) if isinstance(tokens, list) else 0
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or size is None:
        found = "is no array of numbers" if size is not None else f"lacks {TARGET_SIZE}"
    elif len(ids) != num_tokens:
        found = f"has {len(ids):,} ids for {num_tokens:,} tokens"
    elif ids.min(initial=0) < 0 or ids.max(initial=0) >= size:
        found = f"has ids beyond the {size:,} tokens before the cut"
    elif (np.diff(ids.astype(np.int64)) <= 0).any():
        found = "does not ascend"
    else:
        return None
    return f"is damaged: its {TARGET_IDS} {found}; make it anew with `dyspec-edge draft trim`"
