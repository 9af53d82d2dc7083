"""Trees on top of a cache: every node sees its own path, and commits leave a clean prefix."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from dyspec_edge.decode.cache import Cache, common_prefix
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import Cancelled, DecodeError, DyspecError
from dyspec_edge.llama import Model
from dyspec_edge.native import depth_first
from tests import tiny
from tests.conftest import TinyPair
from tests.decoding import PlainReference, Rows, evaluate_root, open_context, opened_cache

Rng = np.random.Generator
Grow = Callable[[TokenTree, Rng], None]

CLOSE = 1e-3
CAPACITY = 301
TOKENS = np.arange(3, len(tiny.VOCABULARY))


def text(length: int, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).choice(TOKENS, length - 1).tolist()]


def add(tree: TokenTree, rng: Rng, parent: int) -> int:
    """A child with a token that its siblings do not have."""
    taken = [int(tree.token[child]) for child in tree.children(parent)]
    return tree.add(parent, int(rng.choice(np.setdiff1d(TOKENS, taken))), 0.5)


def chain(tree: TokenTree, rng: Rng) -> None:
    for node in range(20):
        add(tree, rng, node)


def star(tree: TokenTree, rng: Rng) -> None:
    for _ in range(200):
        add(tree, rng, 0)


def binary(tree: TokenTree, rng: Rng) -> None:
    """Every node has two children, five layers deep."""
    for node in range(31):
        add(tree, rng, node)
        add(tree, rng, node)


def bushy(tree: TokenTree, rng: Rng) -> None:
    for _ in range(80):
        add(tree, rng, int(rng.integers(tree.size)))


def comb(tree: TokenTree, rng: Rng) -> None:
    """A spine with a side branch of two at each vertebra."""
    spine = 0
    for _ in range(12):
        below = add(tree, rng, spine)
        add(tree, rng, add(tree, rng, spine))
        spine = below


def many_leaves(tree: TokenTree, rng: Rng) -> None:
    """200 leaves at several depths."""
    while tree.num_leaves < 200:
        add(tree, rng, int(rng.integers(min(tree.size, 60))))


def root_alone(_tree: TokenTree, _rng: Rng) -> None:
    pass


SHAPES: list[Grow] = [root_alone, chain, star, binary, bushy, comb, many_leaves]


def grown(grow: Grow, root: int, seed: int = 0) -> TokenTree:
    tree = TokenTree(CAPACITY, 1)
    tree.reset(root)
    grow(tree, np.random.default_rng(seed))
    return tree


def copy_rows(cache: Cache, nodes: Sequence[int]) -> dict[int, Rows]:
    """The logits of nodes that the last pass evaluated."""
    return {node: cache.context.row_view(int(cache.rows[node])).copy() for node in nodes}


def depth_first_pass(cache: Cache, tree: TokenTree) -> dict[int, Rows]:
    order = depth_first(tree.parent, tree.size)
    cache.evaluate(tree, order)
    return copy_rows(cache, order.tolist())


def layered_passes(cache: Cache, tree: TokenTree) -> dict[int, Rows]:
    rows: dict[int, Rows] = {}
    for depth in range(int(tree.depth[: tree.size].max()) + 1):
        layer = np.flatnonzero(tree.depth[: tree.size] == depth).astype(np.int32)
        cache.evaluate(tree, layer)
        rows |= copy_rows(cache, layer.tolist())
    return rows


def scattered_passes(cache: Cache, tree: TokenTree) -> dict[int, Rows]:
    """Batches as lazy evaluation asks for them: some nodes whose parents are done, any order."""
    rng = np.random.default_rng(5)
    cache.evaluate(tree, np.zeros(1, np.int32))
    rows = copy_rows(cache, [0])
    while len(rows) < tree.size:
        ready = [n for n in range(tree.size) if n not in rows and int(tree.parent[n]) in rows]
        nodes = rng.permutation(ready)[: int(rng.integers(1, len(ready) + 1))].astype(np.int32)
        cache.evaluate(tree, nodes)
        rows |= copy_rows(cache, nodes.tolist())
    return rows


def assert_rows_are_right(
    reference: PlainReference,
    prefix: Sequence[int],
    tree: TokenTree,
    rows: dict[int, Rows],
    close: float = CLOSE,
) -> None:
    """Each node's logits equal those of its path, decoded alone."""
    assert sorted(rows) == list(range(tree.size))
    for leaf in np.flatnonzero(tree.num_children[: tree.size] == 0).tolist():
        path = tree.path(leaf)
        wanted = reference.logits([*prefix, *tree.token[path].tolist()])[len(prefix) :]
        for node, row in zip(path, wanted, strict=True):
            assert np.abs(rows[node] - row).max() < close, f"node {node}"


@pytest.fixture(scope="module")
def reference(tiny_target: Path) -> Iterator[PlainReference]:
    plain = PlainReference(tiny_target)
    yield plain
    plain.close()


@pytest.fixture(scope="module")
def wide(tiny_target: Path) -> Iterator[Cache]:
    """A cache for 200 leaves."""
    with opened_cache(tiny_target, num_ctx=768, num_sequences=200, capacity=CAPACITY) as cache:
        yield cache


@pytest.fixture
def cache(wide: Cache) -> Cache:
    wide.context.abort_flag.clear()
    wide.rewind(0)
    return wide


@pytest.mark.parametrize("passes", [depth_first_pass, layered_passes, scattered_passes])
@pytest.mark.parametrize("grow", SHAPES)
def test_every_node_sees_exactly_its_path(
    cache: Cache,
    reference: PlainReference,
    grow: Grow,
    passes: Callable[[Cache, TokenTree], dict[int, Rows]],
) -> None:
    prefix = text(20)
    cache.prefill(prefix)
    tree = grown(grow, root=300)
    assert_rows_are_right(reference, prefix, tree, passes(cache, tree))


def test_sliding_windows_see_exactly_their_path(tiny_sliding: TinyPair) -> None:
    prefix = text(40)  # longer than the window of 16
    close = 5 * CLOSE  # three times as many layers as the llama model
    tree = grown(bushy, root=300)
    plain = PlainReference(tiny_sliding.target)
    with opened_cache(tiny_sliding.target, num_sequences=80, capacity=CAPACITY) as cache:
        cache.prefill(prefix)
        assert_rows_are_right(plain, prefix, tree, depth_first_pass(cache, tree), close)
        cache.commit(tree, tree.path(80))
        row = evaluate_root(cache, 310)
        wanted = plain.logits([*prefix, *tree.token[tree.path(80)].tolist(), 310])[-1]
        assert np.abs(row - wanted).max() < close
    plain.close()


def test_sliding_windows_can_be_rewound(tiny_sliding: TinyPair) -> None:
    """Their cells are kept, or the window before the cut would be gone."""
    prompt = text(900)
    plain = PlainReference(tiny_sliding.target)
    with opened_cache(tiny_sliding.target, num_ctx=1024, num_sequences=2) as cache:
        cache.prefill(prompt)
        cache.rewind(200)
        wanted = plain.logits([*prompt[:200], 300])[-1]
        assert np.abs(evaluate_root(cache, 300) - wanted).max() < 5 * CLOSE
    plain.close()


@pytest.mark.parametrize("passes", [depth_first_pass, layered_passes, scattered_passes])
def test_a_commit_leaves_what_a_fresh_prefill_would(
    cache: Cache,
    reference: PlainReference,
    passes: Callable[[Cache, TokenTree], dict[int, Rows]],
) -> None:
    rng = np.random.default_rng(3)
    expected = text(20)
    cache.prefill(expected)
    shapes = [bushy, chain, root_alone, binary, star, comb, bushy]
    for step, grow in enumerate(shapes):
        tree = grown(grow, root=int(rng.choice(TOKENS)), seed=step)
        rows = passes(cache, tree)
        assert_rows_are_right(reference, expected, tree, rows)
        path = tree.path(int(rng.integers(tree.size)))
        assert cache.commit(tree, path) == len(path)
        expected = [*expected, *tree.token[path].tolist()]
        assert cache.tokens == expected
        wanted = reference.logits([*expected, 300])[-1]
        assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE


def test_what_was_not_evaluated_is_not_committed(cache: Cache, reference: PlainReference) -> None:
    """A draft's leaves are never evaluated; they are read with the next root."""
    prefix = text(20)
    cache.prefill(prefix)
    tree = grown(comb, root=300)
    inner = np.flatnonzero(tree.num_children[: tree.size] > 0).astype(np.int32)
    for depth in range(int(tree.depth[inner].max()) + 1):
        cache.evaluate(tree, inner[tree.depth[inner] == depth])
    path = tree.path(int(np.flatnonzero(tree.depth[: tree.size] == 12)[0]))
    assert cache.commit(tree, path) == len(path) - 1
    seen = [*prefix, *tree.token[path[:-1]].tolist()]
    assert cache.tokens == seen
    unread = [int(tree.token[path[-1]]), 280, 281]
    following = grown(bushy, root=290, seed=4)
    root = np.zeros(1, np.int32)
    cache.evaluate(following, root, unread)
    rows = copy_rows(cache, [0])
    assert cache.tokens == [*seen, *unread]
    cache.evaluate(following, depth_first(following.parent, following.size)[1:])
    rows |= copy_rows(cache, list(range(1, following.size)))
    assert_rows_are_right(reference, [*seen, *unread], following, rows)


def test_more_unread_tokens_than_a_pass_takes(tiny_target: Path) -> None:
    unread = text(600, seed=2)
    plain = PlainReference(tiny_target, num_ctx=768)
    tree = grown(bushy, root=300)
    with opened_cache(tiny_target, num_ctx=768, num_sequences=80, capacity=CAPACITY) as cache:
        cache.prefill(text(20))
        passes = cache.num_passes
        cache.evaluate(tree, depth_first(tree.parent, tree.size), unread)
        assert cache.num_passes - passes == 2
        assert cache.tokens == [*text(20), *unread]
        rows = copy_rows(cache, range(tree.size))
        assert_rows_are_right(plain, cache.tokens, tree, rows)
    plain.close()


@pytest.mark.parametrize("passes", [depth_first_pass, layered_passes, scattered_passes])
def test_padding_changes_nothing(
    tiny_target: Path,
    reference: PlainReference,
    passes: Callable[[Cache, TokenTree], dict[int, Rows]],
) -> None:
    rng = np.random.default_rng(4)
    expected = text(20)
    with opened_cache(tiny_target, num_sequences=80, capacity=CAPACITY) as cache:
        cache.prefill(expected)
        cache.pad_to((3, 7, 12, 48, 90))
        for step, grow in enumerate([chain, bushy, root_alone, comb, binary, bushy]):
            tree, before = grown(grow, root=300 + step, seed=step), cache.num_rows
            assert_rows_are_right(reference, expected, tree, passes(cache, tree))
            assert cache.num_rows - before > tree.size
            path = tree.path(int(rng.integers(tree.size)))
            cache.commit(tree, path)
            expected = [*expected, *tree.token[path].tolist()]
            assert cache.tokens == expected
        wanted = reference.logits([*expected, 300])[-1]
        assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE


def test_padding_goes_no_further_than_the_last_size(cache: Cache) -> None:
    cache.prefill(text(20))
    tree = grown(star, root=300)
    cache.pad_to((1, 4))
    before = cache.num_rows
    cache.evaluate(tree, depth_first(tree.parent, tree.size))
    cache.pad_to(())
    assert cache.num_rows - before == tree.size > 4


def test_prefill_reads_only_what_is_new(cache: Cache, reference: PlainReference) -> None:
    first = text(60)
    assert cache.prefill(first) == 0
    assert cache.prefill(first) == 60
    longer = [*first, *text(30, seed=1)]
    assert cache.prefill(longer) == 60
    other = [*first[:25], *text(20, seed=2)]
    calls: list[tuple[int, int]] = []
    assert cache.prefill(other, on_progress=lambda *done: calls.append(done)) == 25
    assert cache.tokens == other
    assert calls == [(0, 20), (20, 20)]
    wanted = reference.logits([*other, 300])[-1]
    assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE


def test_a_long_prompt_is_read_in_pieces(tiny_target: Path) -> None:
    prompt = text(700)
    plain = PlainReference(tiny_target, num_ctx=1024)
    calls: list[tuple[int, int]] = []
    with opened_cache(tiny_target, num_ctx=1024, num_sequences=3) as cache:
        assert cache.prefill(prompt, on_progress=lambda *done: calls.append(done)) == 0
        assert calls == [(0, 700), (512, 700), (700, 700)]
        wanted = plain.logits([*prompt, 300])[-1]
        assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE
    plain.close()


def test_rewind_forgets_the_end_and_the_tree(cache: Cache, reference: PlainReference) -> None:
    prefix = text(50)
    cache.prefill(prefix)
    cache.evaluate(tree := grown(bushy, root=300), depth_first(tree.parent, tree.size))
    assert cache.rewind(30) == 30
    assert cache.tokens == prefix[:30]
    tree = grown(binary, root=301)
    assert_rows_are_right(reference, prefix[:30], tree, depth_first_pass(cache, tree))
    assert cache.rewind(99) == 30, "no more than there is; the tree goes"
    assert np.abs(evaluate_root(cache, 9) - reference.logits([*prefix[:30], 9])[-1]).max() < CLOSE
    assert cache.rewind(0) == 0
    assert np.abs(evaluate_root(cache, 1) - reference.logits([1])[-1]).max() < CLOSE


def test_timing_a_pass_leaves_the_cache_as_it_was(cache: Cache, reference: PlainReference) -> None:
    prefix = text(30)
    cache.prefill(prefix)
    for num_rows in (1, 5, 9):
        assert cache.time_pass(num_rows) > 0
    assert cache.tokens == prefix
    tree = grown(binary, root=301)
    assert_rows_are_right(reference, prefix, tree, depth_first_pass(cache, tree))


def test_totals_count_passes_and_rows(cache: Cache) -> None:
    cache.prefill(text(30))
    passes, rows, seconds = cache.num_passes, cache.num_rows, cache.decode_seconds
    tree = grown(binary, root=301)
    layered_passes(cache, tree)
    assert (cache.num_passes - passes, cache.num_rows - rows) == (6, tree.size)
    assert cache.decode_seconds > seconds


def assert_goes_on_exactly(
    cache: Cache, reference: PlainReference, prefix: Sequence[int], tree: TokenTree
) -> None:
    """After a failure: prefix kept, and the very same tree works, commit included."""
    assert cache.tokens == list(prefix)
    assert_rows_are_right(reference, prefix, tree, depth_first_pass(cache, tree))
    path = tree.path(tree.size - 1)
    cache.commit(tree, path)
    expected = [*prefix, *tree.token[path].tolist()]
    assert cache.tokens == expected
    wanted = reference.logits([*expected, 300])[-1]
    assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE


def test_an_aborted_pass_is_undone(cache: Cache, reference: PlainReference) -> None:
    prefix = text(20)
    cache.prefill(prefix)
    tree = grown(bushy, root=300)
    cache.context.abort_flag.set()
    with pytest.raises(Cancelled):
        depth_first_pass(cache, tree)
    cache.context.abort_flag.clear()
    assert_goes_on_exactly(cache, reference, prefix, tree)


def test_an_aborted_layer_takes_the_whole_tree_along(
    cache: Cache, reference: PlainReference
) -> None:
    prefix = text(20)
    cache.prefill(prefix)
    tree = grown(binary, root=300)
    cache.evaluate(tree, np.array([0], np.int32), [280, 281])
    cache.evaluate(tree, np.array([1, 2], np.int32))
    cache.context.abort_flag.set()
    with pytest.raises(Cancelled):
        cache.evaluate(tree, np.array([3, 4, 5, 6], np.int32))
    cache.context.abort_flag.clear()
    assert_goes_on_exactly(cache, reference, [*prefix, 280, 281], tree)


def test_an_aborted_prefill_keeps_whole_pieces(tiny_target: Path) -> None:
    prompt = text(600)
    plain = PlainReference(tiny_target, num_ctx=768)
    with opened_cache(tiny_target, num_ctx=768, num_sequences=4) as cache:

        def stop_after_a_piece(done: int, _total: int) -> None:
            if done:
                cache.context.abort_flag.set()

        with pytest.raises(Cancelled):
            cache.prefill(prompt, on_progress=stop_after_a_piece)
        assert cache.tokens == prompt[:512]
        cache.context.abort_flag.clear()
        assert cache.prefill(prompt) == 512
        wanted = plain.logits([*prompt, 300])[-1]
        assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE
    plain.close()


def test_a_tree_without_room_is_an_error_and_undone(
    tiny_target: Path, reference: PlainReference
) -> None:
    prefix = text(250)
    with opened_cache(tiny_target, num_ctx=256, num_sequences=64, capacity=CAPACITY) as cache:
        cache.prefill(prefix)
        with pytest.raises(DecodeError, match="no room"):
            depth_first_pass(cache, grown(bushy, root=300))
        tree = TokenTree(CAPACITY, 1)
        tree.reset(300)
        rng = np.random.default_rng(0)
        for parent in (0, 0, 1):
            add(tree, rng, parent)
        assert_goes_on_exactly(cache, reference, prefix, tree)


def test_more_logits_than_the_context_was_made_for_is_an_error(
    tiny_target: Path, reference: PlainReference
) -> None:
    prefix = text(20)
    with opened_cache(tiny_target, num_sequences=64, capacity=CAPACITY) as cache:
        cache.prefill(prefix)
        cache.context.num_outputs = 70
        with pytest.raises(DecodeError, match="81 rows of logits asked for; the context has 70"):
            depth_first_pass(cache, grown(bushy, root=300))
        assert_goes_on_exactly(cache, reference, prefix, grown(binary, root=300))


def test_more_rows_than_a_batch_holds_is_an_error(
    tiny_target: Path, reference: PlainReference
) -> None:
    prefix = text(20)
    tree = TokenTree(700, 1)
    tree.reset(300)
    for node in range(600):
        tree.add(node, 301, 0.5)
    with opened_cache(tiny_target, num_ctx=1024, num_sequences=64, capacity=64) as small:
        small.close()
        cache = Cache(small.context, 700)
        cache.prefill(prefix)
        with pytest.raises((ValueError, DecodeError)):
            depth_first_pass(cache, tree)
        smaller = TokenTree(700, 1)
        smaller.reset(300)
        comb(smaller, np.random.default_rng(0))
        assert_goes_on_exactly(cache, reference, prefix, smaller)


def test_more_leaves_than_sequences_is_an_error(
    tiny_target: Path, reference: PlainReference
) -> None:
    prefix = text(20)
    with opened_cache(tiny_target, num_sequences=32, capacity=CAPACITY) as cache:
        cache.prefill(prefix)
        tree = grown(many_leaves, root=300)
        with pytest.raises(DyspecError, match="32 sequence ids"):
            depth_first_pass(cache, tree)
        assert_goes_on_exactly(cache, reference, prefix, grown(binary, root=300))


def test_a_recurrent_state_is_read_again(tiny_recurrent: Path) -> None:
    first, second = text(40), [*text(20), *text(30, seed=1)]
    plain = PlainReference(tiny_recurrent)
    with opened_cache(tiny_recurrent, num_sequences=1, capacity=1) as cache:
        tree = TokenTree(1, 1)
        root = np.zeros(1, np.int32)
        cache.prefill(first)
        for token in (300, 301, 302):  # plain decoding goes on without reading anything again
            tree.reset(token)
            cache.evaluate(tree, root)
            row = copy_rows(cache, [0])[0]
            cache.commit(tree, [0])
            assert np.abs(row - plain.logits(cache.tokens)[-1]).max() < CLOSE
        assert cache.prefill(second) == 0, "its state cannot be cut"
        assert cache.tokens == second
        tree.reset(300)
        cache.evaluate(tree, root)
        row = copy_rows(cache, [0])[0]
        assert np.abs(row - plain.logits([*second, 300])[-1]).max() < CLOSE
        assert cache.rewind(30) == 0
        assert cache.tokens == []
    plain.close()


@contextmanager
def two_caches(path: Path) -> Iterator[tuple[Cache, Cache]]:
    """Two blocks of ids of one context, the second one behind the first and a gap."""
    with Model(path) as model:
        context = open_context(model, num_ctx=768, num_sequences=170, num_outputs=CAPACITY)
        first = Cache(context, CAPACITY, num_ids=80)
        second = Cache(context, CAPACITY, first_id=85)
        yield first, second
        first.close()
        second.close()
        context.close()


def cells(cache: Cache) -> list[tuple[int, int]]:
    """First and last position of each id of the context that is not the cache's own."""
    own = range(cache.first_id, cache.first_id + cache.num_ids)
    memory = cache.context._memory
    return [
        (
            llama_cpp.llama_memory_seq_pos_min(memory, seq),
            llama_cpp.llama_memory_seq_pos_max(memory, seq),
        )
        for seq in range(cache.context.num_sequences)
        if seq not in own
    ]


@pytest.mark.parametrize("passes", [depth_first_pass, layered_passes, scattered_passes])
def test_two_caches_in_one_context_do_not_see_each_other(
    tiny_target: Path,
    reference: PlainReference,
    passes: Callable[[Cache, TokenTree], dict[int, Rows]],
) -> None:
    """Steps in turns, some of them taken back: the rows are those of caches on their own."""
    rng = np.random.default_rng(6)
    with two_caches(tiny_target) as caches:
        texts = [text(20, seed=1), text(33, seed=2)]
        for cache, expected in zip(caches, texts, strict=True):
            assert cache.prefill(expected) == 0
        for step, grow in enumerate([bushy, chain, binary, root_alone, comb, bushy]):
            for which, cache in enumerate(caches):
                tree = grown(grow, root=int(rng.choice(TOKENS)), seed=step)
                before = cells(cache)
                assert_rows_are_right(reference, texts[which], tree, passes(cache, tree))
                if step == 3:
                    del texts[which][cache.rewind(len(texts[which]) - 7) :]
                else:
                    path = tree.path(int(rng.integers(tree.size)))
                    cache.commit(tree, path)
                    texts[which] += tree.token[path].tolist()
                assert cache.tokens == texts[which]
                assert cells(cache) == before
        for cache, expected in zip(caches, texts, strict=True):
            wanted = reference.logits([*expected, 300])[-1]
            assert np.abs(evaluate_root(cache, 300) - wanted).max() < CLOSE


def test_a_tree_may_wait_while_another_cache_has_its_turn(
    tiny_target: Path, reference: PlainReference
) -> None:
    with two_caches(tiny_target) as (first, second):
        first.prefill(text(20))
        second.prefill(text(30, seed=1))
        tree = grown(binary, root=300)
        first.evaluate(tree, np.arange(7, dtype=np.int32))
        assert_rows_are_right(reference, text(30, seed=1), tree, layered_passes(second, tree))
        first.evaluate(tree, np.arange(7, 15, dtype=np.int32))
        rows = copy_rows(first, range(7, 15))
        wanted = reference.logits([*text(20), *tree.token[tree.path(14)].tolist()])[-1]
        assert np.abs(rows[14] - wanted).max() < CLOSE


def fail_without_ids(cache: Cache) -> None:
    with pytest.raises(DyspecError, match="85 sequence ids"):
        depth_first_pass(cache, grown(many_leaves, root=300))


def fail_aborted(cache: Cache) -> None:
    tree = grown(binary, root=300)
    cache.evaluate(tree, np.arange(3, dtype=np.int32), [280, 281])
    cache.context.abort_flag.set()
    with pytest.raises(Cancelled):
        cache.evaluate(tree, np.arange(3, 15, dtype=np.int32))
    cache.context.abort_flag.clear()


def fail_without_room(cache: Cache) -> None:
    with pytest.raises(DecodeError, match="no room"):
        cache.prefill(text(900))


@pytest.mark.parametrize(
    "disturb",
    [
        lambda cache: cache.rewind(9),
        lambda cache: cache.rewind(0),
        lambda cache: cache.time_pass(7),
        lambda cache: cache.prefill(text(40, seed=9)),
        lambda cache: cache.close(),
        fail_without_ids,
        fail_aborted,
        fail_without_room,
    ],
    ids=["rewind", "all", "timing", "prefill", "close", "ids", "abort", "room"],
)
def test_nothing_touches_the_cells_of_another_cache(
    tiny_target: Path, reference: PlainReference, disturb: Callable[[Cache], object]
) -> None:
    with two_caches(tiny_target) as (first, second):
        first.prefill(text(20))
        tree = grown(bushy, root=300)
        depth_first_pass(first, tree)
        first.commit(tree, tree.path(40))
        before = cells(second)
        assert before[0] == (0, len(first.tokens) - 1)
        second.prefill(text(30, seed=1))
        disturb(second)
        assert first.handle.is_open
        if second.handle.is_open:
            assert cells(second) == before
        assert_rows_are_right(reference, first.tokens, tree, depth_first_pass(first, tree))


def test_a_closed_cache_gives_its_cells_back(tiny_target: Path) -> None:
    with two_caches(tiny_target) as (first, second):
        first.prefill(text(500))
        second.prefill(text(200))
        first.close()
        assert cells(second)[0] == (-1, -1)
        second.prefill(text(700, seed=1))


@pytest.mark.parametrize(("first_id", "num_ids"), [(-1, 1), (0, 5), (3, 2), (4, None), (2, 0)])
def test_ids_that_the_context_lacks(tiny_target: Path, first_id: int, num_ids: int | None) -> None:
    with opened_cache(tiny_target, num_sequences=4) as cache, pytest.raises(ValueError, match="4"):
        Cache(cache.context, 4, first_id=first_id, num_ids=num_ids)


def test_use_after_close_is_an_error_and_no_crash(tiny_target: Path) -> None:
    tree = grown(binary, root=300)
    uses: list[Callable[[Cache], object]] = [
        lambda cache: cache.prefill([5, 6]),
        lambda cache: cache.evaluate(tree, np.zeros(1, np.int32)),
        lambda cache: cache.commit(tree, [0]),
        lambda cache: cache.rewind(1),
        lambda cache: cache.time_pass(1),
        lambda cache: cache.rows,
        lambda cache: cache.num_passes,
        lambda cache: cache.pad_to((4,)),
    ]
    for close_context in (False, True):
        with opened_cache(tiny_target, num_sequences=32, capacity=CAPACITY) as cache:
            cache.prefill(text(20))
            (cache.context if close_context else cache).close()
            for use in uses:
                with pytest.raises(ValueError, match="closed"):
                    use(cache)


def test_what_nobody_closed_is_freed(tiny_target: Path) -> None:
    with opened_cache(tiny_target) as cache:
        other = Cache(cache.context, 8, num_ids=1)
        freed = weakref.ref(other.handle)
        del other
        gc.collect()
        assert freed() is None


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([], [], 0), ([1], [], 0), ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([5], [6], 0)],
)
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    assert common_prefix(a, b) == length
    assert common_prefix(tuple(b), a) == length


def test_closing_twice_does_no_harm(tiny_target: Path) -> None:
    with opened_cache(tiny_target) as cache:
        cache.close()
        cache.close()
