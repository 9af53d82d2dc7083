"""An engine without models, with `Engine`'s interface: what it says depends on the last message.

    say TEXT      TEXT, word by word            slow       one word each 20 ms until cancelled
    think         a thought, then an answer     prefill    reads the prompt for 30 s
    fail          two words, then an error      deaf       hears no cancel
    nothing       an empty reply                ...        "You said: ..."

A token is a word; each message costs one more.  `python -m tests.fake_engine ARGS` runs the
program on it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dyspec_edge.cli import main
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine import Chunk, Engine, EngineConfig, Prompt, Stats
from dyspec_edge.errors import ContextOverflow, DecodeError

Messages = str | Sequence[Mapping[str, str]]
NOTICES = ("context 64 tokens (-c changes that)", "policy dyspec:8: predicted 1.4x")


class FakeEngine:
    notices = NOTICES

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.num_ctx = config.num_ctx or 64
        self.prompts: list[list[dict[str, str]]] = []
        self.calls: list[dict[str, Any]] = []
        self.closed = False
        self._cancelled = threading.Event()

    @classmethod
    def load(
        cls, config: EngineConfig, *, on_progress: Callable[[str, float], None] | None = None
    ) -> FakeEngine:
        if config.policy == "slow-load":
            sys.stderr.write("loading slowly\n")
            sys.stderr.flush()
        for step in range(5):
            if on_progress is not None:
                on_progress("loading", step / 4)
            if config.policy == "slow-load":
                time.sleep(0.5)
        return cls(config)

    def close(self) -> None:
        self.closed = True

    def cancel(self) -> None:
        self._cancelled.set()

    def render_tree(self) -> str:
        return "*the\n`- *[cat]" if self.calls else ""

    def prepare(self, prompt: Messages, *, raw: bool = False) -> Prompt:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        size = sum(len(message["content"].split()) + 1 for message in messages)
        opens = messages[-1]["content"] == "inside"
        return Prompt(json.dumps(list(messages)), tuple(range(size)), opens, raw)

    def stream(
        self,
        prompt: Messages | Prompt,
        *,
        sampling: SamplingParams,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        raw: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[Chunk]:
        self._cancelled.clear()
        prepared = prompt if isinstance(prompt, Prompt) else self.prepare(prompt, raw=raw)
        messages = json.loads(prepared.text)
        self.prompts.append(messages)
        self.calls.append(
            {"sampling": sampling, "max_tokens": max_tokens, "stop": tuple(stop), "raw": raw}
        )
        size = len(prepared.tokens)
        if size >= self.num_ctx:
            raise ContextOverflow(size, self.num_ctx)
        if messages[-1]["content"] == "prefill":
            for step in range(1500):
                if self._cancelled.wait(0.02):
                    break
                if on_prefill is not None:
                    on_prefill(step, 1500)
        reason, count = "stop", 0
        for word in self._words(messages[-1]["content"]):
            if self._cancelled.is_set() and messages[-1]["content"] != "deaf":
                reason = "cancelled"
                break
            if 0 <= max_tokens <= count:
                reason = "length"
                break
            count += 1
            yield Chunk(text=word, tokens=(count,), finish_reason=None, stats=None)
        seed = 12345 if sampling.seed is None else sampling.seed
        yield Chunk("", (), reason, make_stats(seed, size, count, self.num_ctx))

    def _words(self, text: str) -> Iterator[str]:
        if text.startswith("say "):
            words = text[4:].split(" ")
            yield from [words[0], *(f" {word}" for word in words[1:])]
        elif text in ("slow", "deaf"):
            for number in range(100_000):
                time.sleep(0.02)
                yield f"w{number} "
        elif text == "think":
            yield from ("<th", "ink>\nI wonder", " a bit.\n</thi", "nk>\n\nIt is", " 42.")
        elif text == "inside":
            yield from ("I wonder.\n", "</think>\n\n", "Inside.")
        elif text == "only thinking":
            yield "<think>"
            yield from self._words("slow")
        elif text == "fail":
            yield from ("so ", "far ")
            raise DecodeError("llama.cpp could not evaluate a batch of 9 tokens (code -3)")
        elif text == "bug":
            raise ZeroDivisionError("a mistake")
        elif text == "escape":
            yield "a\x1b[31mb\r\nc"
        elif text not in ("nothing", "prefill"):
            yield f"You said: {text}"


def make_stats(seed: int = 1, prompt: int = 10, generated: int = 4, num_ctx: int = 64) -> Stats:
    return Stats(
        seed=seed,
        policy="dyspec:8",
        verify="match",
        temperature=0.8,
        time_to_first_token=0.25,
        speedup=1.5,
        prompt_tokens=prompt,
        cached_tokens=prompt // 2,
        generated_tokens=generated,
        draft_tokens=8,
        accepted_tokens=3,
        steps=2,
        block_efficiency=2.5,
        acceptance_rate=0.375,
        accept_length_histogram=(0, 1, 1),
        tokens_per_second=15.0,
        prompt_tokens_per_second=100.0,
        prefill_seconds=0.1,
        decode_seconds=0.4,
        target_seconds=0.3,
        draft_seconds=0.15,
        rows_seconds=0.02,
        sampling_seconds=0.02,
        overhead_seconds=0.01,
        draft_passes=3,
        draft_rows=9,
        target_rows=10,
        context_used=prompt + generated,
        num_ctx=num_ctx,
        plain_seconds_per_token=0.1,
        streamed_bytes=600_000_000,
        stream_read_seconds=0.5,
        stream_wait_seconds=0.1,
    )


if __name__ == "__main__":
    Engine.load = FakeEngine.load  # type: ignore[method-assign, assignment]
    main.main()
