"""What apps do to an engine that they embed: odd arguments, half-read streams, ends."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import psutil
import pytest

from dyspec_edge import EngineBusy
from dyspec_edge.decode.cache import Cache
from dyspec_edge.engine import Chunk, Engine, EngineConfig, SamplingParams
from dyspec_edge.engine.turn import Stream
from dyspec_edge.errors import DyspecError, OptionError
from tests import tiny
from tests.conftest import TinyPair
from tests.engines import NO_END, PROMPT, opened, text_of, tiny_config

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def engine(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(*tiny_pair) as engine:
        yield engine


# Arguments


@pytest.mark.parametrize("value", [2.5, 0.0, -2, True, "10", b"1", float("nan"), [3]])
def test_max_tokens_that_are_none(engine: Engine, value: Any) -> None:
    with pytest.raises(OptionError, match="max_tokens is"):
        engine.generate(PROMPT, max_tokens=value)


def test_max_tokens_none_is_no_limit(engine: Engine) -> None:
    chunks = engine.stream(PROMPT, max_tokens=None, sampling=GREEDY)
    assert next(chunks).tokens
    chunks.close()


def test_one_stop_string_needs_no_list(engine: Engine) -> None:
    whole = engine.generate(PROMPT, max_tokens=60, sampling=SamplingParams(seed=3)).text
    stop = whole[20:26]
    cut = engine.generate(PROMPT, max_tokens=60, sampling=SamplingParams(seed=3), stop=stop)
    assert cut.text == whole[: whole.index(stop)]
    with pytest.raises(OptionError, match="a stop string is empty"):
        engine.generate(PROMPT, stop="")
    plain = engine.generate(PROMPT, max_tokens=60, sampling=SamplingParams(seed=3), stop=None)
    assert plain.text == whole


@pytest.mark.parametrize("value", [b"END", 3, [b"END"], ["a", None], {"a": 1}])
def test_stop_strings_that_are_none(engine: Engine, value: Any) -> None:
    with pytest.raises(OptionError, match="stop is"):
        engine.generate(PROMPT, stop=value)


def test_logit_bias_may_be_a_mapping(engine: Engine) -> None:
    first = engine.generate(PROMPT, max_tokens=1, sampling=GREEDY).tokens[0]
    banned: Any = {first: -100.0}
    params = SamplingParams(temperature=0.0, logit_bias=banned)
    assert engine.generate(PROMPT, max_tokens=1, sampling=params).tokens[0] != first


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logit_bias": {"a": 1.0}}, "logit_bias names token 'a'"),
        ({"logit_bias": ((1, "x"),)}, "logit_bias of token 1 is 'x'"),
        ({"logit_bias": (1, 2)}, "must be pairs of a token id and a number"),
        ({"logit_bias": ((1, 1e30),)}, "logit_bias of token 1 is 1e+30"),
        ({"temperature": 1e-45}, "temperature is 1e-45; it must be 0"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": None}, "temperature is None"),
        ({"repeat_penalty": 1e-300}, "repeat_penalty is 1e-300"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"repeat_last_n": -2}, "repeat_last_n is -2"),
    ],
)
def test_sampling_options_without_meaning(
    engine: Engine, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        engine.generate(PROMPT, sampling=SamplingParams(**changes))
    assert words in str(caught.value)


def test_a_bias_that_bans_everything_is_the_options_fault(engine: Engine) -> None:
    bans = {token: float("-inf") for token in range(len(tiny.VOCABULARY))}
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, logit_bias=bans)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="logit_bias bans every token"):
            engine.generate(PROMPT, sampling=params, max_tokens=2)
    assert text_of(engine) == text_of(engine)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ({"role": "user", "content": "a"}, "messages is one message; put it into a list"),
        (b"text", "messages is b'text'"),
        (3, "messages is 3"),
        (["a"], "message 1 is 'a'"),
        ([{"role": "user", "content": b"a"}], "message 1 has no text as its 'content'"),
        ([{"role": "user", "content": None}], "message 1 has no text as its 'content'"),
        ([{"role": "user"}], "message 1 has no text as its 'content'"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "message 1 has a part of the type 'image_url'",
        ),
        ([{"role": "user", "content": ["a"]}], "message 1 has a part 'a'"),
    ],
)
def test_messages_of_another_form(engine: Engine, messages: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        engine.prepare(messages)
    assert words in str(caught.value)


def test_content_in_parts_and_beside_tool_calls(engine: Engine) -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "tree"}]
    whole = engine.prepare([{"role": "user", "content": "the tree"}])
    assert engine.prepare([{"role": "user", "content": parts}]) == whole
    calls = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    call = {"role": "assistant", "content": None, "tool_calls": calls}
    user = {"role": "user", "content": "a"}
    assert engine.prepare([user, call, user]).tokens


# Penalties that look back


def test_minus_one_looks_back_at_the_whole_context(tiny_target: Path) -> None:
    with opened(tiny_target, num_ctx=256) as engine:

        def said(last_n: int) -> str:
            params = SamplingParams(
                temperature=0.0, frequency_penalty=2.0, repeat_last_n=last_n, seed=1
            )
            return engine.generate(PROMPT, sampling=params, max_tokens=100).text

        assert said(-1) == said(256) == said(2**31 - 1)
        assert said(-1) != said(4)
        assert said(-1) != said(0)


# Prompts


def test_a_file_that_adds_an_end_does_not_end_prompts(tmp_path: Path) -> None:
    path = tiny.write_model(tmp_path / "t.gguf", chat_template=tiny.CHATML, add_eos=True)
    assert gguf.GGUFReader(path).get_field("tokenizer.ggml.add_eos_token") is not None
    with opened(path) as engine:
        for prompt in (engine.prepare(PROMPT), engine.prepare(PROMPT, raw=True)):
            assert prompt.tokens[-1] != tiny.VOCABULARY.eos


# Half-read streams


def test_a_second_call_in_the_same_thread_names_the_open_stream(engine: Engine) -> None:
    stream = engine.stream(PROMPT, sampling=NO_END, max_tokens=20)
    next(stream)
    assert engine.prepare(PROMPT).tokens
    assert engine.render_tree()
    with pytest.raises(EngineBusy, match="half-read in this thread"):
        engine.generate(PROMPT)
    assert sum(len(chunk.tokens) for chunk in stream) > 0
    assert text_of(engine)


def test_a_second_call_in_another_thread_waits(engine: Engine) -> None:
    stream = engine.stream(PROMPT, sampling=NO_END, max_tokens=5)
    next(stream)
    said: list[str] = []
    other = threading.Thread(target=lambda: said.append(text_of(engine)))
    other.start()
    other.join(0.2)
    assert other.is_alive()
    stream.close()
    other.join(30)
    assert said == [text_of(engine)]


def test_close_out_of_a_callback(tiny_pair: TinyPair) -> None:
    engine = Engine.load(tiny_config(*tiny_pair))
    reply = engine.generate(PROMPT, on_prefill=lambda _done, _total: engine.close())
    assert reply.finish_reason == "cancelled"
    with pytest.raises(DyspecError, match="the engine is closed"):
        engine.prepare(PROMPT)


def test_what_was_held_back_is_not_in_the_next_prompt(tiny_pair: TinyPair) -> None:
    params = SamplingParams(seed=4)
    with opened(*tiny_pair) as engine:
        whole = engine.generate(PROMPT, max_tokens=40, sampling=params).text
        stop = whole[10:18] + "\N{SNOWMAN}"
        stream = engine.stream(PROMPT, max_tokens=40, sampling=params, stop=stop)
        shown, held = "", False
        for chunk in stream:
            shown += chunk.text
            held = len(shown) < 18 and whole.startswith(shown)
            if held and len(shown) >= 8:
                break
        stream.close()
        assert held
        turns = [
            {"role": "user", "content": PROMPT},
            {"role": "assistant", "content": shown},
            {"role": "user", "content": "go on"},
        ]
        continued = engine.prepare(turns).tokens
        with opened(*tiny_pair) as fresh:
            assert continued == fresh.prepare(turns).tokens


# Threads, and engines that nobody closes


def test_counting_while_another_thread_closes(tiny_target: Path) -> None:
    for _ in range(5):
        engine = Engine.load(tiny_config(tiny_target))
        errors: list[BaseException] = []

        def count(engine: Engine = engine, errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    engine.prepare(PROMPT * 50)
                    engine.render_tree()
            except DyspecError as closed:
                errors.append(closed)

        threads = [threading.Thread(target=count) for _ in range(2)]
        for thread in threads:
            thread.start()
        engine.close()
        for thread in threads:
            thread.join(30)
        assert [str(error) for error in errors] == ["the engine is closed; load it again"] * 2


def test_engines_that_nobody_closes_do_not_grow(tiny_pair: TinyPair) -> None:
    process = psutil.Process()
    gc.collect()
    sizes = []
    for _ in range(20):
        engine = Engine.load(tiny_config(*tiny_pair, num_ctx=2048))
        engine.generate(PROMPT, max_tokens=3)
        del engine
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[4] < 8 << 20


def test_an_engine_that_is_open_at_the_end_ends_in_silence(tiny_pair: TinyPair) -> None:
    code = (
        "import sys\nfrom dyspec_edge import Engine, EngineConfig\n"
        "engine = Engine.load(EngineConfig(sys.argv[1], sys.argv[2], num_threads=1))\n"
        "stream = engine.stream('the tree', max_tokens=9)\nnext(stream)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *map(str, tiny_pair)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# Loading


class Impatient(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), Impatient()])
def test_what_on_progress_raises_comes_through(
    tiny_pair: TinyPair, error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(_what: str, _fraction: float) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        Engine.load(tiny_config(*tiny_pair), on_progress=refuse)
    assert caught.value is error
    assert capfd.readouterr().err == ""


def test_paths_may_be_text(tiny_pair: TinyPair) -> None:
    target, draft = map(str, tiny_pair)
    seen: list[str] = []
    config = tiny_config(target, draft)  # type: ignore[arg-type]
    with Engine.load(config, on_progress=lambda what, _fraction: seen.append(what)) as engine:
        assert text_of(engine)
    assert any("target.gguf" in what for what in seen)
    with pytest.raises(OptionError, match="model is 3; it must be the path of a GGUF file"):
        EngineConfig(3)  # type: ignore[arg-type]


# Interrupts while a prompt is read


@pytest.mark.parametrize("passes_before", [0, 1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Impatient])
def test_an_interrupt_while_a_prompt_is_read(
    tiny_pair: TinyPair,
    passes_before: int,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = "the and of to in is it " * 90  # several pieces, for the target and for the draft
    with opened(*tiny_pair, num_ctx=2048) as fresh:
        expected = [text_of(fresh, long), text_of(fresh)]
    with opened(*tiny_pair, num_ctx=2048) as engine:
        text_of(engine)
        note, left = Cache.note_committed, [passes_before]

        def interrupted(cache: Cache, tokens: Any) -> None:
            if left[0] == 0:
                left[0] = -1
                raise error
            left[0] -= 1
            note(cache, tokens)

        monkeypatch.setattr(Cache, "note_committed", interrupted)
        with pytest.raises(error):
            engine.generate(long, max_tokens=4)
        monkeypatch.undo()
        assert [text_of(engine, long), text_of(engine)] == expected


def test_ctrl_c_while_llama_cpp_loads(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    load = llama_cpp.llama_model_load_from_file
    survived: list[bool] = []

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)  # as it arrives out of a callback of llama.cpp
        survived.append(True)
        return load(*arguments)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Engine.load(tiny_config(tiny_target))
    assert survived
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert capfd.readouterr().err == ""
    monkeypatch.undo()
    with opened(tiny_target) as engine:
        assert text_of(engine)


def test_no_stream_begins_between_the_last_reply_and_the_end(tiny_target: Path) -> None:
    engine = Engine.load(tiny_config(tiny_target))
    said: list[str] = []

    def begin() -> None:
        try:
            said.append(engine.generate(PROMPT, max_tokens=500, sampling=GREEDY).text)
        except DyspecError as error:
            said.append(str(error))

    with engine._models_lock:  # as `prepare` holds it in another thread, over a long text
        closing = threading.Thread(target=engine.close)
        closing.start()
        time.sleep(0.2)
        late = threading.Thread(target=begin)
        late.start()
        time.sleep(0.2)
        assert said == []
    for thread in (closing, late):
        thread.join(30)
    assert said == ["the engine is closed; load it again"]


def test_a_reply_that_close_cuts_is_a_typed_error(tiny_target: Path) -> None:
    """Whoever reads it, and whether its reader sleeps between two chunks or in `generate`."""
    engine = Engine.load(tiny_config(tiny_target))
    half_read = engine.stream(PROMPT, sampling=NO_END)
    next(half_read)
    never_begun = engine.stream(PROMPT)
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(30)
    for _ in range(2):
        with pytest.raises(DyspecError, match="was closed before the reply had ended; load it"):
            next(half_read)
    half_read.close()
    with pytest.raises(DyspecError, match="the engine is closed; load it again"):
        next(never_begun)


def test_threads_that_read_one_stream_and_close_the_engine(tiny_target: Path) -> None:
    """No thread meets a ValueError of the generator inside, or an end that is none."""
    for _ in range(5):
        engine = Engine.load(tiny_config(tiny_target))
        stream = engine.stream(PROMPT, sampling=GREEDY)
        next(stream)
        ends: list[object] = []

        def read(stream: Stream[Chunk] = stream, ends: list[object] = ends) -> None:
            try:
                reasons = [chunk.finish_reason for chunk in stream]
                ends.append(reasons[-1] if reasons else "another thread's")
            except DyspecError as error:
                ends.append(str(error))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        engine.close()
        for thread in threads:
            thread.join(30)
        assert len(ends) == 3
        cut = "the engine was closed before the reply had ended; load it again"
        assert {str(end) for end in ends} <= {"None", "cancelled", "another thread's", cut}


def test_a_callback_cannot_read_or_close_its_own_stream(engine: Engine) -> None:
    streams: list[Stream[Chunk]] = []
    for act in (lambda: next(streams[-1]), lambda: streams[-1].close()):

        def on_prefill(_done: int, _total: int, act: Callable[[], object] = act) -> None:
            act()

        streams.append(engine.stream(PROMPT * 2, on_prefill=on_prefill))
        with pytest.raises(EngineBusy, match=r"use engine.cancel\(\)"):
            next(streams[-1])
        text_of(engine, "in between", max_tokens=1)
    assert text_of(engine)


def test_a_stop_string_is_refused_before_there_is_a_sampler(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_args: object) -> None:
        raise AssertionError("nobody would free it")

    monkeypatch.setattr("dyspec_edge.engine.reply.Sampler", made)
    with pytest.raises(OptionError, match="a stop string is empty"):
        engine.generate("hello", stop=[""], max_tokens=1)
    with pytest.raises(AssertionError, match="nobody would free it"):
        engine.generate("hello", max_tokens=1)
