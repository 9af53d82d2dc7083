"""Recurrent states: snapshots take back what a step refused, copies what lies further back.

Where llama.cpp keeps no snapshots (mamba, jamba), a copy from within the step stands in for them.

Logits are compared with those of one fresh pass over the same text, which knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from dyspec_edge.decode.cache import COPY_BEFORE, NUM_COPIES, Cache
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import Cancelled, DecodeError
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.llama import Model
from tests import batches, tiny
from tests.decoding import PlainReference, Rows, open_context, opened_cache
from tests.tiny_architectures import HYBRIDS, Architecture

CLOSE = 1e-3
NUM_SNAPSHOTS = 6
CAPACITY = NUM_SNAPSHOTS + 1

STATES: tuple[Architecture, ...] = ("mamba", "jamba", *HYBRIDS)


def text(length: int, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(tiny.VOCABULARY.normal, length - 1).tolist()]


@pytest.fixture(scope="module", params=STATES)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def model(architecture: Architecture, tiny_state: Callable[[Architecture], Path]) -> Path:
    return tiny_state(architecture)


@pytest.fixture(scope="module")
def reference(model: Path) -> Iterator[PlainReference]:
    found = PlainReference(model, num_ctx=1024)
    yield found
    found.close()


@pytest.fixture
def cache(model: Path) -> Iterator[Cache]:
    with opened_cache(
        model, num_ctx=1024, capacity=CAPACITY, num_snapshots=NUM_SNAPSHOTS
    ) as opened:
        yield opened


def assert_holds(cache: Cache, reference: PlainReference, tokens: Sequence[int]) -> None:
    """The cache goes on from `tokens` as a fresh one would."""
    assert cache.tokens == list(tokens)
    row = evaluate_after(cache, 300)
    assert np.abs(row - reference.logits([*tokens, 300])[-1]).max() < CLOSE


def evaluate_after(cache: Cache, token: int) -> Rows:
    """The logits after one more token, which is committed."""
    tree = TokenTree(cache.tree_capacity, 1)
    tree.reset(token)
    cache.evaluate(tree, np.zeros(1, np.int32))
    row: Rows = cache.context.row_view(int(cache.rows[0])).copy()
    cache.commit(tree, [0])
    return row


def chain(cache: Cache, tokens: Sequence[int]) -> TokenTree:
    """A chain of `tokens` after the prefix, the root first, evaluated in one pass."""
    tree = TokenTree(cache.tree_capacity, 1)
    tree.reset(tokens[0])
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token, 0.5)
    cache.evaluate(tree, np.arange(tree.size, dtype=np.int32))
    return tree


def has_snapshots(cache: Cache) -> bool:
    return bool(cache.context.num_snapshots)


def test_llama_keeps_the_snapshots_that_the_lists_promise(
    cache: Cache, architecture: Architecture
) -> None:
    wanted = NUM_SNAPSHOTS if architecture in HYBRIDS else 0
    assert cache.context.num_snapshots == wanted


def test_the_file_tells_how_large_a_state_is(cache: Cache, model: Path) -> None:
    cache.prefill(text(5))
    size = llama_cpp.llama_state_seq_get_size_ext(cache.context._context, 0, 1)
    assert 0 <= size - inspect_file(model).state_bytes < 400, "but for how it is stored"


def test_every_depth_of_a_refusal(cache: Cache, reference: PlainReference) -> None:
    """A chain of each length, of which each number of tokens is kept, one step after the other."""
    said, rng = text(30), np.random.default_rng(7)
    cache.prefill(said)
    for length in range(1, CAPACITY + 1):
        for kept in range(1, length + 1):
            tokens = rng.choice(tiny.VOCABULARY.normal, length).tolist()
            tree = chain(cache, tokens)
            rows = [cache.context.row_view(int(cache.rows[i])).copy() for i in range(length)]
            wanted = reference.logits([*said, *tokens])[-length:]
            assert np.abs(np.stack(rows) - wanted).max() < CLOSE
            assert cache.commit(tree, list(range(kept))) == kept
            said += tokens[:kept]
            assert cache.tokens == said
    assert_holds(cache, reference, said)


def test_what_was_kept_is_read_again_sooner_or_later(
    cache: Cache, reference: PlainReference
) -> None:
    """Refusals in a row, so that more and more is owed; then another pass of each kind."""
    rng = np.random.default_rng(9)
    for num_refusals in range(8):
        said = text(20, seed=num_refusals)
        cache.prefill(said)
        for _ in range(num_refusals):
            tokens = rng.choice(tiny.VOCABULARY.normal, 4).tolist()
            cache.commit(chain(cache, tokens), [0, 1])
            said += tokens[:2]
        match num_refusals % 4:
            case 0:
                said += [300]
                evaluate_after(cache, 300)
            case 1:
                said += text(20, seed=3)
                cache.prefill(said)
            case 2:
                assert cache.time_pass(3) > 0
            case 3:  # a stop string that ended the text earlier
                said = said[:-1]
                assert cache.rewind(len(said)) <= len(said)
                cache.prefill(said)
        assert cache.tokens == said
        evaluate_after(cache, 301)
        assert_holds(cache, reference, [*said, 301])


@pytest.mark.parametrize("architecture_of_draft", ["mamba", "jamba", "lfm2"])
def test_a_chain_in_several_passes(
    tiny_state: Callable[[Architecture], Path], architecture_of_draft: Architecture
) -> None:
    """As a draft evaluates it: a row a pass, of which each number is kept."""
    path, rng = tiny_state(architecture_of_draft), np.random.default_rng(5)
    with (
        closing(PlainReference(path, num_ctx=1024)) as reference,
        opened_cache(path, num_ctx=1024, capacity=CAPACITY, num_snapshots=0) as cache,
    ):
        said = text(30)
        cache.prefill(said)
        for length in range(1, CAPACITY + 1):
            for kept in range(1, length + 1):
                tokens, new = rng.choice(tiny.VOCABULARY.normal, (2, length)).tolist()
                tree = TokenTree(cache.tree_capacity, 1)
                tree.reset(tokens[0])
                for node, token in enumerate(tokens[1:]):
                    tree.add(node, token, 0.5)
                unread = new[: length % 3]  # what the target said in the meantime
                said += unread
                wanted = reference.logits([*said, *tokens])[-length:]
                before = cache.num_rows
                for node in range(length):
                    cache.evaluate(tree, np.array([node], np.int32), unread if node == 0 else ())
                    row = cache.context.row_view(int(cache.rows[node]))
                    assert np.abs(row - wanted[node]).max() < CLOSE
                assert cache.num_rows - before == length + len(unread), "nothing is read again"
                assert cache.commit(tree, list(range(kept))) == kept
                said += tokens[:kept]
                assert cache.tokens == said
        assert_holds(cache, reference, said)


def test_a_chain_longer_than_the_snapshots_is_refused(cache: Cache) -> None:
    if not has_snapshots(cache):
        pytest.skip("copies take back a chain of any length")
    assert cache.context.num_snapshots is not None
    too_long = cache.context.num_snapshots + 2
    cache.prefill(text(30))
    tree = TokenTree(too_long, 1)
    tree.reset(300)
    for node in range(too_long - 1):
        tree.add(node, 301, 0.5)
    with pytest.raises((ValueError, DecodeError)):
        cache.evaluate(tree, np.arange(too_long, dtype=np.int32))


@pytest.mark.parametrize("num_rows", [1, 2, CAPACITY])
def test_a_dropped_tree_takes_all_rows_of_the_last_pass_along(
    cache: Cache, reference: PlainReference, num_rows: int
) -> None:
    """llama.cpp would take them back from a snapshot that this pass has not written."""
    said = text(40)
    cache.prefill(said)
    chain(cache, text(num_rows, seed=2))
    left = cache.rewind(len(cache.tokens))
    in_step = not has_snapshots(cache) and num_rows > 1
    assert left == len(said) - COPY_BEFORE * (not in_step), "where the state was saved"
    cache.prefill(said)
    assert_holds(cache, reference, said)


def test_llamas_own_snapshot_is_stale_there(tiny_state: Callable[[Architecture], Path]) -> None:
    """Why rows are counted: the call succeeds, and the state is that of another text."""
    path, said = tiny_state("qwen35"), text(40)
    with (
        closing(PlainReference(path)) as reference,
        opened_cache(path, capacity=CAPACITY, num_snapshots=NUM_SNAPSHOTS) as cache,
    ):
        cache.prefill(said)
        chain(cache, text(3, seed=2))
        assert llama_cpp.llama_memory_seq_rm(cache.context._memory, 0, len(said), -1)
        batch = batches.Batch(1)
        batch.add([300], len(said), output=True)
        batch.decode(cache.context)
        row = cache.context.row_view(cache.context.logits_address())
        assert np.abs(row - reference.logits([*said, 300])[-1]).max() > 10 * CLOSE


def test_padding_is_taken_back_with_what_was_refused(
    cache: Cache, reference: PlainReference
) -> None:
    cache.pad_to([1, 2, 4, 6, 16])
    said, rng = text(30), np.random.default_rng(8)
    cache.prefill(said)
    for length, kept in ((1, 1), (3, 1), (3, 3), (5, 2), (7, 3)):
        tokens = rng.choice(tiny.VOCABULARY.normal, length).tolist()
        tree = chain(cache, tokens)
        cache.commit(tree, list(range(kept)))
        said += tokens[:kept]
    assert_holds(cache, reference, said)


@pytest.mark.parametrize("removed", [1, NUM_SNAPSHOTS, NUM_SNAPSHOTS + 1, 20, 39])
def test_a_text_that_is_cut_is_read_again_from_a_copy(
    cache: Cache, reference: PlainReference, removed: int
) -> None:
    said = text(60)
    cache.prefill(said)
    left = cache.rewind(60 - removed)
    fits = removed <= NUM_SNAPSHOTS and has_snapshots(cache)
    wanted = 60 - removed if fits else 60 - COPY_BEFORE if removed <= COPY_BEFORE else 0
    assert left == wanted
    following = [*said[: 60 - removed], *text(20, seed=3)]
    assert cache.prefill(following) == wanted
    assert_holds(cache, reference, following)


def test_a_rollback_that_is_pending_is_part_of_a_copy(
    cache: Cache, reference: PlainReference
) -> None:
    said = text(30)
    cache.prefill(said)
    tokens = text(5, seed=4)
    cache.commit(chain(cache, tokens), [0, 1])
    said += tokens[:2]
    following = [*said, *text(10, seed=5)]
    assert cache.prefill(following) == len(said)
    left = len(said) - 2 * (not has_snapshots(cache))
    assert cache.rewind(len(said)) == left, "saved before anything new was read"
    assert_holds(cache, reference, said[:left])


def test_old_thoughts_are_dropped(cache: Cache, reference: PlainReference) -> None:
    """Turn after turn only what is new is read, though each drops what was thought before it."""
    history = text(50)
    for turn in range(NUM_COPIES + 3):
        opened = [*history, *text(4, seed=90)]  # how a reply begins
        reused = cache.prefill(opened)
        if turn:
            assert len(opened) - reused < 100, "not from the start"
        for token in text(120, seed=20 + turn):  # a long thought
            evaluate_after(cache, token)
        history = [*history, *text(40, seed=40 + turn)]
    cache.prefill(history)
    assert_holds(cache, reference, history)


def test_copies_are_bounded(cache: Cache, reference: PlainReference) -> None:
    said: list[int] = []
    for turn in range(NUM_COPIES + 3):
        said += text(30, seed=turn)
        cache.prefill(said)
    oldest = 30 * 4 - COPY_BEFORE
    assert cache.rewind(oldest) == oldest
    assert cache.rewind(oldest - 1) == 0
    cache.prefill(said)
    assert_holds(cache, reference, said)


@pytest.mark.parametrize("num_rows", [1, 3, CAPACITY])
def test_after_an_aborted_pass_the_copy_goes_back(
    cache: Cache, reference: PlainReference, num_rows: int
) -> None:
    said = text(40)
    cache.prefill(said)
    for token in text(5, seed=6):
        evaluate_after(cache, token)
    cache.context.abort_flag.set()
    with pytest.raises(Cancelled):
        chain(cache, text(num_rows, seed=2))
    cache.context.abort_flag.clear()
    if has_snapshots(cache) or num_rows == 1:
        assert cache.tokens == said[: len(said) - COPY_BEFORE]
    else:
        assert cache.tokens == [*said, *text(5, seed=6)], "saved within the step"
    cache.prefill(said)
    assert_holds(cache, reference, said)


def test_an_aborted_prefill_keeps_what_was_saved(cache: Cache, reference: PlainReference) -> None:
    said = text(60)
    cache.prefill(said)
    cache.context.abort_flag.set()
    with pytest.raises(Cancelled):
        cache.prefill([*said, *text(300, seed=1)])
    cache.context.abort_flag.clear()
    cache.prefill(said)
    assert_holds(cache, reference, said)


def test_a_full_context_leaves_the_copy(model: Path) -> None:
    reference = PlainReference(model)
    with opened_cache(model, num_ctx=256, capacity=CAPACITY, num_snapshots=NUM_SNAPSHOTS) as cache:
        said = text(256)
        cache.prefill(said)
        if model.stem != "mamba":  # which has no cells that could run out
            with pytest.raises(DecodeError):
                evaluate_after(cache, 300)
            assert cache.tokens == said[: 256 - COPY_BEFORE]
        cache.prefill(said[:200])
        assert_holds(cache, reference, said[:200])
    reference.close()


def test_timing_leaves_the_state_as_it_was(cache: Cache, reference: PlainReference) -> None:
    for said in ([], text(30)):
        cache.prefill(said)
        for num_rows in (1, CAPACITY, 20):
            assert cache.time_pass(num_rows) > 0
            assert cache.tokens == said
    assert_holds(cache, reference, text(30))


def test_two_texts_in_one_context(model: Path, reference: PlainReference) -> None:
    with Model(model) as opened:
        context = open_context(
            opened, num_ctx=512, num_sequences=2, num_outputs=CAPACITY, num_snapshots=NUM_SNAPSHOTS
        )
        caches = [Cache(context, CAPACITY, first_id=i, num_ids=1) for i in range(2)]
        said = [text(30, seed=i) for i in range(2)]
        rng = np.random.default_rng(3)
        length = CAPACITY
        for cache, tokens in zip(caches, said, strict=True):
            cache.prefill(tokens)
        for kept in (1, 2, 4, 7):
            for cache, tokens in zip(caches, said, strict=True):
                drafted = rng.choice(tiny.VOCABULARY.normal, length).tolist()
                num = cache.commit(chain(cache, drafted), list(range(kept)))
                tokens += drafted[:num]
        for cache, tokens in zip(caches, said, strict=True):
            assert_holds(cache, reference, tokens)
        for cache in caches:
            cache.close()
        context.close()
