"""The engine for asyncio: passes run in threads, the event loop never waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from dyspec_edge.engine.engine import Engine
from dyspec_edge.engine.prompt import Prompt
from dyspec_edge.engine.reply import Chunk, Completion
from dyspec_edge.engine.turn import Stream
from dyspec_edge.load.config import EngineConfig
from dyspec_edge.text.template import Message


class AsyncEngine:
    """An engine whose methods are awaited.

    async with await AsyncEngine.load(EngineConfig("target.gguf", "draft.gguf")) as engine:
        async for chunk in engine.stream("Hello", max_tokens=64):
            print(chunk.text, end="")

    Replies are generated one at a time; tasks that ask meanwhile wait in their order.  A task that
    is cancelled ends the pass under way.  One that leaves the loop early closes the generator
    (`contextlib.aclosing`), or the next reply waits until Python has collected it.  Belongs to one
    event loop.

    Attributes:
        engine: the same engine for threads.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turn = asyncio.Lock()

    @classmethod
    async def load(
        cls, config: EngineConfig, *, on_progress: Callable[[str, float], None] | None = None
    ) -> AsyncEngine:
        """Open the models; arguments and errors as of `Engine.load`."""
        return cls(await asyncio.to_thread(Engine.load, config, on_progress=on_progress))

    async def prepare(self, prompt: str | Sequence[Message], **options: Any) -> Prompt:
        """As `Engine.prepare`."""
        return await asyncio.to_thread(self.engine.prepare, prompt, **options)

    async def stream(
        self, prompt: str | Sequence[Message] | Prompt, **options: Any
    ) -> AsyncGenerator[Chunk]:
        """As `Engine.stream`."""
        async with self._turn:
            chunks = self.engine.stream(prompt, **options)
            try:
                while (chunk := await self._next(chunks)) is not None:
                    yield chunk
            finally:
                # Whoever left while a pass was running has cancelled it: this does not take long.
                await asyncio.shield(asyncio.to_thread(chunks.close))

    async def generate(
        self, prompt: str | Sequence[Message] | Prompt, **options: Any
    ) -> Completion:
        """As `Engine.generate`."""
        return Completion.of([chunk async for chunk in self.stream(prompt, **options)])

    def cancel(self) -> None:
        """End the reply that is being generated; its stream ends with "cancelled"."""
        self.engine.cancel()

    async def close(self) -> None:
        """Free models and caches; a reply under way is cancelled.  Idempotent."""
        await asyncio.to_thread(self.engine.close)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _next(self, chunks: Stream[Chunk]) -> Chunk | None:
        """The next chunk; a task that is cancelled meanwhile waits for the pass to end."""
        step = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            chunks.cancel()
            await asyncio.wait([step])
            if not step.cancelled():
                step.exception()  # nobody asks for it any more
            raise
