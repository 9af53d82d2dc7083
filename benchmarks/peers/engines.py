"""Who generates in this process: ourselves, and llama-cpp-python with its prompt lookup.

Every run loads models of its own, as every run of llama.cpp's programs does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers.programs import Outcome, Task
from benchmarks.peers.settings import Axis, Settings
from benchmarks.workbench import GREEDY, Engines, Setup, flash_attention


class PromptLookup:
    """llama-cpp-python's own generation with LlamaPromptLookupDecoding."""

    name = "llama-cpp-python, prompt lookup"
    axes = (Axis("num_pred_tokens", (), (8, 2, 4, 16)), Axis("max_ngram_size", (), (2, 3, 4)))

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def run(self, task: Task, settings: Settings) -> Outcome:
        """One model of its own."""
        setup = self._setup
        lookup = _CountingLookup(**settings)
        llama = llama_cpp.Llama(
            str(setup.model),
            n_ctx=setup.num_ctx,
            n_threads=setup.num_threads,
            n_threads_batch=setup.num_threads,
            n_gpu_layers=-1,
            flash_attn=flash_attention() == "on",
            draft_model=lookup,
            logits_all=True,  # implied, but room for more than 512 rows is made only if it is said
            verbose=False,
        )
        with closing(llama):
            tokens: list[int] = []
            is_over = False
            for token in llama.generate(task.tokens, temp=0.0, top_k=1):
                if not tokens:
                    started = time.perf_counter()
                is_over = llama_cpp.llama_vocab_is_eog(llama._model.vocab, token)
                if is_over:
                    break
                tokens.append(token)
                if len(tokens) == task.num_tokens:
                    break
            seconds = time.perf_counter() - started
            text = llama.detokenize(tokens).decode("utf-8", "replace")
        timed = len(tokens) + is_over - 1  # the first comes with the prompt
        return Outcome(
            tokens=tuple(tokens),
            text=text,
            is_over=is_over,
            timed_tokens=timed,
            seconds=seconds,
            drafted=lookup.num_drafted,
            accepted=timed - lookup.num_passes,
        )


class _CountingLookup(LlamaPromptLookupDecoding):  # type: ignore[misc]
    """Counts what is proposed; it is asked once before each pass after the prompt's."""

    num_passes = num_drafted = 0

    def __call__(self, tokens: npt.NDArray[np.intc], /, **ignored: Any) -> npt.NDArray[np.intc]:
        found: npt.NDArray[np.intc] = super().__call__(tokens, **ignored)
        self.num_passes += 1
        self.num_drafted += len(found)
        return found


class Ours:
    """An engine with one of our policies."""

    axes: Sequence[Axis] = ()

    def __init__(self, policy: str, setup: Setup) -> None:
        self.name = f"dyspec-edge, {policy}"
        self._config = setup.config(policy)

    def run(self, task: Task, settings: Settings) -> Outcome:  # noqa: ARG002 - there are none
        """One engine."""
        with closing(Engines()) as engines:
            engine = engines.get(self._config)
            reply = engine.generate(task.messages, sampling=GREEDY, max_tokens=task.num_tokens)
        stats, is_over = reply.stats, reply.finish_reason == "stop"
        return Outcome(
            tokens=reply.tokens,
            text=reply.text,
            is_over=is_over,
            timed_tokens=stats.generated_tokens + is_over,
            seconds=stats.decode_seconds,
            drafted=stats.draft_tokens,
            accepted=stats.accepted_tokens,
        )
