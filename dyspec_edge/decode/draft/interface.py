"""What stands between the step loop and whatever proposes tokens: four verbs.

    read      catch up with the text
    propose   candidates for nodes of the tree, in one pass
    commit    keep what was read of the accepted path, drop the rest of the tree
    rewind    keep no more than the beginning of the text

and, for a head, which goes on from the target's own thoughts, a fifth one:

    hear      take the hidden states of what the target has just read

Texts, trees and paths are the target's: its token ids, its positions.  What they are for the
drafter (the same ids, those of another vocabulary) is the drafter's business
alone, as is what it keeps of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.tree import TokenTree


class DraftTotals(NamedTuple):
    """What a drafter has spent since it was made, reading without proposing apart.

    Attributes:
        pass_seconds: of passes over trees.
        rows_seconds: of reducing rows of logits to candidates.
        num_passes: passes over trees.
        num_rows: their rows, padding included.
    """

    pass_seconds: float = 0.0
    rows_seconds: float = 0.0
    num_passes: int = 0
    num_rows: int = 0


class Drafter(ABC):
    """A source of candidates.  What is not abstract has a default for those that read nothing.

    Attributes:
        ranking: the rule of the present reply, once there is one.
        temperature: of the soft-max over candidates; None for the verifier's own choice.
        longest_read: of more unread tokens than that only the first and the last ones are read;
            None for all.
        hears: whether it wants hidden states; the target's passes leave them then.
    """

    longest_read: int | None = None
    ranking: Ranking | None = None
    temperature: float | None = None
    hears: bool = False

    @property
    def shared_cache(self) -> Cache | None:
        """The cache that holds the tree node for node, if there is one.

        Native code may commit the accepted path there together with the target's; `commit`, which
        follows, then only takes note.
        """
        return None

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        """Take a new text and the rule for its reply; reads nothing yet.

        Args:
            text: the tokens before the root.
        """
        self.ranking = ranking

    @property
    def num_behind(self) -> int:
        """Tokens before the root that the next pass would have to read first."""
        return 0

    def read(self, *, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read them now.

        Args:
            on_progress: (tokens read, tokens to read).
        """
        return

    def start_step(self, text: Sequence[int], index: int) -> None:
        """Take the tokens before the root, and the reply index of the token below the root."""
        return

    @abstractmethod
    def propose(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        """Write the candidates of `nodes` into the tree, in one pass.

        Args:
            nodes: int32[n]; the root comes first in the first call of a step.
        """

    def proposer(self, tree: TokenTree) -> native.Proposer:
        """`propose` for native code that grows the tree."""
        return native.Proposer.calling(lambda nodes: self.propose(tree, nodes))

    def sample_children(self, tree: TokenTree, node: int, count: int) -> npt.NDArray[np.int32]:
        """Draw candidates of a node with replacement; where ranks decide, take the first.

        Returns:
            Their places int32[n] among the candidates, in the order of drawing, n at most `count`.
        """
        return np.arange(min(count, tree.num_candidates[node]), dtype=np.int32)

    def passes(self) -> Sequence[tuple[int, float]]:
        """Rows and seconds of this step's passes so far."""
        return ()

    def time_pass(self, num_rows: int) -> float:
        """Seconds of a pass over `num_rows` rows that leaves nothing; 0 where there are none."""
        return 0.0

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep what was read of the accepted path, drop the rest of the tree.

        Args:
            path: the accepted nodes, the root first.
        """
        return

    def hear(self, first: int, tokens: Sequence[int], states: npt.NDArray[np.float32]) -> None:
        """Take note of what the target has read, and what it made of it.

        Args:
            first: position of the first of `tokens` in the text.
            states: float32[n, num_embd], the target's hidden state at each of them; valid until its
                next pass.
        """
        return

    def rewind(self, length: int) -> None:
        """Keep nothing beyond the first `length` tokens of the text, and no tree."""
        return

    @property
    def read_seconds(self) -> float:
        """Running total of reading tokens without proposing anything."""
        return 0.0

    @property
    def totals(self) -> DraftTotals:
        """What was spent so far."""
        return DraftTotals()

    def poll(self, flag: native.AbortFlag) -> None:
        """From now on stop a running pass as soon as possible once `flag` is set."""
        return

    def close(self) -> None:
        """Free what the drafter holds.  Idempotent."""
        return


class NoDrafter(Drafter):
    """Stands where there is no draft: it proposes nothing."""

    def propose(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        """Find no candidates."""
        tree.num_candidates[nodes] = 0
