"""Streamed weights: what stays, and passes whose logits are those of weights in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyspec_edge import Engine, EngineConfig, SamplingParams, llama
from dyspec_edge.decode.cache import Cache
from dyspec_edge.errors import ModelFileError
from dyspec_edge.load import streaming
from dyspec_edge.load.streaming import WINDOW, StreamPlan, plan_stream, start_stream
from dyspec_edge.native import Place, Use
from tests.conftest import TinyPair
from tests.decoding import evaluate_root
from tests.engines import tiny_config

MB = 1 << 20

# The plan


def layers(count: int, size: int = 4 * MB) -> tuple[list[int], list[tuple[int, Use]]]:
    """An embedding, layers of three matrices and a norm, an output matrix."""
    sizes = [200 * MB, *[1000, size, size, 2 * size] * count, 200 * MB]
    uses = [(0, Use.ROWS_TAKEN)]
    kinds = {1000: Use.OTHERWISE}
    uses += [(w, kinds.get(sizes[w], Use.MULTIPLIED)) for w in range(1, len(sizes))]
    return sizes, uses


def planned(room: int, count: int = 20) -> StreamPlan:
    plan = plan_stream(*layers(count), room)
    assert plan is not None
    return plan


def test_what_fits_stays_and_the_rest_is_read_in_the_order_of_use() -> None:
    sizes, _ = layers(20)
    plan = planned(400 * MB)
    assert plan.places[0] is Place.ROWS
    assert plan.places[1] is Place.RESIDENT  # a norm
    assert plan.places[-1] is Place.RESIDENT  # the largest would take the largest window
    assert list(plan.order) == sorted(plan.order)
    assert plan.window == 3 * 8 * MB
    assert plan.num_resident + plan.num_streamed == sum(sizes[1:])
    assert 380 * MB < plan.num_resident + plan.window + plan.rows_room <= 400 * MB


def test_what_stays_is_spread_over_the_pass() -> None:
    sizes, _ = layers(20)
    plan = planned(420 * MB)
    thirds = np.array_split(np.arange(1, len(sizes) - 1), 3)
    read = [sum(sizes[w] for w in third if w in plan.order) for third in thirds]
    assert max(read) - min(read) <= 16 * MB


def test_nothing_is_read_where_all_fits() -> None:
    plan = planned(1000 * MB)
    assert plan.order == ()
    assert plan.window == plan.num_streamed == 0


def test_too_little_room_is_no_plan() -> None:
    sizes, uses = layers(20)
    assert plan_stream(sizes, uses, 30 * MB) is None


def test_only_weights_that_one_node_multiplies_are_read_in_every_pass() -> None:
    uses = [
        (0, Use.ROWS_TAKEN),
        (1, Use.MULTIPLIED),
        (2, Use.MULTIPLIED),
        (3, Use.MULTIPLIED_BY_CHOICE),
        (2, Use.MULTIPLIED),
        (0, Use.MULTIPLIED),
        (5, Use.MULTIPLIED),
    ]
    plan = plan_stream([30 * MB] * 6, uses, 95 * MB)
    assert plan is not None
    assert plan.places == (
        Place.RESIDENT,  # rows of it, and all of it
        Place.STREAMED,
        Place.RESIDENT,  # twice in a pass
        Place.MAPPED,  # experts
        Place.MAPPED,  # used by nobody
        Place.STREAMED,
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 2000))
def test_a_plan_keeps_to_its_room(weights: list[int], room: int) -> None:
    sizes = [size * MB for size in weights]
    plan = plan_stream(sizes, [(w, Use.MULTIPLIED) for w in range(len(sizes))], room * MB)
    if plan is None:
        assert room * MB < max(*sizes, WINDOW, 0) or room * MB < sum(sizes)
        return
    assert plan.num_resident + plan.window + plan.rows_room <= room * MB
    assert plan.window >= max((sizes[w] for w in plan.order), default=0)


# Passes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that suit a model of half a megabyte, and the smallest window that there can be."""
    monkeypatch.setattr(streaming, "SMALL", 4096)
    monkeypatch.setattr(streaming, "WINDOW", 4096)
    monkeypatch.setattr(streaming, "WINDOW_WEIGHTS", (1,))
    monkeypatch.setattr(streaming, "ROWS_ROOM", 4 * 4096)


@contextmanager
def cache_over(model: llama.Model) -> Iterator[Cache]:
    context = llama.Context(model, num_ctx=512, num_sequences=1, num_outputs=8, num_threads=2)
    with closing(context), closing(Cache(context, 8)) as cache:
        yield cache


def logits_of(cache: Cache, tokens: list[int]) -> bytes:
    """Of the last token, after a text of its own."""
    cache.rewind(0)
    cache.prefill(tokens[:-1])
    return evaluate_root(cache, tokens[-1]).tobytes()


@pytest.mark.usefixtures("small")
def test_logits_are_those_of_weights_in_memory_in_thousands_of_passes(tiny_target: Path) -> None:
    random = np.random.default_rng(5)
    texts = [random.integers(3, 300, random.integers(1, 9)).tolist() for _ in range(20)]
    with llama.Model(tiny_target, use_extra_bufts=False) as whole, cache_over(whole) as cache:
        expected = [logits_of(cache, text) for text in texts]
    with llama.Model(tiny_target, use_extra_bufts=False) as model:
        found = start_stream(model, 200_000)
        assert found is not None
        assert found.plan.num_streamed > 2 * found.plan.num_resident
        stream = model.weight_stream
        assert stream is not None
        with cache_over(model) as cache:
            for i in range(1200):
                assert logits_of(cache, texts[i % 20]) == expected[i % 20]
        totals = stream.totals()
        assert totals.num_passes >= 2000
        assert totals.num_jumps == 0
        assert totals.num_bytes > 2000 * (found.plan.num_streamed - 8192 * len(found.plan.order))
        assert totals.num_row_bytes > 0


def streaming_config(pair: tuple[Path, Path], policy: str) -> EngineConfig:
    return tiny_config(*pair, stream="on", policy=policy)


def text_of(engine: Engine) -> str:
    sampling = SamplingParams(seed=3, temperature=1.0)
    return "".join(c.text for c in engine.stream("the tree", sampling=sampling, max_tokens=24))


@pytest.mark.usefixtures("small")
def test_a_reply_is_the_same_and_the_plan_is_said(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(tiny_config(*tiny_pair, policy="dyspec:8")) as engine:
        expected = text_of(engine)
    with_room(monkeypatch, 200_000)
    with Engine.load(streaming_config(tiny_pair, policy="dyspec:8")) as engine:
        assert text_of(engine) == expected
        said = next(line for line in engine.notices if "streams" in line)
    assert "are read in every pass at" in said


@pytest.mark.usefixtures("small")
def test_a_draft_without_room_is_mapped_and_the_target_without_any_is_left_alone(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, 0)
    with Engine.load(streaming_config(tiny_pair, policy="dyspec:8")) as engine:
        assert text_of(engine)
        assert any("does not fit beside it and is mapped" in line for line in engine.notices)
    monkeypatch.setattr(streaming, "WINDOW", 1 << 40)
    with Engine.load(streaming_config(tiny_pair, policy="dyspec:8")) as engine:
        assert text_of(engine)
        assert any("do not fit into memory, nor" in line for line in engine.notices)


def with_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Plan as if so many bytes were left for the weights."""

    def start(model: llama.Model, _: int, __: object, *, maps_draft: bool = False) -> object:
        fits = room or (200_000 if maps_draft else 0)
        return start_stream(model, fits, maps_draft=maps_draft)

    monkeypatch.setattr(streaming, "start_stream", start)


# Faults


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fault", ["cut", "written"])
def test_a_file_that_changes_is_an_error_and_no_crash(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    copy = tmp_path / "target.gguf"
    copy.write_bytes(tiny_pair[0].read_bytes())
    with_room(monkeypatch, 200_000)
    with Engine.load(streaming_config((copy, tiny_pair[1]), policy="none")) as engine:
        assert text_of(engine)
        if fault == "cut":
            os.truncate(copy, 4096)
        else:
            with copy.open("r+b") as file:
                file.write(b"GGUF")
        with pytest.raises(ModelFileError, match="cut off" if fault == "cut" else "written to"):
            text_of(engine)
        with pytest.raises(ModelFileError, match="load the model again"):
            text_of(engine)


@pytest.mark.usefixtures("small")
def test_a_file_that_is_replaced_is_still_read(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, other = tmp_path / "target.gguf", tmp_path / "other.gguf"
    copy.write_bytes(tiny_pair[0].read_bytes())
    other.write_bytes(b"another file")
    with_room(monkeypatch, 200_000)
    with Engine.load(streaming_config((copy, tiny_pair[1]), policy="none")) as engine:
        before = text_of(engine)
        other.replace(copy)
        assert text_of(engine) == before
