"""Replies: their text, where they end, what they reuse, and which values are refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dyspec_edge import llama
from dyspec_edge.decode.loop import Step
from dyspec_edge.engine import Completion, Engine, SamplingParams
from dyspec_edge.errors import ContextOverflow, DyspecError, OptionError
from dyspec_edge.native import lib
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import model_drafter
from tests.engines import PROMPT, num_cached, opened, text_of, tiny_config

SETTINGS = [
    SamplingParams(temperature=temperature, seed=seed)
    for temperature, seed in ((0.0, 1), (0.7, 1), (0.7, 2), (1.0, 3))
]
FAMILY, FLAG = "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1f0\U0001f1f7"
MIXED = f"{FAMILY} \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 {FLAG} caf\u00e9\n"


@pytest.fixture(scope="module")
def engine(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(*tiny_pair) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(tiny_pair.target) as engine:
        yield engine


@pytest.fixture(scope="module")
def certain(tiny_equal: TinyPair) -> Iterator[Engine]:
    """Every drafted chain is accepted, eight tokens at a time."""
    with opened(*tiny_equal, policy="chain:8") as engine:
        yield engine


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps of all replies from now on."""
    seen: list[Step] = []
    from dyspec_edge.decode.loop import Conversation

    original = Conversation.generate

    def generate(self: Conversation, *args: Any, **options: Any) -> Iterator[Step]:
        for step in original(self, *args, **options):
            seen.append(step)
            yield step

    monkeypatch.setattr(Conversation, "generate", generate)
    return seen


def same(one: Completion, other: Completion) -> bool:
    return (one.text, one.tokens, one.finish_reason, one.stats.generated_tokens) == (
        other.text,
        other.tokens,
        other.finish_reason,
        other.stats.generated_tokens,
    )


# Text


def test_stream_and_generate_say_the_same(engine: Engine) -> None:
    sampling = SamplingParams(seed=4)
    chunks = list(engine.stream(PROMPT, sampling=sampling, max_tokens=60))
    whole = engine.generate(PROMPT, sampling=sampling, max_tokens=60)
    assert "".join(chunk.text for chunk in chunks) == whole.text != ""
    assert tuple(token for chunk in chunks for token in chunk.tokens) == whole.tokens
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert [chunk.stats for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert chunks[-1].stats is not None
    assert len(whole.tokens) == whole.stats.generated_tokens
    assert any(len(chunk.tokens) > 1 for chunk in chunks)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_a_draft_changes_nothing_but_the_speed(
    engine: Engine, plain: Engine, sampling: SamplingParams
) -> None:
    for prompt in (PROMPT, "and you are", "\U0001f469"):
        expected = plain.generate(prompt, sampling=sampling, max_tokens=60)
        reply = engine.generate(prompt, sampling=sampling, max_tokens=60)
        assert same(reply, expected)
        assert expected.stats.draft_tokens == 0 < reply.stats.accepted_tokens
        assert reply.stats.steps < expected.stats.steps


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("which", ["engine", "plain"])
def test_characters_are_never_split(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, which: str, size: int
) -> None:
    engine: Engine = request.getfixturevalue(which)
    data = MIXED.encode() * 3
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    for num_tokens in (len(pieces), len(pieces) - 17):
        supply = iter(pieces)
        monkeypatch.setattr(engine._model, "piece", lambda _token, s=supply: next(s))
        chunks = list(
            engine.stream(
                PROMPT,
                sampling=SamplingParams(seed=1, logit_bias=ends_banned()),
                max_tokens=num_tokens,
            )
        )
        monkeypatch.undo()
        text = "".join(chunk.text for chunk in chunks)
        assert text == b"".join(pieces[:num_tokens]).decode("utf-8", "replace")
        assert "\ufffd" not in text[:-1]
        for chunk in chunks[:-1]:
            assert "\ufffd" not in chunk.text


def ends_banned() -> tuple[tuple[int, float], ...]:
    ends = [tiny.VOCABULARY.eos, tiny.VOCABULARY.eot]
    return tuple((token, -100.0) for token in ends if token is not None)


def test_byte_tokens_become_characters(engine: Engine) -> None:
    # An emoji's four byte tokens, each four times as likely as all the rest together.
    byte = {value: 3 + value for value in "\U0001f333".encode()}
    sampling = SamplingParams(
        temperature=1.0, seed=2, logit_bias=tuple((token, 20.0) for token in byte.values())
    )
    reply = engine.generate(PROMPT, sampling=sampling, max_tokens=64)
    shown = engine._model.piece
    data = b"".join(shown(token) for token in reply.tokens)
    assert reply.text == data.decode("utf-8", "replace")
    assert set(reply.tokens) & set(byte.values())


# Where a reply ends


def test_stop_strings_end_a_reply_as_in_plain_decoding(
    certain: Engine, plain: Engine, steps: list[Step]
) -> None:
    sampling = SamplingParams(temperature=1.0, seed=5)
    whole = plain.generate(PROMPT, sampling=sampling, max_tokens=64)
    cuts = 0
    for first, size in itertools.product(range(4, 40, 5), (1, 2, 6)):
        stop = whole.text[first : first + size]
        expected = plain.generate(PROMPT, sampling=sampling, max_tokens=64, stop=[stop])
        reply = certain.generate(PROMPT, sampling=sampling, max_tokens=64, stop=[stop])
        assert same(reply, expected)
        assert reply.finish_reason == "stop"
        assert reply.text == whole.text[: whole.text.find(stop)]
        assert reply.tokens == whole.tokens[: len(reply.tokens)]
        emitted_steps = reply.stats.steps
        inside = sum(len(s.tokens) for s in steps[-emitted_steps:]) > len(reply.tokens)
        cuts += inside
        in_use = reply.stats.prompt_tokens + len(reply.tokens)
        assert max(num_cached(certain)) <= in_use
        assert reply.stats.accepted_tokens <= reply.stats.generated_tokens
    assert cuts > 5  # the middle of an accepted path was really met


def test_a_partial_stop_string_is_never_shown(certain: Engine, plain: Engine) -> None:
    sampling = SamplingParams(temperature=1.0, seed=6)
    text = plain.generate(PROMPT, sampling=sampling, max_tokens=48).text
    at = 20
    stop = text[at : at + 9]
    shown = ""
    for chunk in certain.stream(PROMPT, sampling=sampling, max_tokens=48, stop=[stop]):
        shown += chunk.text
        assert text[: text.find(stop)].startswith(shown)
    # Nine characters that begin like the stop string, and then go on otherwise, are all shown.
    near = text[at : at + 8] + ("x" if text[at + 8] != "x" else "y")
    assert certain.generate(PROMPT, sampling=sampling, max_tokens=48, stop=[near]).text == text


def test_after_a_stop_the_next_reply_is_a_fresh_engines(
    certain: Engine, tiny_equal: TinyPair
) -> None:
    text = text_of(certain, seed=7, max_tokens=48)
    certain.generate(PROMPT, sampling=SamplingParams(seed=7), max_tokens=48, stop=[text[10:14]])
    with opened(*tiny_equal, policy="chain:8") as fresh:
        for prompt, seed in ((PROMPT, 7), (PROMPT, 8), ("another one", 9)):
            assert text_of(certain, prompt, seed=seed) == text_of(fresh, prompt, seed=seed)


def test_an_end_token_inside_an_accepted_path_ends_the_reply(
    certain: Engine, plain: Engine
) -> None:
    eos = tiny.VOCABULARY.eos
    reasons = []
    for seed in range(8):
        sampling = SamplingParams(temperature=1.0, seed=seed, logit_bias=((eos, 6.0),))
        expected = plain.generate(PROMPT, sampling=sampling, max_tokens=60)
        reply = certain.generate(PROMPT, sampling=sampling, max_tokens=60)
        assert same(reply, expected)
        assert eos not in reply.tokens
        assert reply.stats.accepted_tokens <= reply.stats.generated_tokens
        assert max(num_cached(certain)) <= reply.stats.prompt_tokens + len(reply.tokens)
        reasons.append(reply.finish_reason)
    assert reasons.count("stop") > 3


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 8, 9, 30])
def test_max_tokens_is_exact(certain: Engine, max_tokens: int) -> None:
    sampling = SamplingParams(seed=1, logit_bias=ends_banned())
    reply = certain.generate(PROMPT, sampling=sampling, max_tokens=max_tokens)
    assert (len(reply.tokens), reply.finish_reason) == (max_tokens, "length")


def test_a_full_context_ends_the_reply(tiny_pair: TinyPair) -> None:
    sampling = SamplingParams(seed=1, logit_bias=ends_banned())
    with opened(*tiny_pair, num_ctx=64) as engine:
        reply = engine.generate(PROMPT, sampling=sampling)
        assert reply.finish_reason == "length"
        assert reply.stats.context_used == reply.stats.num_ctx == engine.num_ctx == 64
        # 63 of 64 tokens leave room for one.
        text = "a" * (63 - 1)
        assert len(engine.prepare(text, raw=True).tokens) == 63
        last = engine.generate(text, sampling=sampling, raw=True)
        assert (len(last.tokens), last.finish_reason) == (1, "length")


def test_a_prompt_longer_than_the_context_says_both_sizes(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair, num_ctx=64) as engine:
        for text in ("a" * 63, "a" * 100_000):
            with pytest.raises(ContextOverflow, match="-c") as caught:
                next(engine.stream(text, raw=True))
            assert caught.value.num_prompt_tokens == len(text) + 1
            assert caught.value.num_ctx == 64
        assert text_of(engine, max_tokens=4)


# Values that are refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"typical": -1.0}, "typical is -1.0"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"logit_bias": ((411, 1.0),)}, "token 411; the vocabulary ends at 410"),
    ],
)
def test_sampling_values_without_meaning(
    engine: Engine, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        engine.generate(PROMPT, sampling=SamplingParams(**changes))


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {"raw": True}, "prompt is empty"),
        ([], {}, "no messages"),
        ([{"role": "user"}], {}, "message 1 has no text as its 'content'"),
        ([{"role": "user", "content": "a"}], {"raw": True}, "raw prompt is one text"),
        (PROMPT, {"max_tokens": -2}, "max_tokens is -2"),
        (PROMPT, {"stop": [""]}, "stop string is empty"),
    ],
)
def test_requests_without_meaning(
    engine: Engine, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        engine.generate(prompt, **options)
    assert text_of(engine, max_tokens=3)


@pytest.mark.parametrize("prompt", ["", " ", "\n", "\U0001f469", "\ud800", "\0"])
def test_odd_messages_are_answered(engine: Engine, plain: Engine, prompt: str) -> None:
    assert text_of(engine, prompt, max_tokens=12) == text_of(plain, prompt, max_tokens=12)


def test_a_closed_engine_says_so(tiny_target: Any) -> None:
    with opened(tiny_target) as engine:
        stream = engine.stream(PROMPT)
    engine.close()
    for use in (lambda: next(stream), lambda: engine.prepare("a"), engine.render_tree):
        with pytest.raises(DyspecError, match="closed"):
            use()


# Seeds


def test_without_a_seed_each_reply_has_its_own_and_shows_it(engine: Engine) -> None:
    warm = SamplingParams(temperature=1.0)
    one, other = (engine.generate(PROMPT, sampling=warm, max_tokens=30) for _ in range(2))
    assert one.stats.seed != other.stats.seed
    assert one.text != other.text
    again = SamplingParams(temperature=1.0, seed=one.stats.seed)
    assert engine.generate(PROMPT, sampling=again, max_tokens=30).text == one.text


# The cache between replies


@pytest.mark.parametrize("ending", ["length", "stop string", "end token"])
def test_a_second_turn_reads_only_what_is_new(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    options: dict[str, Any] = {"max_tokens": 60}
    bias: tuple[tuple[int, float], ...] = ends_banned()
    if ending == "end token":
        bias = ((tiny.VOCABULARY.eos, 6.0),)
    if ending == "stop string":
        options["stop"] = [" "]
    messages = [{"role": "user", "content": "the and of to in " * 20}]
    with opened(*tiny_pair) as engine:
        sampling = SamplingParams(seed=2, logit_bias=bias)
        first = engine.generate(messages, sampling=sampling, **options)
        messages.append({"role": "assistant", "content": first.text})
        messages.append({"role": "user", "content": "and now?"})
        drafter = model_drafter(engine.conversation)
        caches = {"target": engine.conversation.target, "draft": drafter.cache}
        rows = {role: -cache.num_rows for role, cache in caches.items()}
        roles = {cache.handle.address: role for role, cache in caches.items()}
        read = lib.dyspec_cache_read

        def counted(address: int, tokens: int, n: int) -> int:
            rows[roles[address]] += n
            return int(read(address, tokens, n))

        monkeypatch.setattr(lib, "dyspec_cache_read", counted)
        second = engine.generate(messages, sampling=SamplingParams(seed=3), max_tokens=1)
        for role, cache in caches.items():
            rows[role] += cache.num_rows  # those of trees, beside what was read
    stats = first.stats
    written = stats.prompt_tokens + stats.generated_tokens
    # A stop string that was cut off the text has no place in the next prompt.
    lost = {"length": 1, "end token": 0, "stop string": 2}[ending]
    assert second.stats.cached_tokens >= written - lost
    new = second.stats.prompt_tokens - second.stats.cached_tokens
    assert new < 40
    assert rows["target"] == new  # all but the last token, and that one as the root
    assert 0 < rows["draft"] <= new + 32


def test_a_second_turn_keeps_the_tokens_that_were_generated(engine: Engine) -> None:
    # "\u2581t", "h" is written as two tokens, but its text is cut into one.
    pair = [tiny.VOCABULARY.texts.index(text) for text in ("\u2581t", "h")]
    bias = tuple((token, 40.0) for token in pair)
    sampling = SamplingParams(temperature=1.0, min_p=0.0, seed=1, logit_bias=bias)
    messages = [{"role": "user", "content": "say something"}]
    first = engine.generate(messages, sampling=sampling, max_tokens=40)
    assert engine._session._prompts._tokenize(first.text, special=False) != list(first.tokens)
    messages.append({"role": "assistant", "content": first.text})
    messages.append({"role": "user", "content": "more"})
    second = engine.generate(messages, sampling=sampling, max_tokens=1)
    assert second.stats.cached_tokens >= first.stats.context_used - 1


@pytest.mark.parametrize("prompts", [[PROMPT] * 3, ["one", "two", "a third"], ["Xa", "Yb", "Zc"]])
def test_every_request_of_a_process_is_drafted(engine: Engine, prompts: list[str]) -> None:
    for prompt in prompts:
        reply = engine.generate(prompt, sampling=SamplingParams(seed=1), max_tokens=20, raw=True)
        assert reply.stats.draft_tokens > 0
        assert reply.stats.draft_passes > 0


def test_a_conversation_equals_plain_decodings(engine: Engine, plain: Engine) -> None:
    messages: list[dict[str, str]] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"turn {turn}"})
        sampling = SamplingParams(seed=turn)
        reply = engine.generate(messages, sampling=sampling, max_tokens=30)
        assert same(reply, plain.generate(messages, sampling=sampling, max_tokens=30))
        messages.append({"role": "assistant", "content": reply.text})


# Templates and the beginning-of-text token


@pytest.mark.parametrize("begins", ["", "{{ bos_token }}"])
@pytest.mark.parametrize("raw", [False, True])
def test_there_is_one_beginning_of_text(tiny_pair: TinyPair, begins: str, raw: bool) -> None:
    prompt = "<s>the tree" if raw and begins else "the tree"
    with opened(*tiny_pair, chat_template=begins + tiny.CHATML) as engine:
        reply = engine.generate(prompt, sampling=SamplingParams(seed=1), max_tokens=2, raw=raw)
        drafter = model_drafter(engine.conversation)
        for tokens in (engine.conversation.target.tokens, drafter.cache.tokens):
            assert tokens[0] == tiny.VOCABULARY.bos
            assert tokens.count(tiny.VOCABULARY.bos) == 1
        assert reply.stats.prompt_tokens == len(engine.prepare(prompt, raw=raw).tokens)


def test_no_beginning_of_text_where_the_file_wants_none(tmp_path: Any) -> None:
    path = tiny.write_model(tmp_path / "no_bos.gguf", chat_template=tiny.CHATML, add_bos=False)
    with opened(path) as engine:
        text_of(engine, max_tokens=2)
        assert tiny.VOCABULARY.bos not in engine.conversation.target.tokens


def test_the_template_in_use_is_named(tiny_target: Any, tiny_untemplated: Any) -> None:
    def notices(**changes: Any) -> str:
        with opened(**changes) as engine:
            return "\n".join(engine.notices)

    assert "template" not in notices(model=tiny_target)
    assert "ChatML" in notices(model=tiny_untemplated)
    assert "given by the user" in notices(model=tiny_target, chat_template="gemma")


def test_another_template_makes_another_prompt(tiny_target: Any) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    with opened(tiny_target, chat_template=template) as engine:
        prompt = engine.prepare([{"role": "user", "content": "ab"}])
        assert prompt.text == "[ab]"
        assert len(prompt.tokens) == 1 + len("[ab]")
        assert not prompt.opens_thought
        assert engine.prepare("ab") == prompt
    with opened(tiny_target, chat_template=template + "<think>\n") as engine:
        assert engine.prepare("ab").opens_thought


def test_variables_reach_the_chat_template(tiny_target: Any) -> None:
    template = "{{ messages[0].content }}{{ enable_thinking }}"
    with opened(tiny_target, chat_template=template) as engine:
        assert engine.prepare("ab").text == "ab"
        assert engine.prepare("ab", template_kwargs={"enable_thinking": 1}).text == "ab1"
        with pytest.raises(OptionError, match="messages: a chat template gets that from"):
            engine.prepare("ab", template_kwargs={"messages": []})
        with pytest.raises(OptionError, match=r"template_kwargs is .* it must be a mapping"):
            engine.prepare("ab", template_kwargs=["enable_thinking"])  # type: ignore[arg-type]
    variables = {"enable_thinking": 0, "effort": "high"}
    with opened(tiny_target, chat_template=template, template_kwargs=variables) as engine:
        assert engine.prepare("ab").text == "ab0"
        assert engine.prepare("ab", template_kwargs={"enable_thinking": 1}).text == "ab1"
        assert "the chat template does not look at effort" in engine.notices


@pytest.mark.parametrize("verify", ["match", "residual"])
def test_ignored_end_tokens_are_never_drawn(tiny_pair: TinyPair, verify: str) -> None:
    with opened(*tiny_pair, verify=verify) as engine:
        for seed in range(40):
            sampling = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
            if engine.generate(PROMPT, sampling=sampling, max_tokens=60).finish_reason == "stop":
                break
        else:
            pytest.fail("no reply of 40 ends by itself: the test shows nothing")
        endless = replace(sampling, ignore_eos=True)
        reply = engine.generate(PROMPT, sampling=endless, max_tokens=60)
        assert (reply.finish_reason, len(reply.tokens)) == ("length", 60)
        assert not set(reply.tokens) & engine.conversation.end_tokens
        plain = text_of_plain(tiny_pair[0], endless)
        assert verify == "residual" or reply.text == plain


def text_of_plain(target: Any, sampling: SamplingParams) -> str:
    with opened(target) as engine:
        return engine.generate(PROMPT, sampling=sampling, max_tokens=60).text


def test_no_tokens_means_that_the_prompt_is_read(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair) as engine:
        reply = engine.generate(PROMPT, max_tokens=0)
        assert (reply.text, reply.tokens, reply.finish_reason) == ("", (), "length")
        assert reply.stats.prompt_tokens == len(engine.prepare(PROMPT).tokens)
        assert reply.stats.generated_tokens == 0
        after = engine.generate(PROMPT, sampling=SamplingParams(seed=1), max_tokens=40)
        assert after.stats.cached_tokens >= reply.stats.prompt_tokens - 1
    with opened(*tiny_pair) as engine:
        assert text_of(engine) == after.text


@pytest.mark.parametrize(
    ("changes", "target", "draft"),
    [
        ({}, ("f32", "f32"), ("f32", "f32")),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, ("q8_0", "q8_0"), ("f16", "f16")),
        ({"cache_type_k_draft": "f16"}, ("f32", "f32"), ("f16", "f32")),
        ({"cache_type_k": "f16", "cache_type_v_draft": "bf16"}, ("f16", "f32"), ("f16", "bf16")),
    ],
)
def test_the_draft_has_cache_types_of_its_own(
    tiny_pair: TinyPair,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    target: tuple[str, str],
    draft: tuple[str, str],
) -> None:
    opened_with: list[tuple[str, str]] = []

    def context(*models: Any, type_k: str, type_v: str, **others: Any) -> llama.Context:
        opened_with.append((type_k, type_v))
        if len(opened_with) == 2:
            raise DyspecError("enough")
        return real(*models, type_k="f32", type_v="f32", **others)

    real = llama.Context
    monkeypatch.setattr(llama, "Context", context)
    with pytest.raises(DyspecError, match="enough"):
        Engine.load(tiny_config(*tiny_pair, flash_attn="on", **changes))
    assert opened_with == [target, draft]


def test_the_last_tree_is_drawn_with_the_accepted_path(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair) as engine:
        assert engine.render_tree() == ""
        text_of(engine)
        lines = engine.render_tree().splitlines()
    assert len(lines) > 1
    assert lines[0].startswith("*")
