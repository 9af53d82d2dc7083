"""Caches and decoders over tiny models, in the setting in which arithmetic is exact.

F32 caches, no flash attention, one thread: passes of different shapes then agree within 1e-3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import TARGET_SIZES, CostCurve
from dyspec_edge.decode.draft.head import HeadDrafter
from dyspec_edge.decode.draft.interface import Drafter
from dyspec_edge.decode.draft.layered_head import LayeredHeadDrafter
from dyspec_edge.decode.draft.model import ModelDrafter
from dyspec_edge.decode.live_curve import LiveCurve
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.policy import parse
from dyspec_edge.decode.prices import LivePrices, Prices
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.decode.verify import MatchVerifier, Verifier
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.llama import Context, Model
from tests import batches
from tests.conftest import TinyPair

Rows = npt.NDArray[np.float32]

CHEAP_ROWS = CostCurve((1, 64), (1.0, 1.1)), CostCurve((1, 16), (0.005, 0.006))
"""Prices at which `priced` grows large trees: of a streamed target and a small draft."""


def live_prices(target: CostCurve, draft: CostCurve | None = None) -> LivePrices:
    """Prices as they were just measured, while nothing else ran."""

    def sure(curve: CostCurve) -> CostCurve:
        return replace(curve, sure=frozenset(TARGET_SIZES))

    return LivePrices(Prices(sure(target), sure(draft) if draft is not None else None))


def steady_prices(target: CostCurve, draft: CostCurve | None = None) -> LivePrices:
    """The same, whatever the passes of tiny models really cost."""
    prices = live_prices(target, draft)
    prices.target.__class__ = SteadyCurve
    if prices.draft is not None:
        prices.draft.__class__ = SteadyCurve
    return prices


class SteadyCurve(LiveCurve):
    """Learns nothing, and asks nothing."""

    asks_for_one_row = False

    def observe(self, _num_rows: int, _seconds: float) -> None:
        """Take no notice."""


def open_context(
    model: Model,
    *,
    num_ctx: int = 512,
    num_sequences: int = 1,
    num_outputs: int = 64,
    num_snapshots: int | None = None,
    head_layer: int | None = None,
    gives_states: bool = False,
) -> Context:
    """A context whose logits do not depend on the shape of a batch."""
    return Context(
        model,
        num_ctx=num_ctx,
        num_sequences=num_sequences,
        num_outputs=num_outputs,
        num_threads=1,
        flash_attn="off",
        type_k="f32",
        type_v="f32",
        num_snapshots=num_snapshots,
        head_layer=head_layer,
        gives_states=gives_states,
    )


@contextmanager
def opened_cache(
    path: Path,
    *,
    num_ctx: int = 512,
    num_sequences: int = 1,
    capacity: int = 64,
    num_snapshots: int | None = None,
) -> Iterator[Cache]:
    """A cache for trees of `capacity` nodes."""
    with Model(path) as model:
        context = open_context(
            model,
            num_ctx=num_ctx,
            num_sequences=num_sequences,
            num_outputs=capacity,
            num_snapshots=num_snapshots,
        )
        cache = Cache(context, capacity)
        yield cache
        cache.close()
        context.close()


class PlainReference:
    """Logits of a text from one fresh causal pass: no trees, no sharing, nothing reused."""

    def __init__(self, path: Path, num_ctx: int = 512) -> None:
        self._model = Model(path)
        self._context = open_context(self._model, num_ctx=num_ctx, num_outputs=num_ctx)
        self._batch = batches.Batch(self._context.max_rows)

    def logits(self, tokens: Sequence[int]) -> Rows:
        """float32[n, num_vocab], the logits after each of `tokens`."""
        batches.clear(self._context)
        self._batch.clear()
        self._batch.add(tokens, 0, output=True)
        self._batch.decode(self._context)
        base, num_vocab = self._context.logits_address(), self._model.num_vocab
        return np.stack(
            [self._context.row_view(base + 4 * num_vocab * i) for i in range(len(tokens))]
        )

    def close(self) -> None:
        self._context.close()
        self._model.close()


@contextmanager
def opened_decoder(
    pair: TinyPair,
    policy: str,
    *,
    verify: str = "match",
    num_ctx: int = 768,
    num_ctx_draft: int | None = None,
    draft_temperature: float | None = None,
    vocab_limit: int | None = None,
    excluded: Sequence[int] = (),
    end_tokens: npt.NDArray[np.int32] | None = None,
    with_draft: bool = True,
    device_sampling: bool = False,
    gpu_layers: int = 0,
    prices: tuple[CostCurve, CostCurve] = CHEAP_ROWS,
    num_snapshots: int | None = None,
    with_head: bool = False,
    is_draft_hybrid: bool = False,
) -> Iterator[Conversation]:
    """A decoder; "none" decodes plainly, "priced" at `prices` and perhaps without the draft.

    With `num_snapshots` trees are chains and the target is a hybrid, or the draft if
    `is_draft_hybrid`; `with_head` the target's own head is the draft.
    """
    with ExitStack() as stack:
        model = stack.enter_context(
            Model(pair.target, num_gpu_layers=gpu_layers, with_head=with_head)
        )
        ends = model.end_tokens if end_tokens is None else end_tokens
        chosen = parse(policy, ends)
        if num_snapshots is not None:
            chosen.narrow(num_snapshots)
        nodes, capacity = 1 + chosen.max_nodes, chosen.tree_capacity
        num_sequences = chosen.max_leaves
        if chosen.needs_prices:
            chosen.set_prices(steady_prices(prices[0], prices[1] if with_draft else None))

        def cache(of: Model, tokens: int, **options: Any) -> Cache:
            context = open_context(
                of,
                num_ctx=tokens + capacity,
                num_sequences=num_sequences,
                num_outputs=nodes,
                **options,
            )
            stack.callback(context.close)
            return Cache(context, capacity)

        drafter: Drafter | None = None
        if with_head and chosen.uses_draft:
            num_layers = inspect_file(pair.target).num_head_layers
            heads = [cache(model, num_ctx, head_layer=layer) for layer in range(num_layers)]
            if num_layers > 1:
                drafter = LayeredHeadDrafter(heads, num_ctx=num_ctx, vocab_limit=model.num_vocab)
            else:
                drafter = HeadDrafter(heads[0], num_ctx=num_ctx, vocab_limit=model.num_vocab)
        elif chosen.uses_draft and with_draft:
            draft_model = stack.enter_context(Model(pair.draft, num_gpu_layers=gpu_layers))
            drafter = own = ModelDrafter(
                cache(
                    draft_model,
                    num_ctx_draft or num_ctx,
                    num_snapshots=0 if is_draft_hybrid else None,
                ),
                num_ctx=num_ctx_draft or num_ctx,
                vocab_limit=vocab_limit or draft_model.num_vocab,
                excluded=excluded,
                temperature=draft_temperature,
            )
            assert not device_sampling or own.attach_backend_sampler()
        verifier: Verifier = MatchVerifier()
        if verify == "residual":
            verifier = chosen.residual_verifier()
        if inspect_file(pair.target, any_kind=True).state == "none":
            num_snapshots = None
        yield Conversation(
            cache(model, num_ctx, num_snapshots=num_snapshots, gives_states=with_head),
            ends,
            drafter=drafter,
            policy=chosen,
            verifier=verifier,
        )


def model_drafter(decoder: Conversation) -> ModelDrafter:
    """The drafter of a decoder that drafts with a model."""
    assert isinstance(decoder.drafter, ModelDrafter)
    return decoder.drafter


def steps(
    decoder: Conversation,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    max_tokens: int,
) -> Iterator[Step]:
    """The steps of one reply."""
    sampler = Sampler(decoder.target.context.model, params, seed, prompt)
    try:
        decoder.begin(prompt, sampler)
        yield from decoder.generate(max_tokens)
    finally:
        sampler.close()


def reply(
    decoder: Conversation,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    max_tokens: int,
) -> list[int]:
    """The tokens of one reply."""
    found = steps(decoder, prompt, params, seed=seed, max_tokens=max_tokens)
    return [token for step in found for token in step.tokens]


def evaluate_root(cache: Cache, token: int) -> Rows:
    """The logits after one more token, which is not committed; float32[num_vocab]."""
    tree = TokenTree(cache.tree_capacity, 1)
    tree.reset(token)
    cache.evaluate(tree, np.zeros(1, np.int32))
    row: Rows = cache.context.row_view(int(cache.rows[0])).copy()
    cache.rewind(len(cache.tokens))
    return row


def is_partial_refusal(step: Step) -> bool:
    """Some of what was drafted was accepted, and some was not."""
    return 0 < len(step.path) - 1 < step.num_drafted


@contextmanager
def aborted_after(decoder: Conversation, what: Any, where: str, num_calls: int) -> Iterator[None]:
    """Abort once, when the method `where` of `what` was called so often and once more."""
    method, left = getattr(what, where), count(num_calls, -1)

    def aborting(*args: Any) -> Any:
        found = method(*args)
        if next(left) == 0:
            decoder.abort()
        return found

    with patch.object(what, where, aborting):
        yield
