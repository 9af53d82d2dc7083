"""Texts outside the caches: the state that both models had behind a text, as bytes in memory.

A saved text goes back into the caches of any conversation over the same contexts.  It is copied,
not read again: its tokens cost no pass.  What a draft cannot take along, it reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.draft.excerpt import Gap
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.native import lib, pointer


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """What a cache had read.

    Attributes:
        tokens: ids, one per position.
        data: uint8[n], as llama.cpp writes the state of a sequence.
    """

    tokens: tuple[int, ...]
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class SavedText:
    """A conversation's text with the states behind it.

    Attributes:
        target: of the target.
        draft: of the draft, or None.
        gaps: what the draft has left out of the text.
        is_whole: it is of use only to texts that begin with all of it.
    """

    target: SavedState
    draft: SavedState | None
    gaps: tuple[Gap, ...]
    is_whole: bool

    @property
    def num_bytes(self) -> int:
        """Of both states."""
        return self.target.data.nbytes + (self.draft.data.nbytes if self.draft else 0)

    def num_shared(self, tokens: Sequence[int]) -> int:
        """Tokens of a text that need not be read if this is put back."""
        shared = common_prefix(self.target.tokens, tokens)
        return 0 if self.is_whole and shared < len(self.target.tokens) else shared


def num_bytes(conversation: Conversation) -> int:
    """What `save` will take."""
    draft = _draft(conversation)
    caches = [conversation.target, *([draft.cache] if draft else [])]
    return sum(lib.dyspec_cache_state_size(cache.handle.address) for cache in caches)


def save(conversation: Conversation) -> SavedText | None:
    """A copy of what a conversation holds between two replies; None where llama.cpp has none."""
    target = _state(conversation.target)
    if target is None:
        return None
    draft = _draft(conversation)
    return SavedText(
        target,
        None if draft is None else _state(draft.cache),
        () if draft is None else tuple(draft.excerpt.gaps),
        conversation.target.is_recurrent,
    )


def restore(conversation: Conversation, text: SavedText) -> bool:
    """Put a saved text in place of what a conversation holds.

    Returns:
        False if there is no room for it; the conversation is then empty.
    """
    conversation.rewind(0)
    if not _put(conversation.target, text.target):
        return False
    draft = _draft(conversation)
    if draft is not None and text.draft is not None and _put(draft.cache, text.draft):
        draft.excerpt.gaps = list(text.gaps)
    return True


def _draft(conversation: Conversation) -> ModelDrafter | None:
    """A draft that reads the target's ids; others read again: a head lacks the states for it."""
    drafter = conversation.drafter
    if isinstance(drafter, ModelDrafter) and drafter.shared_cache is not None:
        return drafter
    return None


def _state(cache: Cache) -> SavedState | None:
    size = lib.dyspec_cache_state_size(cache.handle.address)
    if not size:
        return None
    data = np.empty(size, np.uint8)
    to = pointer(data, np.uint8, size)
    if lib.dyspec_cache_state_get(cache.handle.address, to, size) != size:
        return None
    return SavedState(tuple(cache.tokens), data)


def _put(cache: Cache, state: SavedState) -> bool:
    data, length = state.data, len(state.tokens)
    address = pointer(data, np.uint8, len(data))
    found = lib.dyspec_cache_state_set(cache.handle.address, address, len(data), length)
    cache.tokens[:] = state.tokens[:found]
    return bool(found == length)
