"""Growth of trees on a fake draft: a table of distributions, so every tree can be foretold."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge.decode.draft.interface import Drafter, NoDrafter
from dyspec_edge.decode.policy import Policy, parse
from dyspec_edge.decode.policy.chain import ChainPolicy
from dyspec_edge.decode.policy.dyspec import DySpecPolicy, ThresholdPolicy
from dyspec_edge.decode.policy.sequoia import SequoiaPolicy
from dyspec_edge.decode.policy.specinfer import SpecInferPolicy
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import OptionError
from dyspec_edge.native import MAX_SEQUENCES

Ids = npt.NDArray[np.int32]

NO_ENDS = np.empty(0, np.int32)
ENDS = np.array([2, 5], np.int32)
FAR = 10_000


class TableDrafter(Drafter):
    """Candidates that depend on the path alone, whatever the order of evaluation.

    Attributes:
        asked: the nodes of each call.
    """

    def __init__(self, seed: int = 0, *, num_candidates: int = 8, alpha: float = 0.4) -> None:
        self.asked: list[list[int]] = []
        self._seed, self._num, self._alpha = seed, num_candidates, alpha

    def candidates(self, path: Sequence[int]) -> tuple[Ids, npt.NDArray[np.float32]]:
        rng = np.random.default_rng([self._seed, *path])
        ids = rng.permutation(40)[: self._num].astype(np.int32)
        return ids, rng.dirichlet(np.full(self._num, self._alpha)).astype(np.float32)

    def propose(self, tree: TokenTree, nodes: Ids) -> None:
        assert (tree.num_candidates[nodes] == -1).all(), "a node is evaluated once"
        assert not tree.terminal[nodes].any(), "nothing comes below an end"
        self.asked.append(nodes.tolist())
        for node in nodes:
            ids, probs = self.candidates(tree.token[tree.path(int(node))].tolist())
            tree.candidate_ids[node, : self._num] = ids
            tree.candidate_probs[node, : self._num] = probs
            tree.num_candidates[node] = self._num

    def sample_children(self, tree: TokenTree, node: int, count: int) -> Ids:
        """With replacement, as under `residual`."""
        rng = np.random.default_rng([self._seed, *tree.token[tree.path(node)], 1])
        probs = tree.candidate_probs[node, : self._num].astype(np.float64)
        return rng.choice(self._num, count, p=probs / probs.sum()).astype(np.int32)


class MuteDrafter(TableDrafter):
    """A draft that has nothing to propose."""

    def propose(self, tree: TokenTree, nodes: Ids) -> None:
        self.asked.append(nodes.tolist())
        tree.num_candidates[nodes] = 0


def new_tree(num_nodes: int, root: int = 7) -> TokenTree:
    tree = TokenTree(num_nodes + 1, 8)
    tree.reset(root)
    return tree


Paths = set[tuple[int, ...]]


def paths(tree: TokenTree) -> Paths:
    """A tree as the token paths of its nodes: nothing but its content."""
    return {tuple(tree.token[tree.path(node)].tolist()) for node in range(tree.size)}


def algorithm_1(drafter: TableDrafter, root: int, num_nodes: int, depth: int = FAR) -> Paths:
    """DySpec's first algorithm as the paper writes it, on tuples and heapq."""
    found: Paths = {(root,)}
    count = 0
    heap: list[tuple[float, int, tuple[int, ...], list[int], list[float]]] = []

    def push(value: float, path: tuple[int, ...], ids: list[int], rest: list[float]) -> None:
        nonlocal count
        count += 1
        heapq.heappush(heap, (-value, count, path, ids, rest))

    def open_slot(value: float, path: tuple[int, ...]) -> None:
        if len(path) <= depth and path[-1] not in ENDS:
            ids, probs = drafter.candidates(path)
            push(value, path, ids.tolist(), probs.tolist())

    open_slot(1.0, (root,))
    while heap and len(found) <= num_nodes:
        negative, _, path, ids, rest = heapq.heappop(heap)
        if not ids:
            continue
        value, chance = -negative, rest[0] / sum(rest)  # R[y], R renormalised after each draw
        found.add((*path, ids[0]))
        push(value * (1 - chance), path, ids[1:], rest[1:])
        open_slot(value * chance, (*path, ids[0]))
    return found


def algorithm_2(drafter: TableDrafter, root: int, threshold: float) -> Paths:
    """DySpec's second algorithm: every slot above the threshold, layer by layer."""
    found: Paths = {(root,)}
    layer: list[tuple[float, tuple[int, ...]]] = [(1.0, (root,))]
    while layer:
        following: list[tuple[float, tuple[int, ...]]] = []
        for value, path in layer:
            ids, probs = drafter.candidates(path)
            rest = probs.astype(float).tolist()
            for rank, token in enumerate(ids.tolist()):
                if value <= threshold:
                    break
                chance = rest[rank] / sum(rest[rank:])
                found.add((*path, token))
                if value * chance > threshold and token not in ENDS:
                    following.append((value * chance, (*path, token)))
                value *= 1 - chance
        layer = following
    return found


@pytest.mark.parametrize("num_nodes", [1, 4, 16, 64, 200])
@pytest.mark.parametrize("seed", range(6))
def test_dyspec_grows_the_tree_of_algorithm_1(num_nodes: int, seed: int) -> None:
    drafter = TableDrafter(seed)
    policy, tree = DySpecPolicy(num_nodes, ENDS), new_tree(num_nodes)
    verified = policy.grow(tree, drafter, FAR)
    assert paths(tree) == algorithm_1(drafter, 7, num_nodes)
    assert tree.num_drafted == num_nodes
    assert sorted(verified.tolist()) == list(range(tree.size))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [0.3, 0.05, 0.015])
def test_threshold_grows_the_tree_of_algorithm_2(threshold: float, seed: int) -> None:
    drafter = TableDrafter(seed)
    policy, tree = ThresholdPolicy(900, ENDS, threshold), new_tree(900)
    policy.grow(tree, drafter, FAR)
    assert tree.num_leaves < policy.max_leaves, "no cap interferes"
    assert paths(tree) == algorithm_2(drafter, 7, threshold)
    assert len(drafter.asked) == len({tree.depth[p[0]] for p in drafter.asked}), "one a layer"
    assert policy.threshold == threshold, "a given threshold stays"


def test_a_tree_is_used_again_and_again() -> None:
    policy, tree = DySpecPolicy(16, ENDS), new_tree(16)
    for root in (7, 8, 9, 7):
        drafter = TableDrafter(1)
        tree.reset(root)
        policy.grow(tree, drafter, FAR)
        assert paths(tree) == algorithm_1(drafter, root, 16)


def test_leaves_need_no_draft_pass() -> None:
    drafter = TableDrafter(2)
    policy, tree = DySpecPolicy(64, ENDS), new_tree(64)
    policy.grow(tree, drafter, FAR)
    evaluated = sum(len(nodes) for nodes in drafter.asked)
    assert evaluated < tree.size
    assert len(drafter.asked) < evaluated, "lazy evaluation goes in batches"


@pytest.mark.parametrize("num_nodes", [8, 32, 128])
@pytest.mark.parametrize("alpha", [0.15, 1.0])
@pytest.mark.parametrize("start", [0.5, None])
def test_the_threshold_adapts_toward_the_wanted_size(
    num_nodes: int, alpha: float, start: float | None
) -> None:
    policy, tree = ThresholdPolicy(num_nodes, NO_ENDS), new_tree(num_nodes)
    policy.threshold = start or policy.threshold
    sizes = []
    for step in range(60):
        tree.reset(7)
        policy.grow(tree, TableDrafter(step, alpha=alpha), FAR)
        sizes.append(tree.num_drafted)
    assert max(sizes) <= num_nodes
    assert 0.7 * num_nodes < np.mean(sizes[20:])


def test_a_shallow_limit_says_nothing_about_the_threshold() -> None:
    """Near the end of a reply trees are small whatever the threshold."""
    policy, tree = ThresholdPolicy(64, NO_ENDS), new_tree(64)
    policy.grow(tree, TableDrafter(0), FAR)
    before = policy.threshold
    for step in range(10):
        tree.reset(7)
        policy.grow(tree, TableDrafter(step), 1)
    assert policy.threshold >= 0.5 * before


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_the_smallest_thresholds_draft_from_the_first_step_on(num_nodes: int) -> None:
    policy, tree = ThresholdPolicy(num_nodes, NO_ENDS), new_tree(num_nodes)
    for step in range(5):
        tree.reset(7)
        policy.grow(tree, TableDrafter(step), FAR)
        assert tree.num_drafted >= 1


def test_a_chain_takes_the_first_choices() -> None:
    drafter = TableDrafter(3)
    policy, tree = ChainPolicy(5, NO_ENDS), new_tree(5)
    assert policy.grow(tree, drafter, FAR).tolist() == [0, 1, 2, 3, 4, 5]
    path = [7]
    for node in range(1, 6):
        ids, probs = drafter.candidates(path)
        assert tree.token[node] == ids[0]
        assert tree.confidence[node] == probs[0]
        path.append(int(ids[0]))
    assert drafter.asked == [[0], [1], [2], [3], [4]], "the last token needs no pass"
    assert tree.num_leaves == 1


@pytest.mark.parametrize(("floor", "alpha"), [(0.2, 0.1), (0.5, 0.05), (0.9, 0.02)])
def test_a_floor_ends_the_chain_before_an_unlikely_token(floor: float, alpha: float) -> None:
    """As llama.cpp does: the token below the floor is not drafted, the one above it is."""
    lengths = []
    for seed in range(40):
        drafter, path = TableDrafter(seed, num_candidates=40, alpha=alpha), [7]
        policy, tree = ChainPolicy(8, NO_ENDS, floor), TokenTree(9, 40)
        tree.reset(7)
        policy.grow(tree, drafter, FAR)
        while len(path) < 9:
            ids, probs = drafter.candidates(path)
            best = np.sort(probs.astype(float))[::-1][:10]
            if best[0] / best.sum() < floor:
                break
            path.append(int(ids[0]))
        assert tree.token[: tree.size].tolist() == path
        lengths.append(tree.num_drafted)
    assert min(lengths) == 0
    assert max(lengths) > 1


def test_the_floor_does_not_look_at_the_token_that_was_drawn() -> None:
    """Under `residual` the first candidate need not be the likeliest."""

    class Unlucky(TableDrafter):
        def candidates(self, _path: Sequence[int]) -> tuple[Ids, npt.NDArray[np.float32]]:
            return np.arange(2, dtype=np.int32), np.array([0.1, 0.9], np.float32)

    policy, tree = ChainPolicy(3, NO_ENDS, 0.8), new_tree(3)
    policy.grow(tree, Unlucky(num_candidates=2), FAR)
    assert tree.token[: tree.size].tolist() == [7, 0, 0, 0]


@pytest.mark.parametrize("widths", [[1], [4], [2, 2, 1], [1, 1, 3, 1, 1, 1, 1, 1], [3, 1, 2]])
@pytest.mark.parametrize("seed", range(4))
def test_specinfer_gives_each_node_of_a_layer_its_draws(widths: list[int], seed: int) -> None:
    """The paper's expansion; a token that was drawn again is the same node."""
    drafter = TableDrafter(seed)
    policy = SpecInferPolicy(widths, NO_ENDS)
    tree = new_tree(policy.max_nodes)
    nodes = policy.grow(tree, drafter, FAR)
    assert sorted(nodes.tolist()) == list(range(tree.size))
    layers = [np.flatnonzero(tree.depth[: tree.size] == i).tolist() for i in range(len(widths) + 1)]
    assert drafter.asked == layers[:-1], "a pass per layer, and none for the leaves"
    for width, layer in zip(widths, layers, strict=False):
        for node in layer:
            draws = tree.sampled[node].tolist()
            assert len(draws) == width
            children = tree.candidate_ids[node, list(dict.fromkeys(draws))]
            assert tree.token[tree.children(node)].tolist() == children.tolist()


def test_specinfer_of_distinct_draws_has_the_papers_size() -> None:
    """Its figure 3: <2, 2, 1> gives four sequences of three tokens."""

    class Ranked(TableDrafter):
        def sample_children(self, _tree: TokenTree, _node: int, count: int) -> Ids:
            return np.arange(count, dtype=np.int32)

    policy = SpecInferPolicy([2, 2, 1], NO_ENDS)
    tree = new_tree(policy.max_nodes)
    policy.grow(tree, Ranked(), FAR)
    assert (tree.num_drafted, tree.num_leaves) == (policy.max_nodes, policy.max_leaves) == (10, 4)
    assert tree.depth[: tree.size].tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]


def every_policy(num_nodes: int, ends: Ids) -> list[Policy]:
    return [
        ChainPolicy(num_nodes, ends),
        DySpecPolicy(num_nodes, ends),
        ThresholdPolicy(num_nodes, ends),
        ThresholdPolicy(num_nodes, ends, 0.001),
        SequoiaPolicy(num_nodes, ends),
        SpecInferPolicy([3, 2, 1, 1, 1][: max(1, num_nodes // 4)], ends),
    ]


@pytest.mark.parametrize("kind", range(len(every_policy(1, NO_ENDS))))
@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_nothing_is_deeper_than_allowed(kind: int, depth: int) -> None:
    policy = every_policy(40, NO_ENDS)[kind]
    for seed in range(5):
        drafter, tree = TableDrafter(seed), new_tree(40)
        policy.grow(tree, drafter, depth)
        deepest = tree.depth[: tree.size].max()
        assert min(depth, 1) <= deepest <= depth
        nodes = [node for nodes in drafter.asked for node in nodes]
        assert all(tree.depth[node] < depth for node in nodes), "a pass for nothing"


@pytest.mark.parametrize("kind", range(len(every_policy(1, NO_ENDS))))
def test_nothing_grows_below_an_end(kind: int) -> None:
    num_ends = 0
    for seed in range(30):
        policy = every_policy(40, ENDS)[kind]
        tree = new_tree(40)
        policy.grow(tree, TableDrafter(seed), FAR)
        ends = np.isin(tree.token[1 : tree.size], ENDS)
        assert (tree.terminal[1 : tree.size] == ends).all()
        assert not tree.num_children[1 : tree.size][ends].any()
        num_ends += int(ends.sum())
    assert num_ends > 0


@pytest.mark.parametrize("kind", range(len(every_policy(1, NO_ENDS))))
def test_a_draft_that_proposes_nothing(kind: int) -> None:
    drafter, tree = MuteDrafter(), new_tree(10)
    nodes = every_policy(10, NO_ENDS)[kind].grow(tree, drafter, FAR)
    assert nodes.tolist() == [0]
    assert tree.size == 1
    assert drafter.asked == [[0]]


@pytest.mark.parametrize("kind", range(len(every_policy(1, NO_ENDS))))
def test_what_is_verified_has_its_parents_first(kind: int) -> None:
    policy, tree = every_policy(60, NO_ENDS)[kind], new_tree(60)
    nodes = policy.grow(tree, TableDrafter(4), FAR).tolist()
    assert nodes[0] == 0
    for at, node in enumerate(nodes[1:], 1):
        assert int(tree.parent[node]) in nodes[:at]


def test_leaves_are_capped_by_the_sequence_ids() -> None:
    policy, tree = DySpecPolicy(1000, NO_ENDS), TokenTree(1001, 64)
    tree.reset(7)
    assert policy.max_leaves == MAX_SEQUENCES

    class Flat(TableDrafter):
        def candidates(self, path: Sequence[int]) -> tuple[Ids, npt.NDArray[np.float32]]:
            rng = np.random.default_rng(path)
            return rng.permutation(64).astype(np.int32), np.full(64, 1 / 64, np.float32)

    policy.grow(tree, Flat(num_candidates=64), FAR)
    assert tree.num_drafted == 1000
    assert tree.num_leaves == MAX_SEQUENCES


@pytest.mark.parametrize(
    ("spec", "kind", "num_nodes", "num_leaves"),
    [
        ("chain:7", ChainPolicy, 7, 1),
        ("chain:7:0.75", ChainPolicy, 7, 1),
        ("specinfer:2x2x1", SpecInferPolicy, 10, 4),
        ("specinfer:1x1x3x1x1x1x1x1", SpecInferPolicy, 20, 3),
        ("specinfer:64x4", SpecInferPolicy, 320, 256),
        ("sequoia:1", SequoiaPolicy, 1, 1),
        ("sequoia:16:1", SequoiaPolicy, 16, 16),
        ("sequoia:auto", SequoiaPolicy, 63, 63),
        ("dyspec:16", DySpecPolicy, 16, 16),
        ("dyspec:1024", DySpecPolicy, 1024, 256),
        ("dyspec-threshold:64", ThresholdPolicy, 64, 64),
        ("dyspec-threshold:64:0.02", ThresholdPolicy, 64, 64),
    ],
)
def test_what_policy_spells(spec: str, kind: type, num_nodes: int, num_leaves: int) -> None:
    policy = parse(spec, ENDS)
    assert isinstance(policy, kind)
    assert policy.name == spec
    assert (policy.max_nodes, policy.max_leaves) == (num_nodes, num_leaves)


def test_none_is_plain_decoding() -> None:
    policy, tree = parse("none", ENDS), TokenTree(1, 4)
    assert (policy.name, policy.max_nodes, policy.tree_capacity) == ("none", 0, 1)
    assert policy.grow(tree, NoDrafter(), 5).tolist() == [0]


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "tree:4",
        "none:1",
        "chain",
        "chain:",
        "chain:0",
        "chain:-1",
        "chain:x",
        "chain:3:4",
        "chain:3:0",
        "chain:3:0.5:1",
        "specinfer",
        "specinfer:",
        "specinfer:2x",
        "specinfer:2x0",
        "specinfer:2xx2",
        "specinfer:2X2",
        "specinfer:65",
        "specinfer:2:2",
        "chain:1025",
        "dyspec",
        "dyspec:1.5",
        "sequoia",
        "sequoia:0",
        "sequoia:8:0",
        "sequoia:8:2:1",
        "sequoia:1025",
        "sequoia:auto:3",
        "sequoia:best",
        "dyspec:²",
        "dyspec:16:0.1",
        "dyspec-threshold",
        "dyspec-threshold:16:0",
        "dyspec-threshold:16:1",
        "dyspec-threshold:16:nan",
        "dyspec-threshold:16:x",
        "dyspec-threshold:16:0.1:2",
    ],
)
def test_what_no_policy_spells(spec: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(spec, ENDS)
    assert f"'{spec}'" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("specinfer:8x8x8", "512 leaves; 256 is the most"),
        ("specinfer:4x4x4x4x1x1x1x1", "1364 nodes; 1024 is the most"),
    ],
)
def test_trees_that_no_batch_can_hold(spec: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse(spec, ENDS)
