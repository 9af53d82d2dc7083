"""The tiny models must load in llama.cpp and be neither flat nor certain."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import tiny
from tests.conftest import TinyPair
from tests.tiny_architectures import Architecture

Rows = NDArray[np.float64]
TEXT = "Hello the tree, \u65e5\u672c \U0001f469\u200d\U0001f467\n<|im_start|>user"


@contextmanager
def opened(path: Path) -> Iterator[ctypes.c_void_p]:
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model is not None, path
    yield model
    llama_cpp.llama_model_free(model)


def tokenize(model: ctypes.c_void_p, text: str) -> list[int]:
    vocab = llama_cpp.llama_model_get_vocab(model)
    data = text.encode()
    buffer = (llama_cpp.llama_token * (len(data) + 8))()
    count = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, True)
    assert count > 0
    return list(buffer[:count])


def evaluate(path: Path, tokens: list[int]) -> Rows:
    """The log-probabilities after each of `tokens`."""
    with opened(path) as model:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
        context = llama_cpp.llama_init_from_model(model, params)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row] = token, row
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 1
        assert llama_cpp.llama_decode(context, batch) == 0
        num_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        address = llama_cpp.llama_get_logits(context)
        logits = np.ctypeslib.as_array(address, (len(tokens), num_vocab)).astype(np.float64)
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def overlap(pair: TinyPair, tokens: list[int]) -> float:
    """The mean chance that a drafted token is accepted at temperature 1."""
    rows = [np.exp(evaluate(path, tokens)) for path in pair]
    return float(np.minimum(*rows).sum(axis=1).mean())


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    normal = tiny.VOCABULARY.normal
    return [1, *np.random.default_rng(0).choice(normal, 63).tolist()]


def test_any_text_survives_the_tokenizer(tiny_target: Path) -> None:
    with opened(tiny_target) as model:
        ids = tokenize(model, TEXT)
        texts = [tiny.VOCABULARY.texts[token] for token in ids]
    assert texts[0] == "<s>"
    assert "\u2581tree" in texts
    assert "<|im_start|>" in texts
    assert "<0xF0>" in texts


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_distributions_are_neither_flat_nor_certain(
    architecture: Architecture, tokens: list[int], tmp_path: Path
) -> None:
    rows = evaluate(tiny.write_model(tmp_path / "model.gguf", architecture=architecture), tokens)
    assert np.isfinite(rows).all()
    assert 1.0 < -(np.exp(rows) * rows).sum(axis=1).mean() < 3.2
    bytes_and_ends = np.setdiff1d(np.arange(len(tiny.VOCABULARY)), tiny.VOCABULARY.normal)
    assert np.exp(rows[:, bytes_and_ends]).sum(axis=1).mean() < 0.1


def test_noise_sets_the_acceptance(tiny_target: Path, tokens: list[int], tmp_path: Path) -> None:
    def at(noise: float) -> float:
        draft = tiny.write_model(tmp_path / f"{noise}.gguf", noise=noise)
        return overlap(TinyPair(tiny_target, draft), tokens)

    assert at(0.0) == pytest.approx(1)
    assert 1 > at(0.05) > 0.7 > at(0.2) > 0.25 > at(1.0)


def test_adversarial_draft_is_never_right(tiny_adversarial: TinyPair, tokens: list[int]) -> None:
    target, draft = (evaluate(path, tokens) for path in tiny_adversarial)
    favourites = draft.argmax(axis=1)
    assert target[np.arange(len(tokens)), favourites].max() < -25
    assert overlap(tiny_adversarial, tokens) < 1e-9


def test_six_tokens_are_all_likely(tiny_six: TinyPair) -> None:
    rows = np.exp(evaluate(tiny_six.target, [1, 3, 4, 5]))
    assert rows.shape == (4, 6)
    assert rows.min() > 0.005
    assert 0.5 < overlap(tiny_six, [1, 3, 4, 5]) < 0.95


def test_shortened_vocabulary_keeps_its_rows(
    tiny_shortened: Path, tiny_pair: TinyPair, tokens: list[int]
) -> None:
    long, short = evaluate(tiny_pair.draft, tokens), evaluate(tiny_shortened, tokens)
    assert long.shape[1] - short.shape[1] == 8
    shared = np.exp(long[:, : short.shape[1]])
    assert np.minimum(shared, np.exp(short)).sum(axis=1).mean() > 0.98
