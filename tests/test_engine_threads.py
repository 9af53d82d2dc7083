"""Replies that are cancelled, left half-read, or asked for by several threads at once."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dyspec_edge.engine import Chunk, Engine, SamplingParams
from dyspec_edge.errors import DyspecError
from dyspec_edge.native import AbortFlag
from tests.conftest import TinyPair
from tests.engines import NO_END, PROMPT, num_cached, opened, text_of

LONG = "the and of to in is it " * 80
PATIENCE = 30


@pytest.fixture(scope="module")
def engine(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(*tiny_pair, num_ctx=2048) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(tiny_pair: TinyPair) -> Callable[[str, int], str]:
    """What an engine that nobody disturbed says."""
    said: dict[tuple[str, int], str] = {}

    def say(prompt: str, seed: int) -> str:
        if (prompt, seed) not in said:
            with opened(*tiny_pair, num_ctx=2048) as fresh:
                said[prompt, seed] = text_of(fresh, prompt, seed=seed)
        return said[prompt, seed]

    return say


Expected = Callable[[str, int], str]


def read(stream: Iterator[Chunk], count: int = -1) -> list[Chunk]:
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == count:
            break
    return chunks


def still_right(engine: Engine, expected: Expected) -> None:
    for prompt, seed in ((PROMPT, 1), ("another one", 2)):
        assert text_of(engine, prompt, seed=seed) == expected(prompt, seed)


# Cancelling


def test_cancel_from_another_thread_ends_the_reply(engine: Engine, expected: Expected) -> None:
    stream = engine.stream(PROMPT, sampling=SamplingParams(seed=1))
    chunks = read(stream, 3)
    thread = threading.Thread(target=engine.cancel)
    thread.start()
    thread.join()
    chunks += read(stream)
    assert chunks[-1].finish_reason == "cancelled"
    stats = chunks[-1].stats
    assert stats is not None
    assert stats.generated_tokens == sum(len(chunk.tokens) for chunk in chunks)
    text = "".join(chunk.text for chunk in chunks)
    assert text != ""
    assert text.startswith(expected(PROMPT, 1)[: len(text)])
    still_right(engine, expected)


def test_cancel_at_any_moment_leaves_the_caches_valid(engine: Engine, expected: Expected) -> None:
    delays = random.Random(0)
    reasons = []
    for attempt in range(12):
        timer = threading.Timer(delays.uniform(0, 0.05), engine.cancel)
        timer.start()
        started = time.perf_counter()
        prompt = LONG if attempt % 2 else PROMPT
        reply = engine.generate(prompt, sampling=SamplingParams(seed=1), max_tokens=400)
        timer.join()
        reasons.append(reply.finish_reason)
        assert time.perf_counter() - started < PATIENCE
        assert max(num_cached(engine)) <= reply.stats.context_used
    assert "cancelled" in reasons
    still_right(engine, expected)


def test_cancel_while_a_prompt_is_read(tiny_pair: TinyPair, expected: Expected) -> None:
    with opened(*tiny_pair, num_ctx=2048) as engine:
        heard: list[tuple[int, int]] = []

        def on_prefill(done: int, total: int) -> None:
            heard.append((done, total))
            if len(heard) == 2:
                engine.cancel()

        chunks = read(engine.stream(LONG, sampling=NO_END, on_prefill=on_prefill))
        assert [chunk.finish_reason for chunk in chunks] == ["cancelled"]
        stats = chunks[0].stats
        assert stats is not None
        assert (stats.generated_tokens, stats.steps) == (0, 0)
        assert 0 < num_cached(engine)[0] < stats.prompt_tokens
        # What was read is not read again.
        reply = engine.generate(LONG, sampling=SamplingParams(seed=1), max_tokens=40)
        assert reply.stats.cached_tokens > 0
        assert reply.text == expected(LONG, 1)
        still_right(engine, expected)


def test_prefill_is_reported_from_nothing_to_all(engine: Engine) -> None:
    text_of(engine, "something else", max_tokens=1)
    heard: list[tuple[int, int]] = []
    engine.generate(LONG, max_tokens=1, on_prefill=lambda done, total: heard.append((done, total)))
    assert heard[0][0] == 0
    assert heard[-1][0] == heard[-1][1] > 0
    assert all(0 <= done <= total for done, total in heard)
    assert len({total for _, total in heard}) == 1
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)


def test_a_late_or_idle_cancel_touches_no_later_reply(engine: Engine, expected: Expected) -> None:
    engine.cancel()
    assert text_of(engine) == expected(PROMPT, 1)
    engine.conversation.abort()  # as a cancel leaves it that came when the reply had just ended
    assert text_of(engine) == expected(PROMPT, 1)


def test_a_cancel_means_the_reply_that_was_under_way(engine: Engine, expected: Expected) -> None:
    """Even where that one ends, and the next begins, before the flag is set."""
    stream = engine.stream(PROMPT, sampling=NO_END)
    next(stream)
    going_on: list[Iterator[Chunk]] = []

    class Slow(AbortFlag):
        def set(self) -> None:
            stream.close()
            following = engine.stream(PROMPT, sampling=SamplingParams(seed=1), max_tokens=40)
            going_on.append(itertools.chain([next(following)], following))
            super().set()

    engine.conversation._abort_flag = Slow()
    engine.cancel()
    assert "".join(chunk.text for chunk in going_on[0]) == expected(PROMPT, 1)


# Walking away


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_consumer_may_walk_away(engine: Engine, expected: Expected, count: int) -> None:
    for chunks, _ in enumerate(engine.stream(PROMPT, sampling=NO_END), start=1):
        if chunks == count:
            break
    still_right(engine, expected)
    stream = engine.stream(PROMPT, sampling=NO_END)
    read(stream, count)
    stream.close()
    assert text_of(engine, LONG) == expected(LONG, 1)


def test_a_dropped_stream_makes_way(engine: Engine, expected: Expected) -> None:
    stream = engine.stream(PROMPT, sampling=NO_END)
    next(stream)
    cycle: list[object] = [stream]
    cycle.append(cycle)  # only the garbage collector finds it
    del stream, cycle
    gc.collect()
    still_right(engine, expected)


def test_a_stream_that_was_never_begun_holds_nothing(engine: Engine, expected: Expected) -> None:
    stream = engine.stream(PROMPT, sampling=SamplingParams(seed=1), max_tokens=40)
    still_right(engine, expected)
    assert "".join(chunk.text for chunk in stream) == expected(PROMPT, 1)


def test_an_error_in_the_consumer_leaves_the_caches_valid(
    engine: Engine, expected: Expected
) -> None:
    def consume() -> None:
        for _ in engine.stream(PROMPT, sampling=SamplingParams(seed=3)):
            raise RuntimeError("the reader broke")

    with pytest.raises(RuntimeError, match="broke"):
        consume()
    gc.collect()
    still_right(engine, expected)


def test_closing_ends_a_half_read_reply(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair) as engine:
        stream = engine.stream(PROMPT, sampling=NO_END)
        next(stream)
    with pytest.raises(DyspecError, match="closed before the reply had ended"):
        next(stream)
    engine.close()


def test_closing_while_another_thread_generates(tiny_pair: TinyPair) -> None:
    with opened(*tiny_pair, num_ctx=2048) as engine:
        reasons: list[str] = []
        begun = threading.Event()

        def consume() -> None:
            try:
                for chunk in engine.stream(PROMPT, sampling=NO_END):
                    begun.set()
                    time.sleep(0.001)  # two seconds at least until the context is full
                    if chunk.finish_reason:
                        reasons.append(chunk.finish_reason)
            except DyspecError as error:
                reasons.append(str(error))

        thread = threading.Thread(target=consume)
        thread.start()
        assert begun.wait(PATIENCE)
        engine.close()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    cut = "the engine was closed before the reply had ended; load it again"
    assert reasons in ([cut], ["cancelled"])


# Several threads


def test_four_threads_get_what_each_would_get_alone(engine: Engine, expected: Expected) -> None:
    wanted = {(f"thread {n}", seed): "" for n in range(4) for seed in range(5)}
    for prompt, seed in wanted:
        wanted[prompt, seed] = expected(prompt, seed)
    said: dict[tuple[str, int], str] = {}

    def ask(prompt: str) -> None:
        for seed in range(5):
            said[prompt, seed] = text_of(engine, prompt, seed=seed)

    threads = [threading.Thread(target=ask, args=(f"thread {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert said == wanted


def test_a_cancelled_reply_makes_way_at_once(engine: Engine, expected: Expected) -> None:
    said: list[str] = []
    stream = engine.stream(PROMPT, sampling=NO_END)
    next(stream)
    waiting = threading.Thread(target=lambda: said.append(text_of(engine, "next please", seed=4)))
    waiting.start()
    engine.cancel()
    assert read(stream)[-1].finish_reason == "cancelled"
    waiting.join(PATIENCE)
    assert said == [expected("next please", 4)]
