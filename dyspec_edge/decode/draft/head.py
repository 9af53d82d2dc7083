"""Candidates from the multi-token-prediction head in the target's own file.

A row of the head is a token and the hidden state before it; it leaves logits for the token after
and a hidden state of its own, from which the rows below it go on:

    text    ...  a       b       root          c            d
    state        h(x)    h(a)    h(b)          h'(root)     h'(c)     h: the target's, h': its own

Of an accepted path only the root's row was built on a state of the target's; what is below it is
read again, with true states, together with the next root.  The head's cache is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.llama import UBATCH

MOST_PENDING = 1024
"""Tokens whose states are kept until the head is asked.  With more it forgets the older half, and
what it had read before: whoever does not ask it pays for nothing."""


class HeadDrafter(ModelDrafter):
    """Drafts with a head.

    Args:
        cache: over the head's context; closed by `close`.
        num_ctx, vocab_limit, excluded, temperature: as for a model.
    """

    hears = True

    def __init__(self, cache: Cache, **options: Any) -> None:
        super().__init__(cache, **options)
        self._start = 0  # where in the text the cache begins
        self._num_read = 0  # tokens of the cache, when the following were last true
        self._pending: list[int] = []  # heard, not read
        size = cache.context.model.num_embd
        # Before each of them and, one more, before what follows; then there is room for others.
        self._states = np.zeros((1, size), np.float32)

    @property
    def shared_cache(self) -> Cache | None:
        """None: of an accepted path it keeps less than the target."""
        return None

    @property
    def num_behind(self) -> int:
        """Tokens before the root that the next pass would have to read first."""
        return len(self._text) - self._start - len(self.cache.tokens)

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        """Take a new text, of which is kept what it has in common with what was heard."""
        self.ranking, self._text = ranking, text
        self._settle()
        known = [*self.cache.tokens, *self._pending]
        self.rewind(self._start + common_prefix(known, text[self._start :]))

    def hear(self, first: int, tokens: Sequence[int], states: npt.NDArray[np.float32]) -> None:
        """Keep what was not known yet, and the state behind it."""
        self._settle()
        known = self._start + len(self.cache.tokens) + len(self._pending)
        if first > known:  # nobody has told what stands between
            self._restart(first)
            known = first
        if known - first > len(tokens):  # it was read again, and nothing of it is new
            return
        num, num_known = len(self._pending), known - first
        self._pending += tokens[num_known:]
        self._make_room(1 + len(self._pending))
        if num_known:  # a token that was known may have been read with a guess of what follows
            self._states[num] = states[num_known - 1]
        self._states[num + 1 : 1 + len(self._pending)] = states[num_known:]
        if len(self._pending) > MOST_PENDING:
            self._keep_last(MOST_PENDING // 2)

    def read(self, *, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read what was heard; of more than `longest_read` tokens the last ones."""
        self._settle()
        if self.longest_read is not None and len(self._pending) > self.longest_read:
            self._keep_last(self.longest_read)
        total = len(self._pending)
        while self._pending:
            self._give_states()
            self.cache.read(self._pending[:UBATCH])
            self._settle()
        if on_progress is not None:
            on_progress(total, total)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep the root, if it was read; the rest of the path is still to be heard."""
        self._settle()
        self.cache.commit(tree, path[:1])
        self._num_read = len(self.cache.tokens)

    def rewind(self, length: int) -> None:
        """Keep nothing beyond the first `length` tokens of the text."""
        self._settle()
        kept = max(0, length - self._start)
        num_read = len(self.cache.tokens)
        if kept < num_read or kept == 0:
            self._forget()
            self._num_read = self.cache.rewind(kept)
            self._start = self._start if kept else 0
            return
        self.cache.rewind(num_read)  # drops a tree
        del self._pending[kept - num_read :]

    def _take_unread(self) -> list[int]:
        self._settle()
        self._give_states()
        return list(self._pending)

    def _settle(self) -> None:
        """Forget the states of what a pass has read."""
        num = len(self.cache.tokens) - self._num_read
        self._num_read = len(self.cache.tokens)
        if num > 0:
            left = 1 + len(self._pending) - num
            self._states[:left] = self._states[num : num + left]
            del self._pending[:num]

    def _restart(self, first: int) -> None:
        self.cache.rewind(0)
        self._start, self._num_read = first, 0
        self._forget()

    def _keep_last(self, num: int) -> None:
        """Begin so many tokens before the end of what was heard."""
        first = self._start + len(self.cache.tokens) + len(self._pending) - num
        end = 1 + len(self._pending)
        tokens, states = self._pending[-num:], self._states[end - 1 - num : end].copy()
        self._restart(first)
        self._pending = tokens
        self._states[: 1 + num] = states

    def _forget(self) -> None:
        self._pending = []
        self._states[0] = 0.0  # not known

    def _give_states(self) -> None:
        self.cache.set_states(self._states[: 1 + len(self._pending)])

    def _make_room(self, num: int) -> None:
        if num > len(self._states):  # twice as much: not again in the next step
            more = np.zeros((2 * num, self._states.shape[1]), np.float32)
            more[: len(self._states)] = self._states
            self._states = more
