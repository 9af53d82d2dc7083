"""What a real draft says, remembered for every context that was ever asked about.

An SQLite file maps a context (its token ids, hashed) to the 64 likeliest ids and their logits,
float16 below the largest.  What is not in it, on the recorded path or off it, is evaluated by the
draft and added: a second policy or another curve mostly finds what it asks for.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.replay.simulation import CAPACITY, Candidates, Nodes
from dyspec_edge import llama, native
from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.tree import NUM_CANDIDATES, TokenTree
from dyspec_edge.errors import DyspecError

NUM_SEQUENCES = 64
"""Branches of the largest tree that is replayed."""

NUM_OUTPUTS = 128

_TABLES = """
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS candidates (context BLOB PRIMARY KEY, ids BLOB, logits BLOB)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS draft (only INTEGER PRIMARY KEY, name TEXT);
"""


class DraftModel:
    """A real draft that evaluates nodes of a tree, whichever it is asked for.

    Args:
        path: the draft's file.
        num_ctx: tokens of the longest text.
        vocab_limit: ids at or above it are never drafted.
    """

    def __init__(self, path: Path, *, num_ctx: int, num_threads: int, vocab_limit: int) -> None:
        self.name = path.name
        self._model = llama.Model(path)
        context = llama.Context(
            self._model,
            num_ctx=num_ctx + CAPACITY,
            num_sequences=NUM_SEQUENCES,
            num_outputs=NUM_OUTPUTS,
            num_threads=num_threads,
        )
        self._cache = Cache(context, CAPACITY)
        self._vocab_limit = min(vocab_limit, self._model.num_vocab)
        self._text: Sequence[int] = ()
        self._evaluated: set[int] = set()

    def start_step(self, text: Sequence[int]) -> None:
        """Take the tokens before the root."""
        self._text = text
        self._evaluated.clear()

    def evaluate(self, tree: TokenTree, nodes: Nodes) -> tuple[Nodes, Candidates]:
        """Evaluate `nodes` and those of their ancestors that were not evaluated in this step.

        Returns:
            The nodes that were evaluated, and their candidates.
        """
        unread: Sequence[int] = ()
        if not self._evaluated:
            seen = self._cache.rewind(common_prefix(self._cache.tokens, self._text))
            unread = self._text[seen:]
        wanted = {up for node in nodes.tolist() for up in tree.path(node)} - self._evaluated
        batch = np.array(sorted(wanted), np.int32)
        self._cache.evaluate(tree, batch, unread)
        self._evaluated |= wanted
        ids = np.empty((len(batch), NUM_CANDIDATES), np.int32)
        logits = np.empty((len(batch), NUM_CANDIDATES), np.float32)
        total = np.empty(len(batch), np.float32)
        rows = self._cache.rows[batch]
        native.topk(rows, self._vocab_limit, NUM_CANDIDATES, ids, logits, total)
        return batch, (ids, logits)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep what was evaluated of the accepted path."""
        if self._evaluated:
            self._cache.commit(tree, path)

    def close(self) -> None:
        """Free the model.  Idempotent."""
        self._cache.close()
        self._model.close()


class Distributions:
    """A `Source`: remembered distributions, and a draft for the others.

    Args:
        path: the SQLite file; it is made if need be.
        draft: None refuses contexts that are not remembered.

    Attributes:
        num_evaluated: contexts that the draft had to evaluate.

    Raises:
        DyspecError: the file is none of these, or of another draft.
    """

    def __init__(self, path: Path, draft: DraftModel | None) -> None:
        self._path = path
        self._draft = draft
        self.num_evaluated = 0
        self._text_hash = hashlib.blake2b(digest_size=16)
        self._file = sqlite3.connect(path, isolation_level=None)
        try:
            self._file.executescript(_TABLES)
            if draft is not None:
                self._file.execute("INSERT OR IGNORE INTO draft VALUES (0, ?)", (draft.name,))
            row = self._file.execute("SELECT name FROM draft").fetchone()
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise DyspecError(f"{path}: no file of remembered distributions ({error})") from error
        if draft is not None and row[0] != draft.name:
            self._file.close()
            raise DyspecError(
                f"{path} remembers the draft {row[0]}, not {draft.name}; choose another file"
            )

    def start_step(self, text: Sequence[int]) -> None:
        """Take the tokens before the root."""
        self._text_hash = hashlib.blake2b(np.asarray(text, np.int32).tobytes(), digest_size=16)
        if self._draft is not None:
            self._draft.start_step(text)

    def candidates(self, tree: TokenTree, nodes: Nodes) -> Candidates:
        """As `Source.candidates`.

        Raises:
            DyspecError: a context is not remembered, and there is no draft.
        """
        found = [self._remembered(tree, node) for node in nodes.tolist()]
        missing = [i for i, row in enumerate(found) if row is None]
        if missing:
            self._evaluate(tree, nodes[missing])
            found = [self._remembered(tree, node) for node in nodes.tolist()]
        ids = np.stack([np.frombuffer(row[0], np.int32) for row in found if row is not None])
        logits = np.stack([np.frombuffer(row[1], np.float16) for row in found if row is not None])
        return ids, logits.astype(np.float32)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Tell the draft which path was accepted."""
        if self._draft is not None:
            self._draft.commit(tree, path)

    def close(self) -> None:
        """Close file and draft."""
        self._file.close()
        if self._draft is not None:
            self._draft.close()

    def _key(self, tree: TokenTree, node: int) -> bytes:
        text = self._text_hash.copy()
        text.update(tree.token[tree.path(node)].tobytes())
        return text.digest()

    def _remembered(self, tree: TokenTree, node: int) -> tuple[bytes, bytes] | None:
        query = "SELECT ids, logits FROM candidates WHERE context = ?"
        row: tuple[bytes, bytes] | None = self._file.execute(
            query, (self._key(tree, node),)
        ).fetchone()
        return row

    def _evaluate(self, tree: TokenTree, nodes: Nodes) -> None:
        if self._draft is None:
            raise DyspecError(
                f"{self._path} does not hold all contexts that were asked for; "
                "name the draft with -md, and it will be asked"
            )
        batch, (ids, logits) = self._draft.evaluate(tree, nodes)
        relative = (logits - logits.max(axis=1, keepdims=True)).astype(np.float16)
        for row, node in enumerate(batch.tolist()):
            values = self._key(tree, node), ids[row].tobytes(), relative[row].tobytes()
            self._file.execute("INSERT OR IGNORE INTO candidates VALUES (?, ?, ?)", values)
        self.num_evaluated += len(batch)
