"""A draft with another vocabulary than the target's: its own ids, its own text, one tree.

    target's text    the   _won  derful   tree          the tree holds the target's ids, too:
    draft's text     the   _wo n derful   tree          native code translates what it reads
                     1     3     4        5  <- ends    and proposes (dyspec_drafter_translate)

A token of the text that the draft lacks is read as the tokens that spell it, so positions differ
as well.  In the tree such a token, copied from the text, has no candidates below it, and what only
the draft has is never proposed.  Noise, bias and grammar go by the target's ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.draft.interface import Drafter, DraftTotals
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.tree import TokenTree

Ids = npt.NDArray[np.int32]


class Translation:
    """How the ids of two vocabularies belong together; for any number of drafters.

    Args:
        target_ids: int32[n], the target's id by the draft's; -1 where the target has no such
            token.  No id of the target comes twice.
        num_target: size of the target's vocabulary.
        spell: the draft's ids, at least one, that spell a token of the target that it lacks.

    Attributes:
        own_ids: int32[num_target], the draft's id by the target's; -1 where it has none.
    """

    def __init__(
        self, target_ids: Ids, num_target: int, spell: Callable[[int], Sequence[int]]
    ) -> None:
        self.target_ids = np.ascontiguousarray(target_ids, np.int32)
        self.own_ids = np.full(num_target, -1, np.int32)
        known = np.flatnonzero(self.target_ids >= 0)
        self.own_ids[self.target_ids[known]] = known
        self._spell = spell
        self._spelled: dict[int, tuple[int, ...]] = {}

    def own(self, token: int) -> Sequence[int]:
        """The draft's ids, at least one, for a token of the target."""
        found = self._spelled.get(token)
        if found is None:
            own = self.own_ids.item(token)
            found = (own,) if own >= 0 else tuple(self._spell(token))
            self._spelled[token] = found
        return found


class TranslatedDrafter(Drafter):
    """Lets a model draft for a target of another vocabulary.

    Args:
        model: closed by `close`; none of its ids is excluded.
        translation: between its ids and the target's.
    """

    def __init__(self, model: ModelDrafter, translation: Translation) -> None:
        self.model = model
        self.temperature = model.temperature
        self._translation = translation
        self._text: list[int] = []  # the target's ids before the root
        self._own: list[int] = []  # the same in the draft's
        self._ends: list[int] = []  # where in `_own` each token of `_text` ends
        self._index = 0
        self._has_root = False
        model.translate(translation.target_ids, translation.own_ids)

    @property
    def longest_read(self) -> int | None:
        """The model's, in its own tokens."""
        return self.model.longest_read

    @longest_read.setter
    def longest_read(self, length: int | None) -> None:
        self.model.longest_read = length

    @property
    def shared_cache(self) -> Cache | None:
        """The model's: it holds the tree node for node."""
        return self.model.cache

    @property
    def num_behind(self) -> int:
        """Tokens of the draft before the root that the next pass would have to read first."""
        return self.model.num_behind

    @property
    def read_seconds(self) -> float:
        """Running total of reading tokens without evaluating any node."""
        return self.model.read_seconds

    @property
    def totals(self) -> DraftTotals:
        """What the passes have cost so far."""
        return self.model.totals

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        """Take a new text, of which the cache keeps what it has in common with it."""
        self.ranking = ranking
        self._truncate(common_prefix(self._text, text))
        self._append(text[len(self._text) :])
        self.model.begin(self._own, ranking)

    def read(self, *, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read the tokens before the root."""
        self.model.read(on_progress=on_progress)

    def start_step(self, text: Sequence[int], index: int) -> None:
        """Take the tokens before the root, and the reply index of the token below the root."""
        self._append(text[len(self._text) :])
        self._index, self._has_root = index, False
        self.model.start_step(self._own, index)

    def propose(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        """Write the candidates of `nodes` into the tree, in one pass, by the target's ids.

        Raises:
            Cancelled, DecodeError: the draft's cache stays valid.
        """
        self._take_root(tree)
        self.model.propose(tree, nodes)

    def proposer(self, tree: TokenTree) -> native.Proposer:
        """`propose` for native code, in this step."""
        self._take_root(tree)
        return self.model.proposer(tree)

    def sample_children(self, tree: TokenTree, node: int, count: int) -> npt.NDArray[np.int32]:
        """Draw candidates of a node with replacement (Ranking.sample_children)."""
        return self.model.sample_children(tree, node, count)

    def passes(self) -> Sequence[tuple[int, float]]:
        """Rows and seconds of this step's passes."""
        return self.model.passes()

    def time_pass(self, num_rows: int) -> float:
        """Seconds of a pass of the draft over `num_rows` rows that leaves nothing."""
        return self.model.time_pass(num_rows)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep what was read of the accepted path, or take note of what native code has kept."""
        cache, before = self.model.cache, len(self.model.cache.tokens)
        kept = cache.commit(tree, path)
        tokens = [tree.token.item(node) for node in path]
        own = [self._translation.own(token)[-1] for token in tokens[:kept]]
        cache.tokens[before : before + kept] = own  # it has noted the tree's
        self._append(tokens)

    def rewind(self, length: int) -> None:
        """Keep nothing beyond the first `length` tokens of the target's text."""
        self._truncate(length)
        self.model.rewind(len(self._own))

    def poll(self, flag: native.AbortFlag) -> None:
        """From now on stop a running pass as soon as possible once `flag` is set."""
        self.model.poll(flag)

    def close(self) -> None:
        """Give the cells back to the draft's context.  Idempotent."""
        self.model.close()

    def _take_root(self, tree: TokenTree) -> None:
        """Read a root that the draft lacks as what spells it: the last piece is the tree's root."""
        if not self._has_root:
            *first, last = self._translation.own(tree.token.item(0))
            if first:
                self.model.start_step([*self._own, *first], self._index)
            self.model.read_root_as(last)
            self._has_root = True

    def _append(self, tokens: Sequence[int]) -> None:
        self._text += tokens
        for token in tokens:
            self._own += self._translation.own(token)
            self._ends.append(len(self._own))

    def _truncate(self, length: int) -> None:
        if length < len(self._text):
            del self._text[length:], self._ends[length:]
            del self._own[self._ends[-1] if self._ends else 0 :]
