"""Candidates found in the decode graph against the host's own top-k of the same rows."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ctypes import c_bool, c_void_p
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge import native
from dyspec_edge.decode.draft.backend import choose
from dyspec_edge.decode.draft.ranking import Ranking
from dyspec_edge.decode.loop import Conversation
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.errors import DyspecError
from dyspec_edge.llama import Context, Model, backend_sampler
from dyspec_edge.native import BACKEND_FUNCTIONS
from tests import tiny
from tests.batches import Batch, clear
from tests.conftest import TinyPair
from tests.decoding import model_drafter, open_context, opened_decoder, reply, steps
from tests.engines import opened as opened_engine
from tests.engines import text_of

K = 64
NUM_VOCAB = len(tiny.VOCABULARY)
Opened = Callable[..., Context]
Found = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]


@pytest.fixture
def opened(gpu_layers: int) -> Iterator[Opened]:
    """`opened(path, num_sequences)`: a context over a model with --gpu-layers on the GPU."""
    with ExitStack() as stack:

        def open_it(path: Path, num_sequences: int = 1) -> Context:
            model = stack.enter_context(Model(path, num_gpu_layers=gpu_layers))
            context = open_context(model, num_sequences=num_sequences)
            stack.callback(context.close)
            return context

        yield open_it


def empty(n: int) -> Found:
    return np.empty((n, K), np.int32), np.empty((n, K), np.float32), np.empty(n, np.float32)


def on_backend(context: Context, rows: list[int]) -> Found:
    assert context.backend_sampler is not None
    found = empty(len(rows))
    context.backend_sampler.read(np.array(rows, np.int32), *found)
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


def fill(batch: Batch, num_sequences: int) -> None:
    """Ten shared tokens, then three rows for each sequence; the first of them wants no output."""
    batch.clear()
    tokens = np.random.default_rng(1).choice(tiny.VOCABULARY.normal, 10).tolist()
    batch.add(tokens, 0, range(num_sequences), output=False)
    for seq in range(num_sequences):
        batch.add([270 + 7 * seq], 10, [seq], output=False)
        batch.add([271 + 7 * seq, 272 + 7 * seq], 11, [seq], output=True)


@pytest.mark.parametrize("num_sequences", [1, 4])
@pytest.mark.parametrize("limit", [NUM_VOCAB, 300])
def test_candidates_of_a_pass(
    opened: Opened, tiny_target: Path, num_sequences: int, limit: int
) -> None:
    """Several rows of several sequences in one decode, twice, so that a graph is used again."""
    context = opened(tiny_target, num_sequences)
    batch = Batch(context.max_rows)
    fill(batch, num_sequences)
    rows = np.flatnonzero(batch.output[: batch.size]).tolist()
    batch.decode(context)
    wanted = on_host(context, len(rows), limit)
    assert context.attach_backend_sampler(num_vocab=limit, k=K)
    for _ in range(2):
        clear(context)
        batch.decode(context)
        assert_same(on_backend(context, rows), wanted)
    context.detach_backend_sampler()
    clear(context)
    batch.decode(context)
    assert_same(on_host(context, len(rows), limit), wanted)


def test_other_sequences_in_every_pass(opened: Opened, tiny_target: Path) -> None:
    """llama.cpp keeps places in memory from pass to pass, whichever sequences are in them."""
    host, device = opened(tiny_target, 8), opened(tiny_target, 8)
    assert device.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    rng = np.random.default_rng(0)
    for _ in range(60):
        batch = Batch(host.max_rows)
        batch.add([5, 6, 7], 0, range(8), output=False)
        for seq in rng.permutation(8)[: rng.integers(1, 7)].tolist():
            batch.add(
                rng.choice(tiny.VOCABULARY.normal, rng.integers(1, 3)).tolist(),
                3,
                [seq],
                output=True,
            )
        for context in (host, device):
            clear(context)
            batch.decode(context)
        rows = range(3, batch.size)
        assert_same(on_backend(device, [*rows]), on_host(host, len(rows), NUM_VOCAB))


def test_rows_that_all_sequences_share(opened: Opened, tiny_target: Path) -> None:
    """As passes are timed: every row carries every id."""
    context = opened(tiny_target, 16)
    batch = Batch(context.max_rows)
    batch.add([5, 6, 7, 8], 0, range(16), output=True)
    batch.decode(context)
    wanted = on_host(context, 4, NUM_VOCAB)
    assert context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    clear(context)
    batch.decode(context)
    assert_same(on_backend(context, [0, 1, 2, 3]), wanted)


def test_logits_stay_where_they_are(opened: Opened, tiny_target: Path) -> None:
    context = opened(tiny_target)
    batch = Batch(context.max_rows)
    batch.add([5], 0, output=True)
    assert context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    batch.decode(context)
    ids, logits, _ = on_backend(context, [0])
    row = context.row_view(context.logits_address())
    assert not np.array_equal(row[ids[0]], logits[0])


def test_a_vocabulary_smaller_than_k(opened: Opened, tiny_six: TinyPair) -> None:
    context = opened(tiny_six.target)
    batch = Batch(context.max_rows)
    batch.add([1, 3, 4], 0, output=True)
    batch.decode(context)
    wanted = on_host(context, 3, 6)
    assert context.attach_backend_sampler(num_vocab=6, k=K)
    clear(context)
    batch.decode(context)
    found = on_backend(context, [0, 1, 2])
    assert_same(found, wanted)
    assert (found[0][:, 6:] == -1).all()


@pytest.mark.parametrize(("value", "fails"), [(np.nan, True), (np.inf, True), (-np.inf, False)])
def test_logits_that_are_no_numbers(
    opened: Opened, tmp_path: Path, value: float, fails: bool
) -> None:
    bias = tiny.VOCABULARY.bias()
    bias[300] = value
    context = opened(tiny.write_model(tmp_path / "broken.gguf", bias=bias))
    batch = Batch(context.max_rows)
    batch.add([1, 270], 0, output=True)
    batch.decode(context)
    row = context.row_view(context.logits_address())
    np.testing.assert_array_equal(row[300], value)
    wanted = None if fails else on_host(context, 2, NUM_VOCAB)
    assert context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    clear(context)
    batch.decode(context)
    if wanted is None:
        with pytest.raises(DyspecError, match="row 0 of the logits holds NaN"):
            on_backend(context, [0, 1])
    else:
        assert_same(on_backend(context, [0, 1]), wanted)


def test_a_row_that_wanted_no_logits(opened: Opened, tiny_target: Path) -> None:
    context = opened(tiny_target)
    batch = Batch(context.max_rows)
    batch.add([5, 6], 0, output=False)
    batch.output[1] = 1
    assert context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    batch.decode(context)
    on_backend(context, [1])
    with pytest.raises(DyspecError, match="no samples for a row"):
        on_backend(context, [0])


def test_the_host_does_it_for_another_commit(
    opened: Opened, tiny_target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = opened(tiny_target)
    with caplog.at_level(logging.DEBUG):
        assert not context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K, commit="1234567")
        assert context.backend_sampler is None
    assert caplog.messages == ["candidates come from the host: llama.cpp 1234567 is not known"]


def test_the_host_does_it_where_a_function_is_missing(
    opened: Opened,
    tiny_target: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = (*BACKEND_FUNCTIONS[:-1], "llama_get_sampled_nothing_ith")
    monkeypatch.setattr("dyspec_edge.native.BACKEND_FUNCTIONS", names)
    context = opened(tiny_target)
    with caplog.at_level(logging.DEBUG):
        assert not context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    assert "llama_get_sampled_nothing_ith" in caplog.messages[0]


def test_samplers_that_could_not_all_be_attached_are_gone(
    opened: Opened, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        function = getattr(llama_cpp, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            if calls.count("llama_set_sampler") == 3 and calls[-1] == "llama_set_sampler":
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    for name in ("llama_sampler_chain_init", "llama_sampler_free", "llama_set_sampler"):
        monkeypatch.setattr(llama_cpp, name, noted(name))
    context = opened(tiny_target, 4)
    batch = Batch(context.max_rows)
    batch.add([5, 6], 0, output=True)
    batch.decode(context)
    wanted = on_host(context, 2, NUM_VOCAB)
    with pytest.raises(KeyboardInterrupt):
        context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
    assert context.backend_sampler is None
    assert calls.count("llama_sampler_free") == calls.count("llama_sampler_chain_init") == 3
    clear(context)
    batch.decode(context)
    assert_same(on_host(context, 2, NUM_VOCAB), wanted)


def test_the_host_does_it_where_the_device_lacks_an_operation(
    opened: Opened,
    tiny_target: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After samplers were attached in vain, logits come to the host as before."""
    resolve = backend_sampler._address
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

    context = opened(tiny_target)
    with caplog.at_level(logging.DEBUG):
        batch = Batch(context.max_rows)
        batch.add([5, 6], 0, output=True)
        batch.decode(context)
        wanted = on_host(context, 2, NUM_VOCAB)
        monkeypatch.setattr(backend_sampler, "_address", address)
        assert not context.attach_backend_sampler(num_vocab=NUM_VOCAB, k=K)
        clear(context)
        batch.decode(context)
        assert_same(on_host(context, 2, NUM_VOCAB), wanted)
    assert "the device lacks an operation" in caplog.messages[-1]


TEXT = [1, *np.random.default_rng(3).choice(tiny.VOCABULARY.normal, 20).tolist()]


def steps_of(decoder: Conversation, params: SamplingParams, seed: int) -> list[list[int]]:
    """Tokens of each step and how many nodes were drafted; `priced` goes by the time as well."""
    found = steps(decoder, TEXT, params, seed=seed, max_tokens=30)
    if decoder.policy.name == "priced":
        return [[token for step in found for token in step.tokens]]
    return [[step.num_drafted, *step.tokens] for step in found]


def said(decoder: Conversation, seed: int) -> list[int]:
    params = SamplingParams(temperature=0.7)
    return reply(decoder, TEXT, params, seed=seed, max_tokens=60)


@pytest.mark.parametrize("verify", ["match", "residual"])
@pytest.mark.parametrize("policy", ["chain:6", "dyspec:16", "dyspec-threshold:32", "priced"])
def test_replies_are_the_same(
    tiny_pair: TinyPair, gpu_layers: int, policy: str, verify: str
) -> None:
    if policy == "priced" and verify == "residual":
        pytest.skip("priced trees look at tokens")
    options: dict[str, Any] = {
        "verify": verify,
        "gpu_layers": gpu_layers,
        "vocab_limit": NUM_VOCAB - 20,
        "excluded": tiny.VOCABULARY.normal[:30].tolist(),
    }
    with (
        opened_decoder(tiny_pair, policy, **options) as host,
        opened_decoder(tiny_pair, policy, device_sampling=True, **options) as device,
    ):
        for seed, temperature in ((1, 0.0), (2, 0.7), (3, 1.0)):
            params = SamplingParams(temperature=temperature)
            assert steps_of(device, params, seed) == steps_of(host, params, seed)
        drafters = model_drafter(host), model_drafter(device)
        if gpu_layers == 0:  # README.md, GPU: lavapipe crashes after some such moves
            drafters[1].detach_backend_sampler()  # back and forth, with a text in the cache
            assert steps_of(device, params, 4) == steps_of(host, params, 4)
            assert drafters[1].attach_backend_sampler()
        for drafter in drafters:
            drafter.cache.pad_to((1, 4, 16, 64))  # rows that nobody asked for
        assert steps_of(device, params, 5) == steps_of(host, params, 5)


def test_what_the_target_says_does_not_depend_on_it(tiny_pair: TinyPair, gpu_layers: int) -> None:
    """Loaded as a user does."""
    texts = {}
    for sampling in ("on", "off", "auto"):
        with opened_engine(
            *tiny_pair,
            device_sampling=sampling,
            num_gpu_layers=gpu_layers,
            num_gpu_layers_draft=gpu_layers,
        ) as engine:
            drafter = model_drafter(engine.conversation)
            is_on_backend = drafter.cache.context.backend_sampler is not None
            if sampling != "auto" or gpu_layers == 0:
                assert is_on_backend == (sampling == "on")
            texts[sampling] = [text_of(engine, seed=seed) for seed in range(5)]
    assert texts["on"] == texts["off"] == texts["auto"]


def test_nothing_is_drafted_from_numbers_that_are_none(
    tiny_target: Path, tmp_path: Path, gpu_layers: int
) -> None:
    """The host passes over NaN; with the device's candidates it is an error that says so."""
    bias = tiny.VOCABULARY.bias()
    bias[300] = np.nan
    pair = TinyPair(tiny_target, tiny.write_model(tmp_path / "broken.gguf", bias=bias))
    with (
        opened_decoder(pair, "dyspec:8", gpu_layers=gpu_layers) as host,
        opened_decoder(pair, "none", gpu_layers=gpu_layers) as plain,
    ):
        wanted = said(plain, 1)
        assert said(host, 1) == wanted
    with opened_decoder(pair, "dyspec:8", device_sampling=True, gpu_layers=gpu_layers) as device:
        with pytest.raises(DyspecError, match="row 0 of the draft's logits holds NaN or"):
            said(device, 1)
        model_drafter(device).detach_backend_sampler()
        assert said(device, 1) == wanted


class TimedDrafter:
    """A drafter whose passes take what they are told."""

    def __init__(self, on_host: float, on_backend: float | None) -> None:
        self._seconds = {False: on_host, True: on_backend}
        self.is_on_backend = False
        self.num_passes = 0

    def attach_backend_sampler(self) -> bool:
        self.is_on_backend = self._seconds[True] is not None
        return self.is_on_backend

    def detach_backend_sampler(self) -> None:
        self.is_on_backend = False

    def time_pass(self, num_rows: int) -> float:
        self.num_passes += 1
        seconds = self._seconds[self.is_on_backend]
        assert seconds is not None
        if np.isnan(seconds):
            raise DyspecError("row 0")
        return seconds * num_rows


@pytest.mark.parametrize(
    ("sampling", "on_gpu", "on_backend", "wanted"),
    [
        ("auto", True, 0.5, True),
        ("auto", True, 2.0, False),
        ("auto", True, None, False),
        ("auto", True, np.nan, False),
        ("auto", False, 0.5, False),
        ("off", True, 0.5, False),
        ("on", False, 2.0, True),
        ("on", False, None, False),
    ],
)
def test_auto_means_where_it_is_faster(
    sampling: str, on_gpu: bool, on_backend: float | None, wanted: bool
) -> None:
    drafter = TimedDrafter(1.0, on_backend)
    choose(drafter, sampling, on_gpu=on_gpu)  # type: ignore[arg-type]
    assert drafter.is_on_backend == wanted
    assert (drafter.num_passes > 0) == (sampling == "auto" and on_gpu)


def test_passes_are_timed_with_the_finding_of_candidates(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "dyspec:8") as decoder:
        drafter = model_drafter(decoder)
        text = [1, 270, 280]
        drafter.begin(text, Ranking(SamplingParams(), 1))
        drafter.read()
        assert 0 < drafter.time_pass(4) < 10
        assert drafter.attach_backend_sampler()
        assert 0 < drafter.time_pass(4) < 10
        assert drafter.cache.tokens == text
        assert not drafter.attach_backend_sampler(commit="1234567")
