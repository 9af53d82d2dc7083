"""Measuring acceptance on tiny pairs, and what a load makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dyspec_edge.bench.sequoia_fit import fit_acceptance
from dyspec_edge.decode.policy.sequoia import WIDTH, SequoiaPolicy
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine import Engine
from dyspec_edge.errors import DyspecError, OptionError
from tests.conftest import TinyPair
from tests.engines import tiny_config

PROMPTS = ["Once upon a time", "Write a haiku."]
COLD = SamplingParams(temperature=0.0, seed=1)


@pytest.mark.parametrize("verify", ["match", "residual"])
def test_an_equal_draft_s_first_child_is_always_accepted(tiny_equal: TinyPair, verify: str) -> None:
    config = tiny_config(*tiny_equal, verify=verify)
    uncut = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, seed=1)
    (fit,) = fit_acceptance(config, PROMPTS, temperatures=[0.0], sampling=uncut, max_tokens=20)
    assert fit.rates == (1.0, *[0.0] * (WIDTH - 1))
    assert fit.num_steps == 20, "two tokens a step, of two replies"


def test_a_good_draft_s_children_are_accepted_in_their_order(tiny_pair: TinyPair) -> None:
    heard: list[tuple[str, float]] = []
    fits = fit_acceptance(
        tiny_config(*tiny_pair),
        PROMPTS,
        temperatures=[0.0, 1.0],
        max_tokens=60,
        on_progress=lambda what, done: heard.append((what, done)),
    )
    assert [fit.temperature for fit in fits] == [0.0, 1.0]
    for fit in fits:
        assert fit.num_steps >= 60
        assert 0.5 < fit.rates[0] < 1
        assert fit.rates[0] > fit.rates[1] > sum(fit.rates[8:])
        assert sum(fit.rates) < 1 + 1e-9
    measured = [done for what, done in heard if what == "measuring acceptance"]
    assert measured == sorted(measured)
    assert measured[-1] == 1


def test_a_load_takes_what_was_measured(
    tiny_pair: TinyPair, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
    config = tiny_config(*tiny_pair, policy="sequoia:12")
    with Engine.load(config) as engine:
        assert any("fit-sequoia" in notice for notice in engine.notices)
        wanted = engine.generate(PROMPTS[0], sampling=COLD, max_tokens=30).tokens
    (fit,) = fit_acceptance(config, PROMPTS, temperatures=[0.0], max_tokens=40)
    with Engine.load(config) as engine:
        policy = engine.conversation.policy
        assert isinstance(policy, SequoiaPolicy)
        assert policy.fits == (fit,)
        assert any("measured at temperature 0" in notice for notice in engine.notices)
        reply = engine.generate(PROMPTS[0], sampling=COLD, max_tokens=30)
    assert reply.tokens == wanted
    assert reply.stats.accepted_tokens > 0
    with Engine.load(tiny_config(*tiny_pair, policy="sequoia:12", verify="residual")) as engine:
        assert any("fit-sequoia" in notice for notice in engine.notices), "rates are a verifier's"


def test_auto_measures_prices(tiny_pair: TinyPair) -> None:
    with Engine.load(tiny_config(*tiny_pair, policy="sequoia:auto")) as engine:
        assert any("policy sequoia:auto: " in notice for notice in engine.notices)
        plain = engine.generate(PROMPTS[0], sampling=COLD, max_tokens=30)
        assert plain.stats.policy == "sequoia:auto"
        assert plain.stats.plain_seconds_per_token is not None
    with Engine.load(tiny_config(*tiny_pair, policy="none")) as engine:
        assert engine.generate(PROMPTS[0], sampling=COLD, max_tokens=30).tokens == plain.tokens


def test_what_cannot_be_measured(
    tiny_pair: TinyPair, tiny_adversarial: TinyPair, tiny_recurrent: Path
) -> None:
    config = tiny_config(*tiny_pair)
    with pytest.raises(OptionError, match="a prompt and a temperature"):
        fit_acceptance(config, [])
    with pytest.raises(OptionError, match="a prompt and a temperature"):
        fit_acceptance(config, PROMPTS, temperatures=[])
    with pytest.raises(OptionError, match="needs a draft"):
        fit_acceptance(tiny_config(tiny_pair.target), PROMPTS)
    with pytest.raises(DyspecError, match="recurrent"):
        fit_acceptance(tiny_config(tiny_recurrent, tiny_pair.draft), PROMPTS)
    with pytest.raises(DyspecError, match="no drafted token was accepted"):
        fit_acceptance(tiny_config(*tiny_adversarial), PROMPTS, max_tokens=8)
