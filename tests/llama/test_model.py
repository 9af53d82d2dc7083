"""Models that are closed before what was made over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.llama import Model
from tests.decoding import open_context


def test_closing_a_model_closes_contexts_and_grammars_first(tiny_target: Path) -> None:
    model = Model(tiny_target)
    cache = Cache(open_context(model), 4)
    cache.prefill([1, 5, 6])
    sampler = Sampler(model, SamplingParams(grammar='root ::= "a"'), 1)
    assert sampler.grammar is not None
    model.close()
    assert not cache.handle.is_open
    with pytest.raises(ValueError, match="closed"):
        sampler.grammar.num_following([5])
    with pytest.raises(ValueError, match="closed"):
        _ = sampler.handle.address
    for closed in (sampler, cache, cache.context, model):
        closed.close()


def test_a_closed_model_says_so(tiny_target: Path) -> None:
    model = Model(tiny_target, vocab_only=True)
    model.close()
    with pytest.raises(ValueError, match="used after it was closed"):
        model.tokenize("the tree", add_special=True, parse_special=True)
    with pytest.raises(ValueError, match="used after it was closed"):
        model.piece(5)
