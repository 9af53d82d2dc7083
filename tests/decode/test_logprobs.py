"""Log-probabilities of emitted tokens: the target's own, whatever is drafted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dyspec_edge.decode import logprobs
from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import PlainReference, opened_decoder

POLICIES = ["none", "chain:4", "specinfer:4x2x1", "sequoia:16", "dyspec:16", "priced"]
PROMPT = [1, *np.random.default_rng(5).choice(tiny.VOCABULARY.normal, 15).tolist()]


@pytest.fixture(scope="module")
def reference(tiny_pair: TinyPair) -> Iterator[PlainReference]:
    found = PlainReference(tiny_pair.target)
    yield found
    found.close()


def said(
    decoder: Conversation, params: SamplingParams, num_top: int | None
) -> tuple[list[TokenLogprobs], list[int], int]:
    """Log-probabilities and tokens of a reply, and the nodes that stood beside its path."""
    found, tokens, beside = list[TokenLogprobs](), list[int](), 0
    sampler = Sampler(decoder.target.context.model, params, 3, PROMPT)
    decoder.begin(PROMPT, sampler)
    for step in decoder.generate(40, num_logprobs=num_top):
        assert (step.logprobs is None) == (num_top is None)
        found += step.logprobs or ()
        tokens += step.tokens
        beside += 0 if step.is_chain else len(step.nodes) - len(step.path)
    sampler.close()
    return found, tokens, beside


@pytest.mark.parametrize("verify", ["match", "residual"])
@pytest.mark.parametrize("policy", POLICIES)
def test_they_are_those_of_the_bare_logits(
    tiny_pair: TinyPair, reference: PlainReference, policy: str, verify: str
) -> None:
    if verify == "residual" and policy in ("none", "priced"):
        pytest.skip("runs under match")
    beside = 0
    with opened_decoder(tiny_pair, policy, verify=verify) as decoder:
        for params in (
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=0.7, top_k=3, logit_bias=((300, 4.0),)),
            SamplingParams(temperature=1.0, repeat_penalty=1.4),
        ):
            found, tokens, more = said(decoder, params, 5)
            beside += more
            assert [one.token for one in found] == tokens
            rows = reference.logits([*PROMPT, *tokens])[len(PROMPT) - 1 : -1].astype(np.float64)
            rows -= np.log(np.exp(rows).sum(1, keepdims=True))
            for one, row in zip(found, rows, strict=True):
                assert one.logprob == pytest.approx(row[one.token], abs=1e-3)
                ids, values = zip(*one.top, strict=True)
                assert np.allclose(values, np.sort(row)[::-1][:5], atol=1e-3)
                assert np.allclose(row[list(ids)], values, atol=1e-3)
                assert np.exp(values).sum() <= 1.0 + 1e-6
    assert beside > 20 or policy in ("none", "chain:4")


def test_nothing_is_computed_where_nobody_asks(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_decoder(tiny_pair, "dyspec:16") as decoder:
        only_own, tokens, _ = said(decoder, SamplingParams(), 0)
        assert [(one.token, one.top) for one in only_own] == [(token, ()) for token in tokens]
        monkeypatch.setattr(logprobs, "of_path", None)
        assert said(decoder, SamplingParams(), None)[1] == tokens
