"""Candidates found in the decode graph against the host's own top-k of the same rows."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge import native
from dyspec_edge.errors import DyspecError
from dyspec_edge.llama import Batch, Context, Model, candidates
from dyspec_edge.native.library import DEVICE_FUNCTIONS
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import open_context

K = 64
NUM_VOCAB = len(tiny.VOCABULARY)
Found = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]


@contextmanager
def opened_context(path: Path, num_sequences: int = 1) -> Iterator[Context]:
    with Model(path) as model:
        context = open_context(model, num_sequences=num_sequences)
        yield context
        context.close()


def empty(n: int) -> Found:
    return np.empty((n, K), np.int32), np.empty((n, K), np.float32), np.empty(n, np.float32)


def on_device(context: Context, rows: list[int]) -> Found:
    assert context.candidates is not None
    found = empty(len(rows))
    context.candidates.read(np.array(rows, np.int32), *found)
    return found


def on_host(context: Context, num_rows: int, num_vocab: int) -> Found:
    found = empty(num_rows)
    base, step = context.logits_address(), 4 * context.model.num_vocab
    addresses = np.array([base + step * i for i in range(num_rows)], np.uint64)
    native.topk(addresses, num_vocab, K, *found)
    return found


def assert_same(found: Found, wanted: Found) -> None:
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
    np.testing.assert_allclose(found[2], wanted[2], atol=1e-5)


def prompt_of(num_sequences: int, batch: Batch) -> None:
    """Ten shared tokens, then three rows for each sequence; the first of them wants no output."""
    batch.clear()
    tokens = np.random.default_rng(1).choice(tiny.VOCABULARY.normal, 10).tolist()
    batch.add(tokens, 0, range(num_sequences), output=False)
    for seq in range(num_sequences):
        for position, output in ((10, False), (11, True), (12, True)):
            batch.add([3 + 256 + 7 * seq + position], position, [seq], output=output)


@pytest.mark.parametrize("num_sequences", [1, 4])
@pytest.mark.parametrize("limit", [NUM_VOCAB, 300])
def test_candidates_of_a_pass(tiny_target: Path, num_sequences: int, limit: int) -> None:
    """Several rows of several sequences in one decode, twice, so that a graph is used again."""
    with opened_context(tiny_target, num_sequences) as context:
        batch = Batch(context.max_rows)
        prompt_of(num_sequences, batch)
        rows = np.flatnonzero(batch.output[: batch.size]).tolist()
        context.decode(batch)
        wanted = on_host(context, len(rows), limit)
        assert context.attach_candidates(num_vocab=limit, k=K)
        for _ in range(2):
            context.clear()
            context.decode(batch)
            assert_same(on_device(context, rows), wanted)
        context.detach_candidates()
        context.clear()
        context.decode(batch)
        assert_same(on_host(context, len(rows), limit), wanted)


def test_rows_that_all_sequences_share(tiny_target: Path) -> None:
    """As passes are timed: every row carries every id."""
    with opened_context(tiny_target, 16) as context:
        batch = Batch(context.max_rows)
        batch.add([5, 6, 7, 8], 0, range(16), output=True)
        context.decode(batch)
        wanted = on_host(context, 4, NUM_VOCAB)
        assert context.attach_candidates(num_vocab=NUM_VOCAB, k=K)
        context.clear()
        context.decode(batch)
        assert_same(on_device(context, [0, 1, 2, 3]), wanted)


def test_logits_stay_where_they_are(tiny_target: Path) -> None:
    with opened_context(tiny_target) as context:
        batch = Batch(context.max_rows)
        batch.add([5], 0, output=True)
        assert context.attach_candidates(num_vocab=NUM_VOCAB, k=K)
        context.decode(batch)
        ids, logits, _ = on_device(context, [0])
        row = context.row_view(context.logits_address())
        assert not np.array_equal(row[ids[0]], logits[0])


def test_a_vocabulary_smaller_than_k(tiny_six: TinyPair) -> None:
    with opened_context(tiny_six.target) as context:
        batch = Batch(context.max_rows)
        batch.add([1, 3, 4], 0, output=True)
        context.decode(batch)
        wanted = on_host(context, 3, 6)
        assert context.attach_candidates(num_vocab=6, k=K)
        context.clear()
        context.decode(batch)
        found = on_device(context, [0, 1, 2])
        assert_same(found, wanted)
        assert (found[0][:, 6:] == -1).all()


@pytest.mark.parametrize(("value", "fails"), [(np.nan, True), (np.inf, True), (-np.inf, False)])
def test_logits_that_are_no_numbers(tmp_path: Path, value: float, fails: bool) -> None:
    bias = tiny.VOCABULARY.bias()
    bias[300] = value
    with opened_context(tiny.write_model(tmp_path / "broken.gguf", bias=bias)) as context:
        batch = Batch(context.max_rows)
        batch.add([1, 270], 0, output=True)
        context.decode(batch)
        row = context.row_view(context.logits_address())
        np.testing.assert_array_equal(row[300], value)
        wanted = None if fails else on_host(context, 2, NUM_VOCAB)
        assert context.attach_candidates(num_vocab=NUM_VOCAB, k=K)
        context.clear()
        context.decode(batch)
        if wanted is None:
            with pytest.raises(DyspecError, match="row 0 of the logits holds"):
                on_device(context, [0, 1])
        else:
            assert_same(on_device(context, [0, 1]), wanted)


def test_a_row_that_wanted_no_logits(tiny_target: Path) -> None:
    with opened_context(tiny_target) as context:
        batch = Batch(context.max_rows)
        batch.add([5, 6], 0, output=False)
        batch.output[1] = 1
        assert context.attach_candidates(num_vocab=NUM_VOCAB, k=K)
        context.decode(batch)
        on_device(context, [1])
        with pytest.raises(DyspecError, match="no samples for a row"):
            on_device(context, [0])


def test_the_host_does_it_for_another_commit(
    tiny_target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened_context(tiny_target) as context, caplog.at_level(logging.DEBUG):
        assert not context.attach_candidates(num_vocab=NUM_VOCAB, k=K, commit="1234567")
        assert context.candidates is None
    assert caplog.messages == ["candidates come from the host: llama.cpp 1234567 is not known"]


def test_the_host_does_it_where_a_function_is_missing(
    tiny_target: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (*DEVICE_FUNCTIONS[:-1], "llama_get_sampled_nothing_ith")
    monkeypatch.setattr("dyspec_edge.native.device.DEVICE_FUNCTIONS", names)
    with opened_context(tiny_target) as context, caplog.at_level(logging.DEBUG):
        assert not context.attach_candidates(num_vocab=NUM_VOCAB, k=K)
    assert "llama_get_sampled_nothing_ith" in caplog.messages[0]


def test_the_host_does_it_where_the_device_lacks_an_operation(
    tiny_target: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After samplers were attached in vain, logits come to the host as before."""
    resolve = candidates._address
    calls: list[int] = []

    def supports(_device: int, _tensor: int) -> bool:
        calls.append(1)
        return len(calls) != 5

    replaced = {
        "ggml_backend_buft_get_device": ctypes.CFUNCTYPE(c_void_p, c_void_p)(lambda _buft: 1),
        "ggml_backend_dev_supports_op": ctypes.CFUNCTYPE(c_bool, c_void_p, c_void_p)(supports),
    }

    def address(name: str) -> int:
        if name in replaced:
            return ctypes.cast(replaced[name], c_void_p).value or 0
        return resolve(name)

    with opened_context(tiny_target) as context, caplog.at_level(logging.DEBUG):
        batch = Batch(context.max_rows)
        batch.add([5, 6], 0, output=True)
        context.decode(batch)
        wanted = on_host(context, 2, NUM_VOCAB)
        monkeypatch.setattr(candidates, "_address", address)
        assert not context.attach_candidates(num_vocab=NUM_VOCAB, k=K)
        context.clear()
        context.decode(batch)
        assert_same(on_host(context, 2, NUM_VOCAB), wanted)
    assert "the device lacks an operation" in caplog.messages[-1]
