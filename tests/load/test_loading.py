"""From a configuration to an engine: pairs of every kind, the choice of a policy, bad files."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest

from dyspec_edge import llama
from dyspec_edge.decode import cost
from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.policy import parse
from dyspec_edge.engine import Completion, Engine, SamplingParams
from dyspec_edge.errors import (
    DeviceError,
    DyspecError,
    ModelFileError,
    OptionError,
    VocabularyError,
)
from dyspec_edge.files.description import describe
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.load.contexts import Contexts
from dyspec_edge.load.loading import Loaded, load
from dyspec_edge.load.models import open_models
from dyspec_edge.load.speculation import draft_obstacle, plain_reason_of
from tests import tiny
from tests.conftest import TinyPair
from tests.decode.test_loop import prompt, tokens_of
from tests.decoding import CHEAP_ROWS, model_drafter, opened_decoder, steps
from tests.engines import PROMPT, opened, text_of, tiny_config
from tests.tiny_architectures import HYBRIDS, NUM_EMBD, Architecture

WARM = SamplingParams(temperature=1.0, seed=1)
LONG = "the and of to in is it " * 12


def notices(engine: Engine) -> str:
    return "\n".join(engine.notices)


def converse(engine: Engine, first: str = PROMPT) -> list[Completion]:
    """Two turns of one conversation."""
    messages: list[dict[str, str]] = []
    replies = []
    for text in (first, "and then?"):
        messages.append({"role": "user", "content": text})
        replies.append(engine.generate(messages, sampling=WARM, max_tokens=60))
        messages.append({"role": "assistant", "content": replies[-1].text})
    return replies


def assert_equals_plain(
    target: Path, draft: Path, first: str = PROMPT, **changes: Any
) -> list[Completion]:
    """The pair's conversation, which must be the target's own."""
    with opened(target) as plain:
        expected = converse(plain, first)
    with opened(target, draft, **changes) as engine:
        replies = converse(engine, first)
    assert [(r.tokens, r.text, r.finish_reason) for r in replies] == [
        (r.tokens, r.text, r.finish_reason) for r in expected
    ]
    return replies


# Vocabularies


@pytest.mark.parametrize(
    ("which", "line"),
    [
        ("tiny_shortened", "8 ids are in the target only: never drafted"),
        ("tiny_renamed", "1 id differs (first"),
    ],
)
def test_a_vocabulary_that_nearly_fits_is_one_notice(
    request: pytest.FixtureRequest, tiny_target: Path, which: str, line: str
) -> None:
    draft: Path = request.getfixturevalue(which)
    replies = assert_equals_plain(tiny_target, draft)
    assert all(reply.stats.accepted_tokens > 0 for reply in replies)
    with opened(tiny_target, draft) as engine:
        assert sum(line in notice for notice in engine.notices) == 1


def test_ids_that_the_target_lacks_are_never_drafted(tmp_path: Path) -> None:
    vocabulary = tiny.VOCABULARY
    limit = len(vocabulary) - 8
    target = tiny.write_model(
        tmp_path / "short.gguf", vocabulary=vocabulary.shortened(8), chat_template=tiny.CHATML
    )
    bias = vocabulary.bias()
    bias[limit:] = 20.0  # the draft wants nothing else
    draft = tiny.write_model(tmp_path / "long.gguf", noise=0.05, bias=bias)
    with opened(target, draft) as engine:
        assert "8 ids are in the draft only: never drafted" in notices(engine)
        drafted = 0
        for _ in engine.stream(PROMPT, sampling=WARM, max_tokens=40):
            tree = engine.conversation.tree
            assert tree.token[: tree.size].max() < limit
            drafted += tree.num_drafted
        assert drafted > 40


def test_an_id_of_another_text_is_never_drafted(tiny_target: Path, tmp_path: Path) -> None:
    start = tiny.VOCABULARY.texts.index("<|im_start|>")
    bias = tiny.VOCABULARY.bias()
    bias[start] = 20.0  # the draft wants nothing else
    renamed = tiny.VOCABULARY.renamed(start, "<|turn|>")
    draft = tiny.write_model(tmp_path / "turn.gguf", vocabulary=renamed, noise=0.05, bias=bias)
    drafted = 0
    with opened(tiny_target, draft) as engine:
        for _ in engine.stream(PROMPT, sampling=WARM, max_tokens=40):
            tree = engine.conversation.tree
            assert start not in tree.token[: tree.size]
            drafted += tree.num_drafted
    assert drafted > 40


def test_another_tokenizer_is_refused_with_the_first_difference(
    tiny_target: Path, tiny_foreign: Path
) -> None:
    with pytest.raises(VocabularyError) as caught:
        Engine.load(tiny_config(tiny_target, tiny_foreign))
    message = str(caught.value)
    assert "differs from the target's at token" in message
    assert "(411 and 400 tokens); use a draft of the same family" in message
    assert "\n" not in message


# Kinds of models


def test_a_recurrent_target_survives_a_stop_string(tiny_recurrent: Path) -> None:
    with opened(tiny_recurrent) as engine:
        text = text_of(engine)
        stop = [text[8:12]]
        cut = engine.generate(PROMPT, sampling=SamplingParams(seed=1), max_tokens=40, stop=stop)
        assert cut.text == text[: text.find(stop[0])]
        assert text_of(engine) == text
        other = text_of(engine, "other")
    with opened(tiny_recurrent) as fresh:
        assert text_of(fresh, "other") == other


@pytest.mark.parametrize("policy", ["dyspec:8", "chain:6", "priced"])
@pytest.mark.parametrize("architecture", [*HYBRIDS, "mamba", "jamba"])
def test_a_hybrid_target_checks_chains_and_says_so(
    tiny_hybrid: Callable[..., TinyPair], architecture: Architecture, policy: str
) -> None:
    pair = tiny_hybrid(architecture)
    with opened(pair.target) as engine:
        expected = converse(engine)
    with opened(*pair, policy=policy) as engine:
        assert f"({architecture}): trees are chains of at most 16 tokens" in notices(engine)
        assert engine.conversation.target.num_ids == 1
        replies = converse(engine)
    assert [r.text for r in replies] == [r.text for r in expected]
    assert replies[0].stats.policy == policy
    assert replies[1].stats.cached_tokens > 0
    if policy != "priced":  # what it does depends on real time
        assert sum(reply.stats.accepted_tokens for reply in replies) > 0


def test_snapshots_are_no_more_than_a_policy_needs(
    tiny_hybrid: Callable[..., TinyPair],
) -> None:
    pair = tiny_hybrid("qwen35")
    for policy, wanted in (("none", 0), ("chain:3", 3), ("dyspec:64", 16)):
        with opened(*pair, policy=policy) as engine:
            assert engine.conversation.target.context.num_snapshots == wanted


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
def test_the_head_in_the_file_drafts(
    tiny_headed: Callable[..., TinyPair], architecture: Architecture
) -> None:
    path = tiny_headed(architecture).target
    said = "multi-token prediction, 1 layer: drafts where no other draft is named (-md mtp)"
    assert said in describe([path])
    with opened(path, Path("none"), policy="none") as engine:
        assert "prediction head" not in notices(engine)
        expected = converse(engine)
    for draft in (None, Path("mtp")):
        for policy in ("dyspec:8", "chain:4", "priced"):
            with opened(path, draft, policy=policy) as engine:
                assert "draft: the multi-token-prediction head of" in notices(engine)
                replies = converse(engine)
            assert [r.text for r in replies] == [r.text for r in expected]
            if policy != "priced":  # what it does depends on real time
                assert sum(reply.stats.accepted_tokens for reply in replies) > 0


def test_the_head_is_priced_like_any_draft(tiny_headed: Callable[..., TinyPair]) -> None:
    config = tiny_config(tiny_headed("glm4moe").target, policy="priced")
    with closing(load(config)) as loaded:
        assert loaded.prices is not None
        assert loaded.prices.draft is not None
        assert loaded.prices.draft.sizes
        assert loaded.prices.draft != loaded.prices.target


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
def test_conversations_with_the_head_take_turns(
    tiny_headed: Callable[..., TinyPair], architecture: Architecture
) -> None:
    """Several in one context, as the server has them, step by step."""
    pair = tiny_headed(architecture)
    texts = [prompt(seed=seed) for seed in range(3)]
    with opened_decoder(pair, "none") as plain:
        wanted = [
            tokens_of(list(steps(plain, text, WARM, seed=1, max_tokens=40))) for text in texts
        ]
    config = tiny_config(pair.target, policy="chain:4", num_conversations=len(texts))
    with closing(load(config)) as loaded:
        conversations = [loaded.conversation() for _ in texts]
        found = [
            steps(conversation, text, WARM, seed=1, max_tokens=40)
            for conversation, text in zip(conversations, texts, strict=True)
        ]
        said: list[list[int]] = [[] for _ in texts]
        num_accepted = 0
        for taken in zip_longest(*found):
            for out, step in zip(said, taken, strict=True):
                out += step.tokens if step is not None else ()
                num_accepted += step.num_accepted if step is not None else 0
    assert said == wanted
    assert num_accepted > 10


def test_heads_that_cannot_draft_are_refused_by_the_header(
    tmp_path: Path,
) -> None:
    """llama.cpp would end the process: nothing is tried."""
    path = tiny.write_model(
        tmp_path / "two.gguf", architecture="qwen35", num_heads=2, chat_template=tiny.CHATML
    )
    assert not inspect_file(path).has_head
    assert "multi-token prediction, 2 layers: cannot draft here" in describe([path])
    with pytest.raises(OptionError, match=r"-md mtp: two.gguf has a head that cannot draft here"):
        Engine.load(tiny_config(path, Path("mtp")))


def test_a_head_that_is_not_there(tiny_target: Path) -> None:
    with pytest.raises(OptionError, match=r"-md mtp: target.gguf has no multi-token-prediction"):
        Engine.load(tiny_config(tiny_target, Path("mtp")))
    with pytest.raises(OptionError, match="needs a draft"):
        Engine.load(tiny_config(tiny_target, Path("none"), policy="chain:4"))


@pytest.mark.parametrize("policy", ["dyspec:8", "chain:6", "priced"])
@pytest.mark.parametrize(("target", "draft"), [("llama", "lfm2"), ("qwen35", "jamba")])
def test_a_hybrid_draft_drafts_chains(
    tiny_hybrid: Callable[..., TinyPair],
    target: Architecture,
    draft: Architecture,
    policy: str,
) -> None:
    pair = tiny_hybrid(target, draft)
    with opened(pair.target) as engine:
        expected = converse(engine)
    with opened(*pair, policy=policy) as engine:
        assert "trees are chains of at most 16 tokens" in notices(engine)
        replies = converse(engine)
        assert policy == "priced" or model_drafter(engine.conversation).cache.is_recurrent
    assert [r.text for r in replies] == [r.text for r in expected]
    if policy != "priced":  # what it does depends on real time
        assert sum(reply.stats.accepted_tokens for reply in replies) > 0


def test_a_state_that_cannot_be_copied_neither_checks_nor_drafts(
    tiny_target: Path,
) -> None:
    """Decided from the header: such files are never opened for it."""
    reports = [inspect_file(tiny_target)]
    reports += [replace(reports[0], kind="hybrid", architecture="glm5-next", state="whole")]
    config, asked = tiny_config(tiny_target, tiny_target), parse("dyspec:8", np.empty(0, np.int32))
    reason = plain_reason_of(config, reports[1], asked, False)
    assert reason is not None
    assert "hybrid (glm5-next): its state can be neither cut nor copied" in reason
    assert plain_reason_of(config, reports[0], asked, False) is None
    assert draft_obstacle(config, reports[0], asked) is None
    assert "so decoding is plain" in str(draft_obstacle(config, reports[1], asked))


@pytest.mark.parametrize("policy", ["dyspec:8", "dyspec:64", "chain:7", "dyspec-threshold:16"])
def test_a_sliding_window_is_right_beyond_its_width(tiny_sliding: TinyPair, policy: str) -> None:
    replies = assert_equals_plain(*tiny_sliding, LONG, policy=policy)
    assert replies[0].stats.prompt_tokens > 64  # the window is 16
    assert all(reply.stats.accepted_tokens > 0 for reply in replies)


def test_a_sliding_window_can_be_rewound(tiny_sliding: TinyPair) -> None:
    start = "the and of to in is it " * 30
    long, other = start + "that was for on you with " * 240, start + "leaf"
    sampling = SamplingParams(seed=1)
    with opened(*tiny_sliding, num_ctx=2048) as fresh:
        expected = fresh.generate(other, raw=True, sampling=sampling, max_tokens=40)
    with opened(*tiny_sliding, num_ctx=2048) as engine:
        engine.generate(long, raw=True, sampling=sampling, max_tokens=4)
        reply = engine.generate(other, raw=True, sampling=sampling, max_tokens=40)
    assert reply.stats.cached_tokens > 100
    assert reply.text == expected.text
    assert reply.stats.accept_length_histogram == expected.stats.accept_length_histogram


def test_a_draft_context_smaller_than_the_text(tiny_pair: TinyPair) -> None:
    long = "the and of to in is it " * 50
    replies = assert_equals_plain(*tiny_pair, long, num_ctx_draft=64)
    assert replies[0].stats.prompt_tokens > 350
    for reply in replies:
        assert reply.stats.accepted_tokens > 0  # few: without its past, the tiny draft is lost


def test_a_text_that_outgrows_the_draft_context(tiny_pair: TinyPair) -> None:
    sampling = SamplingParams(seed=1, logit_bias=((tiny.VOCABULARY.eos, -100.0),))
    with opened(tiny_pair.target) as plain:
        expected = plain.generate(PROMPT, sampling=sampling, max_tokens=300)
    with opened(*tiny_pair, num_ctx_draft=64) as engine:
        reply = engine.generate(PROMPT, sampling=sampling, max_tokens=300)
        drafter = model_drafter(engine.conversation)
        assert len(drafter.cache.tokens) <= 64 + 8
    assert reply.tokens == expected.tokens
    assert len(reply.tokens) > 200
    assert reply.stats.block_efficiency > 1.5


# The default policy


FakeCurves = Callable[[CostCurve, CostCurve], None]


@pytest.fixture
def fake_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCurves:
    """`fake_curves(target, draft)`: what measuring finds; nothing was kept before."""
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))

    def set_curves(target: CostCurve, draft: CostCurve) -> None:
        def measure(_cache: Any, sizes: Sequence[int], *_report: Any, **_how: Any) -> CostCurve:
            found = draft if sizes == cost.DRAFT_SIZES else target
            return replace(found, sure=frozenset(cost.TARGET_SIZES))

        def again(_cache: Any, _kept: CostCurve, sizes: Sequence[int]) -> CostCurve:
            return measure(_cache, sizes)

        monkeypatch.setattr("dyspec_edge.load.calibration.measure_curve", measure)
        monkeypatch.setattr("dyspec_edge.load.calibration.look_again", again)
        # The tiny target's own passes say nothing about these.
        monkeypatch.setattr("dyspec_edge.load.calibration.DISTURBED", math.inf)
        monkeypatch.setattr("dyspec_edge.load.contexts.measure_curve", measure)

    return set_curves


def policy_line(engine: Engine) -> str:
    (line,) = [line for line in engine.notices if line.startswith("policy")]
    return line


@pytest.mark.parametrize("policy", [None, "priced"])
def test_the_default_is_priced(
    tiny_pair: TinyPair, fake_curves: FakeCurves, policy: str | None
) -> None:
    fake_curves(*CHEAP_ROWS)
    replies = assert_equals_plain(*tiny_pair, policy=policy)
    for reply in replies:
        assert reply.stats.policy == "priced"
        assert reply.stats.draft_tokens > 0
        # The made-up second gives way to what passes really cost.
        assert reply.stats.plain_seconds_per_token is not None
        assert 0 < reply.stats.plain_seconds_per_token < 1.0
    with opened(*tiny_pair, policy=policy) as engine:
        line = policy_line(engine)
        assert line.startswith("policy priced, from the draft and the text's own repetitions: ")
        assert "rows are nearly free: a draft model will pay, large trees too" in line
        assert "(T(1) 1000 ms, T(64) 1.1x, D(1) 5 ms)" in line


def test_without_a_draft_the_text_itself_is_looked_up(
    tiny_target: Path, fake_curves: FakeCurves
) -> None:
    fake_curves(*CHEAP_ROWS)
    with opened(tiny_target) as plain:
        expected = converse(plain, LONG)
    with opened(tiny_target, policy=None) as engine:
        assert "policy priced, from the text's repetitions: " in policy_line(engine)
        assert "prompt lookup will pay" in policy_line(engine)
        replies = converse(engine, LONG)
        assert engine.conversation.drafter.shared_cache is None
    assert [r.tokens for r in replies] == [r.tokens for r in expected]
    assert sum(r.stats.draft_tokens for r in replies) > 0


def test_a_draft_without_headroom_is_closed(
    tmp_path: Path, tiny_pair: TinyPair, fake_curves: FakeCurves
) -> None:
    draft = Path(shutil.copy(tiny_pair.draft, tmp_path / "unused.gguf"))
    fake_curves(CostCurve((1, 8, 64), (1.0, 5.2, 26.0)), CostCurve((1, 16), (0.42, 3.8)))
    with opened(tiny_pair.target, draft, policy=None) as engine:
        assert "compute-bound: a draft model will not pay" in policy_line(engine)
        assert not is_open(draft)
        assert engine._loaded.models.draft is None
        assert engine._loaded.models.pair is None
        assert text_of(engine)


def test_residual_gets_a_policy_that_it_allows(tiny_pair: TinyPair, tiny_target: Path) -> None:
    with opened(*tiny_pair, policy="priced", verify="residual") as engine:
        assert policy_line(engine) == "policy dyspec:8: priced trees need --verify match"
        assert engine.generate(PROMPT, max_tokens=20).stats.policy == "dyspec:8"
    for policy in (None, "priced"):
        with opened(tiny_target, policy=policy, verify="residual") as engine:
            assert "with --verify residual decoding is plain (-md adds one)" in notices(engine)


def test_what_was_learned_outlives_the_engine(tiny_pair: TinyPair, fake_curves: FakeCurves) -> None:
    fake_curves(*CHEAP_ROWS)
    with opened(*tiny_pair, policy="priced") as engine:
        fresh = engine.conversation.policy.as_dict()
        converse(engine)
        learned = engine.conversation.policy.as_dict()
    assert learned != fresh
    with opened(*tiny_pair, policy="priced") as engine:
        assert engine.conversation.policy.as_dict() == learned


# The choice of a policy under `residual`


def flat_curves(share: float) -> tuple[CostCurve, CostCurve]:
    """A draft pass costs so much of a target pass, and more rows cost nothing more."""
    price = 0.1 * share
    return CostCurve((1, 64), (0.1, 0.1)), CostCurve((1, 16), (price, price))


def test_a_draft_that_pays_is_used(tiny_pair: TinyPair, fake_curves: FakeCurves) -> None:
    fake_curves(*flat_curves(0.1))
    with opened(*tiny_pair, policy=None, verify="residual") as engine:
        line = policy_line(engine)
        # (1 + 0.75 + ... + 0.75^5) / (5 * 0.1 + 1)
        assert line == (
            "policy dyspec:8: a draft should pay here, 2.19x predicted "
            "(T(1) 100 ms, T(64) 1.0x, D(1) 10 ms)"
        )
        reply = engine.generate(PROMPT, sampling=WARM, max_tokens=20)
        assert reply.stats.policy == "dyspec:8"
        assert reply.stats.draft_tokens > 0
        assert reply.stats.plain_seconds_per_token == 0.1


def test_a_draft_that_does_not_pay_is_closed(
    tmp_path: Path, tiny_pair: TinyPair, fake_curves: FakeCurves
) -> None:
    draft = Path(shutil.copy(tiny_pair.draft, tmp_path / "unused.gguf"))
    fake_curves(*flat_curves(0.6))
    with opened(tiny_pair.target, draft, policy=None, verify="residual") as engine:
        line = policy_line(engine)
        assert line.startswith("policy none: a draft would not pay here, 1.09x predicted")
        assert not is_open(draft)
        reply = engine.generate(PROMPT, sampling=WARM, max_tokens=20)
        assert (reply.stats.policy, reply.stats.draft_tokens) == ("none", 0)


def test_a_policy_that_was_given_is_not_questioned(
    tiny_pair: TinyPair, fake_curves: FakeCurves
) -> None:
    fake_curves(*flat_curves(5.0))
    with opened(*tiny_pair, policy="chain:3") as engine:
        assert not any(line.startswith("policy") for line in engine.notices)
        assert engine.generate(PROMPT, max_tokens=20).stats.policy == "chain:3"


def test_only_passes_whose_prices_are_weighed_are_filled_up(
    tiny_pair: TinyPair, fake_curves: FakeCurves
) -> None:
    """A policy that is chosen by prices does not go by them."""
    target, draft = flat_curves(0.1)
    fake_curves(replace(target, padded=True), replace(draft, padded=True))
    for policy in (None, "dyspec:8", "priced"):
        verify = "match" if policy == "priced" else "residual"
        with opened(*tiny_pair, policy=policy, verify=verify) as engine:
            stats = engine.generate(PROMPT, sampling=WARM, max_tokens=20).stats
        filled = stats.target_rows - stats.steps - stats.draft_tokens
        assert (filled > 0) == (policy == "priced")


@pytest.mark.parametrize("policy", ["none", "chain:3"])
def test_a_fixed_policy_measures_plain_passes_only(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    sizes: list[int] = []
    time_pass = Cache.time_pass

    def noting(cache: Cache, num_rows: int) -> float:
        sizes.append(num_rows)
        return time_pass(cache, num_rows)

    monkeypatch.setattr(Cache, "time_pass", noting)
    with opened(*tiny_pair, policy=policy) as engine:
        assert engine.generate(PROMPT, max_tokens=4).stats.plain_seconds_per_token
    assert set(sizes) == {1}
    assert len(sizes) <= 5


def test_policy_none_leaves_the_draft_alone(tmp_path: Path, tiny_pair: TinyPair) -> None:
    draft = Path(shutil.copy(tiny_pair.draft, tmp_path / "unused.gguf"))
    with opened(tiny_pair.target, draft, policy="none") as engine:
        assert engine.conversation.drafter.shared_cache is None
        assert not is_open(draft)


def test_more_leaves_than_sequences(tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = assert_equals_plain(*tiny_pair)[0]

    def narrow(*args: Any) -> Any:
        policy = parse(*args)
        policy.max_leaves = 2
        return policy

    monkeypatch.setattr("dyspec_edge.load.models.parse", narrow)
    with opened(*tiny_pair) as engine:
        policy = engine.conversation.policy
        policy.max_leaves = 8
        with pytest.raises(DyspecError, match="more leaves than the 2 sequence ids"):
            engine.generate(PROMPT, sampling=WARM)
        # The engine goes on, with trees that fit.
        policy.max_leaves, policy._expansion = 2, None  # type: ignore[attr-defined]
        reply = engine.generate(PROMPT, sampling=WARM, max_tokens=60)
    assert reply.tokens == expected.tokens


# Values that are refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "fast"}, "no policy is called 'fast'; there are none, chain:K"),
        ({"policy": "dyspec:0"}, "'0' is not a number from 1 to"),
        ({"policy": "dyspec-threshold:8:2"}, "'2' is not a number between 0 and 1"),
        ({"verify": "hope"}, "verify is 'hope'; it must be one of auto, match, residual"),
        ({"device_sampling": "gpu"}, "device_sampling is 'gpu'; it must be one of auto, on, off"),
        ({"flash_attn": "yes"}, "flash_attn is 'yes'; it must be one of auto, off, on"),
        ({"cache_type_k": "f8"}, "cache_type_k is 'f8'; it must be one of f32, f16"),
        ({"cache_type_v": "q8_0"}, "cache_type_v q8_0 works with flash attention only"),
        ({"num_ctx": -1}, "context of -1 tokens: -c must be 0"),
        ({"num_ctx_draft": -1}, "context of -1 tokens: -cd must be 0"),
        ({"num_threads": 0}, "0 threads: -t must be 1 to 512"),
        ({"draft_temperature": 0.0}, "--draft-temp is 0.0; it must be above 0"),
        ({"draft_temperature": float("nan")}, "--draft-temp is nan"),
    ],
)
def test_values_without_meaning(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("dyspec_edge.llama.Model", None)  # refused before anything is loaded
    with pytest.raises(OptionError) as caught:
        Engine.load(tiny_config(*tiny_pair, **changes))
    assert message in str(caught.value)


def test_a_policy_needs_a_draft(tiny_target: Path) -> None:
    with pytest.raises(
        OptionError, match="policy 'dyspec:8' needs a draft model; name one with -md"
    ):
        Engine.load(tiny_config(tiny_target, policy="dyspec:8"))


def test_a_template_that_cannot_be_parsed_leaves_nothing_open(
    tmp_path: Path, tiny_target: Path
) -> None:
    target = Path(shutil.copy(tiny_target, tmp_path / "target.gguf"))
    with pytest.raises(OptionError, match="cannot be parsed"):
        Engine.load(tiny_config(target, chat_template="{% for %}"))
    assert not is_open(target)


# Devices and memory


def test_gpu_layers_on_a_cpu_build_are_one_warning(tiny_pair: TinyPair) -> None:
    if llama.supports_gpu():
        pytest.skip("this llama.cpp can offload")
    for layers, layers_draft in ((99, None), (-1, 99), (None, 99)):
        with opened(*tiny_pair, num_gpu_layers=layers, num_gpu_layers_draft=layers_draft) as engine:
            warnings = [line for line in engine.notices if "-ngl has no effect" in line]
        assert len(warnings) == 1
        assert "built without GPU support" in warnings[0]
        assert "README" in warnings[0]
    with opened(*tiny_pair, num_gpu_layers=0) as engine:
        assert "-ngl" not in notices(engine)
    with pytest.raises(DeviceError, match="no GPU"):
        Engine.load(tiny_config(*tiny_pair, require_gpu=True))


def test_a_context_that_cannot_fit_names_one_that_does(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DeviceError, match=r"a context of 10\d+ tokens does not fit .*; -c \d+ does"
    ):
        Engine.load(tiny_config(*tiny_pair, num_ctx=10**12))
    monkeypatch.setattr(
        "dyspec_edge.load.models.available_memory", lambda _: (512 << 20) + (3 << 20)
    )
    with pytest.raises(DeviceError) as caught:
        Engine.load(tiny_config(*tiny_pair, num_ctx=100_000))
    fitting = int(str(caught.value).split("-c ")[1].split()[0])
    with opened(*tiny_pair, num_ctx=fitting) as engine:
        assert engine.num_ctx == fitting
        assert text_of(engine, max_tokens=4)


def test_a_context_that_llama_cpp_refuses_says_why(tiny_target: Path) -> None:
    with pytest.raises(DeviceError, match="context of 1280 tokens") as caught:
        Engine.load(tiny_config(tiny_target, cache_type_k="q8_0", flash_attn="on"))
    assert "block size 32 does not divide n_embd_head_k=16" in str(caught.value)


def test_the_default_context_is_said(tiny_target: Path, tmp_path: Path) -> None:
    with opened(tiny_target, num_ctx=None) as engine:
        assert engine.num_ctx == tiny.NUM_CTX
        assert f"context: {tiny.NUM_CTX} tokens; -c changes it" in engine.notices
    wide = tiny.write_model(tmp_path / "wide.gguf", num_ctx=100_000)
    with opened(wide, num_ctx=None) as engine:
        assert engine.num_ctx == 8192
        assert "context: 8192 tokens of 100000 trained; -c changes it" in engine.notices
    with opened(wide, num_ctx=0) as engine:
        assert engine.num_ctx == 100_000


# Files


def is_open(path: Path) -> bool:
    """Whether this process holds the file, mapped or as a descriptor."""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    process = psutil.Process()
    held = {entry.path for entry in process.memory_maps()}
    return str(path) in held | {entry.path for entry in process.open_files()}


def missing(directory: Path, _model: Path) -> Path:
    return directory / "missing.gguf"


def no_gguf(directory: Path, _model: Path) -> Path:
    path = directory / "weights.safetensors"
    path.write_bytes(b'\x10\0\0\0\0\0\0\0{"a": {}}       ')
    return path


def truncated(directory: Path, model: Path) -> Path:
    return tiny.write_truncated(directory / "truncated.gguf", model)


def one_shard_only(directory: Path, _model: Path) -> Path:
    writer = gguf.GGUFWriter(directory / "m-00001-of-00002.gguf", "llama")
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 2)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    return finished(writer, directory / "m-00001-of-00002.gguf")


def folder(directory: Path, _model: Path) -> Path:
    path = directory / "folder.gguf"
    path.mkdir()
    return path


def adapter(directory: Path, _model: Path) -> Path:
    """A LoRA adapter of the tiny target that turns its texts around."""
    path = directory / "adapter.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 4.0)
    rng = np.random.default_rng(0)
    for name in ("blk.0.attn_v", "blk.1.attn_q"):
        rows = NUM_EMBD // (2 if name.endswith("v") else 1)
        for part, shape in (("a", (4, NUM_EMBD)), ("b", (rows, 4))):
            tensor = rng.standard_normal(shape, np.float32)
            writer.add_tensor(f"{name}.weight.lora_{part}", tensor)
    return finished(writer, path)


def finished(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def lacks_a_tensor(directory: Path, model: Path) -> Path:
    """A file whose header is in order, but which llama.cpp cannot load."""
    path = directory / "lacking.gguf"
    path.write_bytes(model.read_bytes().replace(b"blk.1.ffn_down", b"blk.1.ffn_dawn"))
    return path


BAD_FILES = [
    (missing, "no such file"),
    (no_gguf, "weights.safetensors"),
    (truncated, "is truncated: 1,000 bytes are missing"),
    (one_shard_only, "1 of 2 shards are missing: m-00002-of-00002.gguf"),
    (folder, "is a directory"),
    (adapter, "is a LoRA adapter, not a model; give it with --lora"),
    (lacks_a_tensor, "tensor 'blk.1.ffn_down.weight' not found"),
]


@pytest.mark.parametrize(("make", "message"), BAD_FILES)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_bad_file_is_one_line_and_leaves_nothing_open(
    tmp_path: Path,
    tiny_target: Path,
    make: Callable[[Path, Path], Path],
    message: str,
    role: str,
) -> None:
    good = Path(shutil.copy(tiny_target, tmp_path / "good.gguf"))
    bad = make(tmp_path, tiny_target)
    config = tiny_config(bad) if role == "target" else tiny_config(good, bad)
    with pytest.raises(ModelFileError) as caught:
        Engine.load(config)
    line = str(caught.value)
    assert str(bad) in line
    assert message in line
    assert "\n" not in line
    assert not is_open(good)
    assert not is_open(bad)


def test_closing_leaves_nothing_open(tmp_path: Path, tiny_pair: TinyPair) -> None:
    paths = [Path(shutil.copy(path, tmp_path / path.name)) for path in tiny_pair]
    with opened(*paths) as engine:
        assert is_open(paths[0])
        text_of(engine)
    assert not any(is_open(path) for path in paths)
    engine.close()


def test_an_adapter_changes_the_target(tmp_path: Path, tiny_pair: TinyPair) -> None:
    lora = (adapter(tmp_path, tiny_pair.target),)
    with opened(tiny_pair.target) as engine:
        bare = text_of(engine)
    with opened(tiny_pair.target, lora=lora) as engine:
        adapted = text_of(engine)
    with opened(*tiny_pair, lora=lora) as engine:
        assert text_of(engine) == adapted != bare


@pytest.mark.parametrize("make", [missing, no_gguf, lacks_a_tensor])
def test_a_bad_adapter_is_one_line(
    tmp_path: Path, tiny_target: Path, make: Callable[[Path, Path], Path]
) -> None:
    good = Path(shutil.copy(tiny_target, tmp_path / "good.gguf"))
    bad = make(tmp_path, tiny_target)
    with pytest.raises(ModelFileError, match=r"not a LoRA adapter for good\.gguf") as caught:
        Engine.load(tiny_config(good, lora=(bad,)))
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not is_open(good)


def test_progress_runs_from_loading_to_measuring(tiny_pair: TinyPair) -> None:
    heard: list[tuple[str, float]] = []
    config = tiny_config(*tiny_pair, policy=None)
    engine = Engine.load(config, on_progress=lambda *event: heard.append(event))
    engine.close()
    labels = list(dict.fromkeys(label for label, _ in heard))
    names = [path.name for path in tiny_pair]
    assert labels == [f"loading target {names[0]}", f"loading draft {names[1]}", "measuring passes"]
    for label in labels:
        fractions = [fraction for name, fraction in heard if name == label]
        assert fractions == sorted(fractions)
        assert 0 <= fractions[0] <= fractions[-1] == 1


def test_decoders_of_several_policies_share_the_weights(
    tmp_path: Path, tiny_pair: TinyPair
) -> None:
    target, draft = (Path(shutil.copy(path, tmp_path / path.name)) for path in tiny_pair)
    config = tiny_config(target, draft)
    models = open_models(config)
    replies = []
    for spec in ("none", "chain:3", "dyspec:8"):
        policy = parse(spec, models.target.end_tokens)
        contexts = Contexts(models, policy, "match", drafts=policy.uses_draft)
        engine = Engine(
            config, Loaded(models, contexts, partial(parse, spec, models.target.end_tokens))
        )
        conversation = engine.conversation
        assert (conversation.drafter.shared_cache is None) == (spec == "none")
        assert conversation.target.context.num_sequences == (8 if spec == "dyspec:8" else 1)
        replies.append(engine.generate(PROMPT, sampling=WARM, max_tokens=40))
        assert len(conversation.tree.token) == policy.tree_capacity
        contexts.close()
        assert is_open(target)
    models.close()
    assert not is_open(target)
    assert not is_open(draft)
    assert [reply.stats.policy for reply in replies] == ["none", "chain:3", "dyspec:8"]
    assert len({reply.tokens for reply in replies}) == 1
    assert replies[0].stats.speedup is None


def test_verbose_shows_what_llama_cpp_says(
    tiny_target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tiny_target, verbose=True):
        pass
    levels = {record.levelname for record in caplog.records}
    assert any("load_tensors" in line for line in caplog.messages)
    assert not any("create_tensor" in line for line in caplog.messages)  # debugging, no news
    assert levels <= {"INFO", "WARNING"}
    caplog.clear()
    with opened(tiny_target):
        pass
    assert caplog.messages == []


def test_llama_cpp_is_silent(tiny_target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with opened(tiny_target) as engine:
        text_of(engine)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
