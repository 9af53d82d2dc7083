"""Several conversations in the contexts of one pair: each says what it would say alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyspec_edge.decode import cost
from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.loop import Conversation, Step
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.sampling import Sampler, SamplingParams
from dyspec_edge.errors import Cancelled, DyspecError, OptionError
from dyspec_edge.load.loading import Loaded, load
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import CHEAP_ROWS, SteadyCurve, model_drafter
from tests.engines import tiny_config

POLICIES = [
    "none",
    "chain:6",
    "specinfer:3x2x1",
    "sequoia:12",
    "sequoia:auto",
    "dyspec:12",
    "dyspec-threshold:16",
    "priced",
]
RESIDUAL = ["chain:6", "specinfer:3x2x1", "sequoia:12", "dyspec:12"]
"""Policies that promise the same text for the same seed under `residual`."""

SETTINGS = [(temperature, seed) for temperature in (0.0, 0.7, 1.0) for seed in (1, 2)]
LENGTH = 40


def prompt(seed: int, length: int = 24) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, length).tolist()]


@pytest.fixture(autouse=True)
def _cheap_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices at which `priced` and `sequoia:auto` grow trees, whatever this machine measures."""

    def measure(_cache: Any, sizes: Sequence[int], *_report: Any, **_how: Any) -> CostCurve:
        return CHEAP_ROWS[1] if sizes == cost.DRAFT_SIZES else CHEAP_ROWS[0]

    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dyspec_edge.load.calibration.measure_curve", measure)
    monkeypatch.setattr("dyspec_edge.load.contexts.measure_curve", measure)
    monkeypatch.setattr("dyspec_edge.decode.prices.LiveCurve", SteadyCurve)


@contextmanager
def loaded(pair: Sequence[Path], **changes: Any) -> Iterator[Loaded]:
    """Room for two conversations."""
    values = {"num_ctx": 256, "num_conversations": 2, **changes}
    with closing(load(tiny_config(*pair, **values))) as found:
        yield found


class Reply:
    """One reply of a conversation, step by step."""

    def __init__(self, conversation: Conversation, text: list[int], params: SamplingParams) -> None:
        self.tokens: list[int] = []
        self.num_drafted = 0
        model = conversation.target.context.model
        assert params.seed is not None
        self._sampler = Sampler(model, params, params.seed, text)
        self._conversation = conversation
        self._text = text

    def steps(self, max_tokens: int = LENGTH) -> Iterator[Step]:
        with closing(self._sampler):
            self._conversation.begin(self._text, self._sampler)
            for step in self._conversation.generate(max_tokens):
                self.tokens += step.tokens
                self.num_drafted += step.num_drafted
                yield step


def in_turns(*replies: Reply) -> None:
    """A step of each, until all have ended."""
    waiting = [reply.steps() for reply in replies]
    while waiting:
        waiting = [steps for steps in waiting if next(steps, None) is not None]


def params_of(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed)


@pytest.fixture(scope="module")
def alone(tiny_pair: TinyPair) -> Any:
    """`alone(policy, verify)(prompt seed, temperature, seed)`: the text of an engine of its own."""

    @cache
    def of(policy: str, verify: str) -> Any:
        @cache
        def reply(which: int, temperature: float, seed: int) -> list[int]:
            with loaded(tiny_pair, policy=policy, verify=verify, num_conversations=1) as own:
                found = Reply(own.conversation(), prompt(which), params_of(temperature, seed))
                in_turns(found)
                return found.tokens

        return reply

    return of


@pytest.mark.parametrize(
    ("policy", "verify"),
    [*((p, "match") for p in POLICIES), *((p, "residual") for p in RESIDUAL)],
)
def test_two_conversations_say_what_two_engines_say(
    tiny_pair: TinyPair, alone: Any, policy: str, verify: str
) -> None:
    expected = alone(policy if verify == "residual" else "none", verify)
    with loaded(tiny_pair, policy=policy, verify=verify) as shared:
        first, second = shared.conversation(), shared.conversation()
        assert first.target.context is second.target.context
        num_drafted = [0, 0]
        for temperature, seed in SETTINGS:
            params = params_of(temperature, seed)
            one, other = Reply(first, prompt(1), params), Reply(second, prompt(2), params)
            list(one.steps(5))  # so that they stand at different places
            one = Reply(first, prompt(1), params)
            in_turns(one, other)
            assert one.tokens == expected(1, temperature, seed)
            assert other.tokens == expected(2, temperature, seed)
            assert first.target.tokens == [*prompt(1), *one.tokens][:-1]
            assert second.target.tokens == [*prompt(2), *other.tokens][:-1]
            num_drafted = [num_drafted[0] + one.num_drafted, num_drafted[1] + other.num_drafted]
        assert all((drafted > 40) == (policy != "none") for drafted in num_drafted)


@pytest.mark.parametrize("policy", ["none", "dyspec:12", "priced"])
def test_one_closes_while_the_other_goes_on(tiny_pair: TinyPair, alone: Any, policy: str) -> None:
    expected, params = alone("none", "match"), params_of(0.7, 1)
    with loaded(tiny_pair, policy=policy) as shared:
        first, second = shared.conversation(), shared.conversation()
        one, other = Reply(first, prompt(1), params), Reply(second, prompt(2), params)
        steps, rest = one.steps(), other.steps()
        for _ in range(2):
            next(steps), next(rest)
        steps.close()  # type: ignore[attr-defined]
        first.close()
        first.close()
        third = shared.conversation()  # in the block that has come free
        again = Reply(third, prompt(1), params)
        more = again.steps()
        for _ in zip(rest, more, strict=False):
            pass
        for _ in (*rest, *more):
            pass
        assert other.tokens == expected(2, 0.7, 1)
        assert again.tokens == expected(1, 0.7, 1)


@pytest.mark.parametrize("policy", ["none", "dyspec:12"])
@pytest.mark.parametrize("which", [0, 1])
def test_only_the_conversation_that_is_stopped_stops(
    tiny_pair: TinyPair, alone: Any, policy: str, which: int
) -> None:
    expected, params = alone("none", "match"), params_of(0.7, 1)
    with loaded(tiny_pair, policy=policy) as shared:
        conversations = [shared.conversation(), shared.conversation()]
        replies = [Reply(c, prompt(i), params) for i, c in enumerate(conversations)]
        steps = [reply.steps() for reply in replies]
        for each in steps:
            next(each)
        stopped, other = conversations[which], 1 - which
        stopped.abort()
        assert [c.is_aborted for c in conversations] == [which == 0, which == 1]
        next(steps[other])
        with pytest.raises(Cancelled):
            next(steps[which])
        with pytest.raises(Cancelled):
            in_turns(Reply(stopped, prompt(3), params))
        for _ in steps[other]:
            pass
        assert replies[other].tokens == expected(other, 0.7, 1)
        stopped.clear_abort()
        again = Reply(stopped, prompt(3), params)
        in_turns(again)
        assert again.tokens == expected(3, 0.7, 1)


def test_a_second_reply_reads_only_what_is_new(tiny_pair: TinyPair) -> None:
    params = params_of(0.7, 1)
    with loaded(tiny_pair, policy="dyspec:8") as shared:
        first, second = shared.conversation(), shared.conversation()
        one, other = Reply(first, prompt(1), params), Reply(second, prompt(2), params)
        in_turns(one, other)
        for conversation, reply, which in ((first, one, 1), (second, other, 2)):
            text = [*prompt(which), *reply.tokens, 9]
            model = conversation.target.context.model
            with closing(Sampler(model, params, 1, text)) as sampler:
                assert conversation.begin(text, sampler) == len(text) - 2


def test_there_is_room_for_as_many_as_were_asked_for(tiny_pair: TinyPair) -> None:
    with loaded(tiny_pair, policy="chain:2") as shared:
        first, _second = shared.conversation(), shared.conversation()
        with pytest.raises(DyspecError, match="2 conversations are open"):
            shared.conversation()
        first.close()
        shared.conversation()
    with pytest.raises(OptionError, match="a context has 1 to 256"):
        load(tiny_config(*tiny_pair, policy="dyspec:200", num_conversations=2))
    with pytest.raises(OptionError, match="0 conversations: it must be 1 or more"):
        load(tiny_config(*tiny_pair, num_conversations=0))


def test_backend_samplers_that_one_attaches_or_detaches_are_for_both(tiny_pair: TinyPair) -> None:
    params = SamplingParams(temperature=0.7, seed=1)

    def said(conversation: Conversation) -> list[list[int]]:
        found = Reply(conversation, prompt(1), params).steps()
        return [[step.num_drafted, *step.tokens] for step in found]

    with loaded(tiny_pair, policy="dyspec:12") as shared:
        one, other = shared.conversation(), shared.conversation()
        wanted = said(other)
        assert model_drafter(one).attach_backend_sampler()
        assert said(other) == wanted
        model_drafter(one).detach_backend_sampler()
        assert said(other) == wanted


def test_a_conversation_that_could_not_be_made_takes_no_room(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_arguments: Any, **_options: Any) -> None:
        raise MemoryError

    with loaded(tiny_pair, policy="chain:2") as shared:
        for name in ("Cache", "ModelDrafter", "MatchVerifier", "Conversation"):
            with monkeypatch.context() as patched:
                patched.setattr(f"dyspec_edge.load.contexts.{name}", no_memory)
                with pytest.raises(MemoryError):
                    shared.conversation()
        assert list(Reply(shared.conversation(), prompt(1), SamplingParams(seed=1)).steps())
        shared.conversation()


def test_prices_are_shared_and_accounts_are_not(tiny_pair: TinyPair) -> None:
    with loaded(tiny_pair, policy="priced") as shared:
        first, second = shared.conversation().policy, shared.conversation().policy
        assert isinstance(first, PricedPolicy)
        assert isinstance(second, PricedPolicy)
        assert first.target is second.target
        assert first.prices is second.prices
        first.acceptance.remember([0.3])
        first.account.plain = 7.0
        assert (second.acceptance.texts, second.account.plain) == ([], 0.0)


def test_what_one_has_learned_the_next_begins_with(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cheap(_cache: Any, *_args: Any, **_how: Any) -> CostCurve:
        return CHEAP_ROWS[0]  # at real prices a tiny draft may seem to pay or not

    monkeypatch.setattr("dyspec_edge.load.calibration.measure_curve", cheap)
    monkeypatch.setattr("dyspec_edge.load.calibration.look_again", cheap)

    def opened(shared: Loaded) -> PricedPolicy:
        policy = shared.conversation().policy
        assert isinstance(policy, PricedPolicy)
        return policy

    with loaded(tiny_pair, policy="priced") as shared:
        first = shared.conversation()
        assert isinstance(first.policy, PricedPolicy)
        first.policy.acceptance.remember([0.5])
        first.close()
        assert opened(shared).acceptance.texts == [0.5]
    kept = sorted((tmp_path / "cache" / "curves").iterdir())
    with loaded(tiny_pair, policy="priced") as again:
        assert opened(again).acceptance.texts == [0.5]
    assert sorted((tmp_path / "cache" / "curves").iterdir()) == kept
