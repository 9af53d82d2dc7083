"""Engines in asyncio: the loop goes on during passes, and a task that is cancelled ends them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest

from dyspec_edge.engine import AsyncEngine, Engine, SamplingParams
from dyspec_edge.errors import Cancelled, DyspecError, OptionError
from tests.conftest import TinyPair
from tests.engines import NO_END, PROMPT, opened, tiny_config

Result = TypeVar("Result")
GREEDY = SamplingParams(temperature=0.0)
ENDLESS: dict[str, Any] = {"sampling": NO_END, "max_tokens": 900}


@pytest.fixture(scope="module")
def plain(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(tiny_pair.target) as engine:
        yield engine


def run(test: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(test, 60))


@asynccontextmanager
async def loaded(pair: TinyPair) -> AsyncIterator[AsyncEngine]:
    async with await AsyncEngine.load(tiny_config(pair.target, pair.draft)) as engine:
        yield engine


def test_a_reply_is_the_engines(tiny_pair: TinyPair, plain: Engine) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            found = await engine.generate(PROMPT, sampling=GREEDY, max_tokens=30, logprobs=2)
            text = [c.text async for c in engine.stream(PROMPT, sampling=GREEDY, max_tokens=30)]
            prompt = await engine.prepare(PROMPT)
            again = await engine.generate(prompt, sampling=GREEDY, max_tokens=30)
        want = plain.generate(PROMPT, sampling=GREEDY, max_tokens=30, logprobs=2)
        assert found.tokens == again.tokens == want.tokens
        assert "".join(text) == found.text == want.text
        assert found.logprobs is not None
        assert len(found.logprobs) == len(want.logprobs or ())

    run(test())


def test_the_loop_goes_on_while_passes_run(tiny_pair: TinyPair) -> None:
    async def test() -> None:
        longest, over = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not over:
                started = time.perf_counter()
                await asyncio.sleep(0)
                longest = max(longest, time.perf_counter() - started)

        async with loaded(tiny_pair) as engine:
            slow = engine.engine.conversation.generate
            threads = set[int]()

            def noted(*args: Any, **options: Any) -> Iterator[Any]:
                for step in slow(*args, **options):
                    threads.add(threading.get_ident())
                    time.sleep(0.3)
                    yield step

            engine.engine.conversation.generate = noted  # type: ignore[method-assign]
            watcher = asyncio.create_task(watch())
            await engine.generate(PROMPT, sampling=GREEDY, max_tokens=3)
            over = True
            await watcher
        assert threads
        assert threading.get_ident() not in threads
        assert longest < 0.25

    run(test())


def test_tasks_wait_for_each_other_and_answers_are_not_mixed_up(
    tiny_pair: TinyPair, plain: Engine
) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            replies = [
                engine.generate(PROMPT, sampling=SamplingParams(seed=seed), max_tokens=20)
                for seed in range(6)
            ]
            found = await asyncio.gather(*replies)
        for seed, reply in enumerate(found):
            want = plain.generate(PROMPT, sampling=SamplingParams(seed=seed), max_tokens=20)
            assert reply.tokens == want.tokens

    run(test())


def test_a_task_that_is_cancelled_ends_the_pass_and_frees_the_engine(tiny_pair: TinyPair) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            chunks = 0

            async def read() -> None:
                nonlocal chunks
                async for _ in engine.stream(PROMPT, **ENDLESS):
                    chunks += 1

            task = asyncio.create_task(read())
            while chunks < 3:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            written = len(engine.engine.conversation.target.tokens)
            await asyncio.sleep(0.1)
            assert len(engine.engine.conversation.target.tokens) == written < 500
            after = await engine.generate(PROMPT, sampling=GREEDY, max_tokens=5)
            assert after.finish_reason == "length"

    run(test())


def test_a_task_that_is_cancelled_before_its_turn_leaves_the_reply_under_way_alone(
    tiny_pair: TinyPair,
) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            first = engine.engine.stream(PROMPT, sampling=GREEDY, max_tokens=40)
            next(first)  # of another thread's, say: nothing that asyncio knows of
            waiting = asyncio.create_task(engine.generate(PROMPT, max_tokens=5))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert list(first)[-1].finish_reason == "length"

    run(test())


def test_a_stream_that_is_closed_early_lets_the_next_one_begin(tiny_pair: TinyPair) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            async with aclosing(engine.stream(PROMPT, **ENDLESS)) as chunks:
                async for _ in chunks:
                    break
            assert (await engine.generate(PROMPT, max_tokens=3)).finish_reason is not None

    run(test())


def test_cancel_ends_a_reply_with_a_last_chunk(tiny_pair: TinyPair) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            reasons = []
            async for chunk in engine.stream(PROMPT, **ENDLESS):
                reasons.append(chunk.finish_reason)
                engine.cancel()
            assert reasons[-1] == "cancelled"

    run(test())


def test_errors_come_where_the_reply_is_awaited(tiny_pair: TinyPair) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as engine:
            with pytest.raises(OptionError, match="max_tokens is -3"):
                await engine.generate(PROMPT, max_tokens=-3)
        with pytest.raises(DyspecError, match="closed"):
            await engine.generate(PROMPT)

    run(test())


def test_a_stream_for_threads_can_be_cancelled_alone(tiny_pair: TinyPair) -> None:
    with opened(tiny_pair.target, tiny_pair.draft) as engine:
        waiting = engine.stream(PROMPT, max_tokens=5)
        waiting.cancel()
        assert [chunk.finish_reason for chunk in waiting] == ["cancelled"]
        first = engine.stream(PROMPT, **ENDLESS)
        next(first)
        second, raised = engine.stream(PROMPT, max_tokens=5), list[BaseException]()

        def read() -> None:
            try:
                next(second)
            except Cancelled as error:
                raised.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        second.cancel()
        thread.join(10)
        assert len(raised) == 1
        next(first)
        first.cancel()
        assert list(first)[-1].finish_reason == "cancelled"
        assert engine.generate(PROMPT, sampling=NO_END, max_tokens=3).finish_reason == "length"


def test_several_engines_at_a_time(tiny_pair: TinyPair, plain: Engine) -> None:
    async def test() -> None:
        async with loaded(tiny_pair) as one, loaded(tiny_pair) as other:
            found = await asyncio.gather(
                *(e.generate(PROMPT, sampling=GREEDY, max_tokens=30) for e in (one, other))
            )
        want = plain.generate(PROMPT, sampling=GREEDY, max_tokens=30)
        assert [reply.tokens for reply in found] == [want.tokens] * 2

    run(test())
