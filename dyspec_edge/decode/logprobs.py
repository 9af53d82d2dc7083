"""What the target thought of the tokens that were emitted: of its bare logits, at temperature 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyspec_edge import native
from dyspec_edge.decode.cache import Cache


class TokenLogprobs(NamedTuple):
    """One token as the target saw it, before the sampler chain and the grammar.

    Attributes:
        token: the id that was emitted.
        logprob: its natural logarithm of the probability; -inf for what has none.
        top: the most likely ids with theirs, the likeliest first, lower ids first among equals.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def of_path(
    target: Cache, nodes: Sequence[int], path: Sequence[int], tokens: Sequence[int], num_top: int
) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of the tokens of a step, from the rows of its pass.

    Args:
        target: whose last pass was over `nodes`.
        path, tokens: tokens[i] was drawn from the logits at path[i].
        num_top: most likely tokens to name.

    Raises:
        DyspecError: a row holds no finite value, or +inf.
    """
    context = target.context
    num_vocab = context.model.num_vocab
    place = {node: i for i, node in enumerate(nodes)}
    rows = np.array([place[node] for node in path], np.uint64) * np.uint64(4 * num_vocab)
    rows += np.uint64(context.logits_address())
    k = max(1, min(num_top, num_vocab))
    ids, logits = np.empty((len(path), k), np.int32), np.empty((len(path), k), np.float32)
    lse = np.empty(len(path), np.float32)
    native.topk(rows, num_vocab, k, ids, logits, lse)
    found = []
    for i, token in enumerate(tokens):
        own = context.row_view(int(rows[i])).item(token)
        likely = (logits[i] - lse[i])[:num_top].tolist()
        top = tuple(zip(ids[i, :num_top].tolist(), likely, strict=True))
        found.append(TokenLogprobs(token, own - lse.item(i), top))
    return tuple(found)
