"""Candidates from a small model: it evaluates nodes of the tree, a batch at a time.

The drafter keeps its own cache across steps and re-evaluates nothing that it has seen; what the
target emitted in the meantime is read together with the next root.  Of a long text it reads an
excerpt, and so it does of one that is larger than its context.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dyspec_edge import native
from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.draft.excerpt import Excerpt
from dyspec_edge.decode.draft.interface import Drafter, DraftTotals
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree
from dyspec_edge.native.library import FIRST_BAD_ROW
from dyspec_edge.native.rows import not_finite

_PROPOSE = native.address_of(native.lib.dyspec_drafter_propose)

HEAD = 0.75
"""Of the tokens that are read of a longer stretch, so many are its first ones."""


class ModelDrafter(Drafter):
    """Drafts with a model.

    Args:
        cache: the draft's; closed by `close`.
        num_ctx: usable tokens of it, the tree apart.
        vocab_limit: ids at or above it are never drafted.
        excluded: further ids that must not be drafted, because the target calls them otherwise.
        substitute: what the draft reads in place of a token that its vocabulary lacks.
        temperature: of the draft's soft-max; None for the verifier's own choice.

    Attributes:
        ranking: the rule of the present reply.
        longest_read: of more unread tokens than that only the first and the last ones are read;
            None for all.
        excerpt: of the text, what the cache holds and is to hold.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        num_ctx: int,
        vocab_limit: int,
        excluded: Sequence[int] = (),
        substitute: int = 0,
        temperature: float | None = None,
    ) -> None:
        self.cache = cache
        self.temperature = temperature
        self.ranking: Ranking | None = None
        self.longest_read: int | None = None
        self._num_ctx = num_ctx
        self._vocab_limit = min(vocab_limit, cache.context.model.num_vocab)
        self._substitute = substitute
        never = np.unique(np.asarray(excluded, np.int32))
        address = native.lib.dyspec_drafter_create(
            cache.handle.address,
            self._vocab_limit,
            native.pointer(never, np.int32, len(never)),
            len(never),
        )
        self._handle = native.Handle(address, native.lib.dyspec_drafter_free, uses=[cache.handle])
        self._pass_rows = (ctypes.c_int32 * cache.tree_capacity)()
        self._pass_seconds = (ctypes.c_double * cache.tree_capacity)()
        self._step: tuple[TokenTree, Ranking] | None = None  # what native code works on
        self._text: Sequence[int] = ()
        self._index = 0
        self.excerpt = Excerpt()
        self._unread: list[int] = []  # what the next pass reads before the root

    @property
    def shared_cache(self) -> Cache | None:
        """The draft's own: its tokens are the target's."""
        return self.cache

    def begin(self, text: Sequence[int], ranking: Ranking) -> None:
        """Take a new text, of which the cache keeps what it has in common with it."""
        self.ranking = ranking
        self._text = text
        self._keep(common_prefix(self.cache.tokens, self._known(self.excerpt.of(text))))

    def read(self, *, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read the tokens before the root."""
        self._choose_excerpt()
        self.cache.prefill(self._known(self.excerpt.of(self._text)), on_progress=on_progress)

    @property
    def num_behind(self) -> int:
        """Tokens before the root that the next pass would have to read first."""
        num_kept, head, tail = self._parts()
        return min(head + tail, self.excerpt.length(len(self._text)) - num_kept)

    @property
    def read_seconds(self) -> float:
        """Running total of reading tokens without evaluating any node."""
        return self.cache.prefill_seconds

    @property
    def totals(self) -> DraftTotals:
        """What the passes have cost so far."""
        cache = self.cache
        rows_seconds = native.lib.dyspec_drafter_rows_seconds(self._handle.address)
        return DraftTotals(cache.decode_seconds, rows_seconds, cache.num_passes, cache.num_rows)

    def attach_backend_sampler(self, *, commit: str | None = None) -> bool:
        """Let candidates be found in the pass, by samplers where the logits are.

        Args:
            commit: of the llama.cpp that is loaded; by default what it says of itself.

        Returns:
            Whether that is possible; if not, the host goes on finding them.
        """
        return self.cache.context.attach_backend_sampler(
            num_vocab=self._vocab_limit, k=NUM_CANDIDATES, commit=commit
        )

    def translate(self, target_ids: npt.NDArray[np.int32], own_ids: npt.NDArray[np.int32]) -> None:
        """Read and propose trees that hold another vocabulary's ids.

        Args:
            target_ids: int32[n], the tree's id by the draft's; -1 is never drafted.
            own_ids: int32[m], the draft's id by the tree's; -1 has no candidates below it.
        """
        native.lib.dyspec_drafter_translate(
            self._handle.address,
            native.pointer(target_ids, np.int32, len(target_ids)),
            len(target_ids),
            native.pointer(own_ids, np.int32, len(own_ids)),
            len(own_ids),
        )

    def read_root_as(self, own_id: int) -> None:
        """What a translated tree's root is in the draft's own ids, until it is said anew."""
        native.lib.dyspec_drafter_set_root(self._handle.address, own_id)

    def detach_backend_sampler(self) -> None:
        """Let candidates be found in logits that come to the host, as at first."""
        self.cache.context.detach_backend_sampler()

    def time_pass(self, num_rows: int) -> float:
        """Seconds of one pass over `num_rows` rows with the finding of their candidates.

        Raises:
            DyspecError: nothing can be chosen from a row.
        """
        seconds = self.cache.time_pass(num_rows)
        context, rows = self.cache.context, np.arange(num_rows, dtype=np.uint64)
        ids = np.empty((num_rows, NUM_CANDIDATES), np.int32)
        logits, lse = np.empty(ids.shape, np.float32), np.empty(num_rows, np.float32)
        started = time.perf_counter()
        if context.backend_sampler is not None:
            context.backend_sampler.read(rows.astype(np.int32), ids, logits, lse)
        else:
            row_bytes = np.uint64(4 * context.model.num_vocab)
            addresses = np.uint64(context.logits_address()) + row_bytes * rows
            native.topk(addresses, self._vocab_limit, NUM_CANDIDATES, ids, logits, lse)
        return seconds + time.perf_counter() - started

    def start_step(self, text: Sequence[int], index: int) -> None:
        """Take the tokens before the root, and the reply index of the token below the root."""
        self._text, self._index = text, index
        self._step = None

    def propose(self, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        """Write the candidates of `nodes` into the tree, in one pass.

        Args:
            nodes: int32[n]; the root comes first in the first call of a step.

        Raises:
            Cancelled, DecodeError: the draft's cache stays valid.
        """
        self._work_on(tree)
        address = native.pointer(nodes, np.int32, len(nodes))
        self._check(native.lib.dyspec_drafter_propose(self._handle.address, address, len(nodes)))

    def proposer(self, tree: TokenTree) -> native.Proposer:
        """`propose` for native code, in this step."""
        self._work_on(tree)
        return native.Proposer(_PROPOSE, self._handle.address, self._check)

    def passes(self) -> list[tuple[int, float]]:
        """Rows and seconds of this step's passes."""
        if self._step is None:
            return []
        rows, seconds = self._pass_rows, self._pass_seconds
        n = native.lib.dyspec_drafter_passes(self._handle.address, rows, seconds, len(rows))
        return list(zip(rows[:n], seconds[:n], strict=True))

    def sample_children(self, tree: TokenTree, node: int, count: int) -> npt.NDArray[np.int32]:
        """Draw candidates of a node with replacement (Ranking.sample_children)."""
        assert self.ranking is not None, "begin() comes first"
        probs = tree.candidate_probs[node, : tree.num_candidates[node]]
        return self.ranking.sample_children(probs, self._index + int(tree.depth[node]), node, count)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep what was read of the accepted path, or take note of what native code has kept."""
        self.cache.commit(tree, path)

    def rewind(self, length: int) -> None:
        """Keep nothing beyond the first `length` tokens of the text."""
        self._keep(min(self.excerpt.length(length), len(self.cache.tokens)))

    def poll(self, flag: native.AbortFlag) -> None:
        """From now on stop a running pass as soon as possible once `flag` is set."""
        self.cache.context.poll(flag)

    def close(self) -> None:
        """Give the cells back to the draft's context.  Idempotent."""
        self._handle.close()
        self.cache.close()

    def _work_on(self, tree: TokenTree) -> None:
        """Let native code begin with this step's tree, if it has not."""
        assert self.ranking is not None, "begin() comes first"
        if self._step is not None:
            assert self._step[0] is tree, "one tree a step"
            return
        self._unread = self._take_unread()
        unread = np.array(self._unread, np.int32)
        grammar, sampler = self.ranking.grammar, self.cache.context.backend_sampler
        native.lib.dyspec_drafter_set_backend_sampler(
            self._handle.address,  # in every step: it is the context's, so others may detach it
            sampler.handle.address if sampler is not None else None,
        )
        native.lib.dyspec_drafter_start_step(
            self._handle.address,
            tree.struct,
            self.ranking.handle.address,
            grammar.handle.address if grammar is not None else None,
            native.pointer(unread, np.int32, len(unread)),
            len(unread),
            self._index,
        )
        self._step = tree, self.ranking

    def _take_unread(self) -> list[int]:
        """What the first pass of a step reads before the root."""
        self._choose_excerpt()
        return self._known(self.excerpt.of(self._text, len(self.cache.tokens)))

    def _check(self, code: int) -> None:
        assert self._step is not None
        if self._unread:  # the first pass has read it, as far as it came
            self.cache.note_committed(self._unread)
            self._unread = []
        if code <= FIRST_BAD_ROW:
            what = f"row {FIRST_BAD_ROW - code} of the draft's logits"
            raise not_finite(what, on_backend=self.cache.context.backend_sampler is not None)
        if code < 0:
            self.cache.check(code, self._step[0].size)

    def _keep(self, num_tokens: int) -> None:
        """Keep the first tokens of the cache, and the gaps between them."""
        self.excerpt.keep(self.cache.rewind(num_tokens))

    def _choose_excerpt(self) -> None:
        """Leave out what there is no room for, and what is not to be read."""
        self.excerpt.keep(len(self.cache.tokens))
        num_kept, head, tail = self._parts()
        self._keep(num_kept)
        surplus = self.excerpt.length(len(self._text)) - num_kept - head - tail
        if surplus > 0:
            self.excerpt.skip(num_kept + head, surplus)

    def _parts(self) -> tuple[int, int, int]:
        """Tokens of the cache that stay, and, at most, first and last ones of what follows."""
        num_read, total = len(self.cache.tokens), self.excerpt.length(len(self._text))
        longest = total if self.longest_read is None else self.longest_read
        if min(num_read + longest, total) < self._num_ctx:
            head = int(HEAD * longest)
            return num_read, head, longest - head
        # Half a context, so that there is room again for a while.
        first = self._num_ctx // 8
        num_kept = min(num_read, first)
        return num_kept, first - num_kept, min(longest, self._num_ctx // 2)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """`tokens`, with the substitute for those that the draft's vocabulary lacks."""
        limit = self.cache.context.model.num_vocab
        return [t if t < limit else self._substitute for t in tokens]
