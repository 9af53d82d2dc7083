"""The priced policy: what prices make it do, in a world whose clock follows made-up curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.draft.interface import Drafter, NoDrafter
from dyspec_edge.decode.policy.account import EPS, STAKE
from dyspec_edge.decode.policy.priced import LEAVES, ROWS, WIDE_LEAVES, PricedPolicy
from dyspec_edge.decode.policy.reading import SHARES
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.decode.timing import StepCost
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.llama import Model
from tests.conftest import TinyPair
from tests.decoding import CHEAP_ROWS, live_prices, model_drafter, opened_decoder, reply, steps

Ids = npt.NDArray[np.int32]

END = 2
ENDS = np.array([END], np.int32)
FAR = 10_000

# T and D as section 3 of the design measured them, in units of T(1).
F16 = (
    CostCurve((1, 4, 8, 16, 32, 64), (1.0, 1.4, 1.95, 3.2, 4.9, 8.9)),
    CostCurve((1, 4, 8, 16), (0.17, 0.6, 1.07, 1.6)),
)
Q4 = (
    CostCurve((1, 4, 8, 16, 32, 64), (1.0, 2.6, 5.2, 7.2, 14.6, 26.0)),
    CostCurve((1, 4, 8, 16), (0.42, 1.43, 2.6, 3.8)),
)
STREAMED = (
    CostCurve((1, 8, 32, 64), (1.0, 1.1, 1.5, 2.0)),
    CostCurve((1, 4, 8, 16), (0.016, 0.05, 0.1, 0.15)),
)
EXPERTS = (
    CostCurve((1, 2, 4, 8, 64), (1.0, 1.95, 3.5, 4.5, 12.0)),
    CostCurve((1, 16), (0.1, 0.4)),
)


@dataclass
class World(Drafter):
    """A text that the target will write, a draft that knows some of it, and a clock.

    Attributes:
        right: chance that the draft's first, second, ... child is the true token.
        slowness: factor on all passes from now on.
        rereads: the target has a recurrent state without snapshots: what is kept of a chain that
            was refused in part is read again in the next pass.
        sizes, leaves: rows of every target pass, and leaves of its tree.
    """

    text: Sequence[int]
    prices: tuple[CostCurve, CostCurve]
    right: Callable[[int], Sequence[float]] = lambda _at: (0.8, 0.1)
    slowness: float = 1.0
    rereads: bool = False
    owed: int = 0
    now: float = 0.0
    at: int = 1
    unread: int = 0
    sizes: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    num_drafted: int = 0
    read_seconds: float = 0.0
    recorded: list[tuple[int, float]] = field(default_factory=list)
    ranking: None = None
    num_looks: int = 0

    @property
    def num_behind(self) -> int:
        return min(self.unread, self.longest_read or self.unread)

    def passes(self) -> list[tuple[int, float]]:
        return self.recorded

    def read(self, **_reporting: object) -> None:
        seconds = self.slowness * self.prices[1].at(max(1, self.num_behind))
        self.now += seconds
        self.read_seconds += seconds
        self.unread = 0

    def time_pass(self, num_rows: int) -> float:
        seconds = self.slowness * self.prices[1].at(num_rows)
        self.now += seconds
        self.num_looks += 1
        return seconds

    def propose(self, tree: TokenTree, nodes: Ids) -> None:
        behind = self.num_behind if nodes[0] == 0 else 0
        seconds = self.slowness * self.prices[1].at(len(nodes) + behind)
        self.now += seconds
        self.recorded.append((len(nodes) + behind, seconds))
        self.unread, self.num_drafted = 0, self.num_drafted + len(nodes)
        for node in nodes.tolist():
            path = tree.token[tree.path(node)].tolist()
            at = self.at + len(path) - 1
            true = self.text[at] if self.text[self.at - 1 : at] == path else -1
            rng = np.random.default_rng([at, *path])
            chances = np.array([*self.right(at), 0.02, 0.02, 0.02, 0.02])
            ids = rng.choice(np.arange(50_000, 60_000), len(chances), replace=False)
            rank = int(np.argmax(rng.random() < np.cumsum(chances)))
            if true >= 0 and rank < len(self.right(at)):
                ids[rank] = true
            tree.candidate_ids[node, : len(ids)] = ids
            tree.candidate_probs[node, : len(ids)] = chances / max(1.0, chances.sum())
            tree.num_candidates[node] = len(ids)

    def step(self, policy: PricedPolicy, tree: TokenTree, *, drafts: bool = True) -> int:
        """One step of the loop; returns the number of emitted tokens."""
        started, read = self.now, self.read_seconds
        self.recorded.clear()
        tree.reset(self.text[self.at - 1])
        room = len(self.text) - self.at
        nodes = np.zeros(1, np.int32)
        if room > 1:
            nodes = policy.grow(tree, self if drafts else NoDrafter(), room - 1)
        check_rows(tree, nodes, policy.max_leaves)
        self.leaves.append(len(nodes) - len(set(tree.parent[nodes[1:]].tolist())))
        num_rows = self.owed + len(nodes)
        seconds = self.slowness * self.prices[0].at(num_rows)
        self.now += seconds
        path, tokens = [0], [self.text[self.at]]
        while (child := tree.child(path[-1], tokens[-1])) in nodes and child > 0:
            path.append(child)
            tokens.append(self.text[self.at + len(tokens)])
        self.sizes.append(len(nodes))
        self.owed = len(path) if self.rereads and len(path) < len(nodes) else 0
        known = sum(tree.num_candidates[node] >= 0 for node in path)
        policy.learn(
            tree,
            path,
            tokens,
            StepCost(
                seconds=self.now - started - (self.read_seconds - read),
                target_seconds=seconds,
                num_rows=num_rows,
            ),
        )
        self.at += len(tokens)
        self.unread += len(tokens) - known
        return len(tokens)


def check_rows(tree: TokenTree, nodes: Ids, most: int) -> None:
    assert nodes[0] == 0
    assert len(nodes) <= ROWS
    parents = tree.parent[nodes[1:]].tolist()
    assert all(p in nodes[: i + 1] for i, p in enumerate(parents))
    assert len(nodes) - len(set(parents)) <= most


@pytest.fixture
def run() -> Callable[..., PricedPolicy]:
    """`run(world)`: writes the world's text, checking the account in every step."""

    def write(
        world: World,
        *,
        believed: tuple[CostCurve, CostCurve] | None = None,
        with_draft: bool = True,
        policy: PricedPolicy | None = None,
        prompt: int = 1,
        at_step: Callable[[int], None] = lambda _emitted: None,
    ) -> PricedPolicy:
        if policy is None:
            policy = PricedPolicy(ENDS)
            target, draft = believed or world.prices
            policy.set_prices(live_prices(target, draft if with_draft else None))
        tree = TokenTree(policy.tree_capacity, 64)
        world.at = prompt
        world.unread = prompt - 1
        if policy.begin(world.text[:prompt], world if with_draft else NoDrafter()) and with_draft:
            world.read()
        while world.at < len(world.text) - 1:
            world.step(policy, tree, drafts=with_draft)
            at_step(world.at)
        return policy

    return write


def fresh_text(n: int, seed: int = 0) -> list[int]:
    """Nothing in it repeats."""
    return [int(t) for t in np.random.default_rng(seed).permutation(40_000)[:n]]


def plain_seconds(world: World, num_tokens: int) -> float:
    return num_tokens * world.prices[0].at(1)


Run = Callable[..., PricedPolicy]


def test_cheap_rows_make_large_trees(run: Run) -> None:
    world = World(fresh_text(600, seed=1), STREAMED, lambda _: (0.75, 0.12, 0.05))
    policy = run(world)
    assert np.mean(world.sizes) > 10
    assert world.num_drafted > 2 * len(world.sizes)
    assert plain_seconds(world, 600) / world.now > 3.0
    assert policy.acceptance.now == pytest.approx(0.75, abs=0.15)


@pytest.mark.parametrize(("num_leaves", "most"), [(8, LEAVES), (40, 40), (256, WIDE_LEAVES)])
def test_trees_branch_more_where_rows_are_nearly_free(run: Run, num_leaves: int, most: int) -> None:
    flat = CostCurve((1, 64), (1.0, 1.02)), CostCurve((1, 16), (0.005, 0.0055))
    world = World(fresh_text(300, seed=1), flat, lambda _: (0.45, 0.2, 0.1))
    policy = PricedPolicy(ENDS)
    policy.widen(num_leaves)
    policy.set_prices(live_prices(*flat))
    run(world, policy=policy)
    assert policy.max_leaves == most
    assert most >= max(world.leaves) > min(most - 1, 30)


def test_memory_bound_targets_get_short_chains(run: Run) -> None:
    world = World(fresh_text(800, seed=1), F16, lambda _: (0.8, 0.1))
    run(world)
    assert 2 < np.mean(world.sizes) < 9
    assert plain_seconds(world, 800) / world.now > 1.2


@pytest.mark.parametrize("right", [0.9, 0.6])
def test_compute_bound_targets_decode_plainly(run: Run, right: float) -> None:
    world = World(fresh_text(500), Q4, lambda _: (right, 0.05))
    policy = run(world)
    assert not policy.has_headroom()
    assert world.num_drafted == 0, "no headroom: the draft is not even asked"
    assert set(world.sizes) == {1}
    assert world.now == pytest.approx(plain_seconds(world, 499), rel=0.01)


def test_copying_pays_where_drafting_does_not(run: Run) -> None:
    page = fresh_text(250)
    world = World(page + page, Q4)
    policy = run(world, prompt=251)
    assert world.num_drafted == 0
    assert plain_seconds(world, 249) / world.now > 1.2
    assert policy.copies.kappa < 1


def test_a_mixture_of_experts_settles_on_no_speculation(run: Run) -> None:
    """T(2) is nearly 2 T(1), and the draft is mediocre."""
    world = World(fresh_text(300), EXPERTS, lambda _: (0.6, 0.1))
    run(world)
    emitted = np.cumsum([1] * len(world.sizes))
    late = [size for size, at in zip(world.sizes, emitted, strict=True) if at > 64]
    assert np.mean(np.array(late) == 1) > 0.95
    assert plain_seconds(world, 300) / world.now > 0.98


def hostile(_at: int) -> Sequence[float]:
    return (0.0,)


class Confident(World):
    """Always wrong, and sure of itself."""

    def propose(self, tree: TokenTree, nodes: Ids) -> None:
        super().propose(tree, nodes)
        tree.candidate_ids[nodes] += 100_000
        tree.candidate_probs[nodes, 0] = 0.99


@pytest.mark.parametrize("prices", [F16, Q4, STREAMED, EXPERTS])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("with_draft", [True, False])
def test_an_always_wrong_draft_costs_the_stake_and_no_more(
    run: Run, prices: tuple[CostCurve, CostCurve], halves: bool, with_draft: bool
) -> None:
    # Bait for prompt lookup: pairs of tokens come again, what followed them does not.
    rng = np.random.default_rng(3)
    bait = [t for i in range(250) for t in (7, 8, 1000 + i, int(rng.integers(2000, 9000)))]
    world = Confident(bait, prices)
    policy: list[PricedPolicy] = []
    plain = [0.0]

    def watch(emitted: int) -> None:
        if halves and emitted > 500:
            world.slowness = 2.0
        plain.append(plain[-1] + world.slowness * prices[0].at(1) * (emitted - seen[-1]))
        seen.append(emitted)
        slack = 2.0 if halves else 1.0  # what was under way when the clock changed
        lateness = world.now - plain[-1]
        assert lateness <= slack * (STAKE + 0.1) * prices[0].at(1) + (EPS + 1e-3) * world.now

    seen = [1]
    policy.append(run(world, with_draft=with_draft, at_step=watch))
    assert plain[-1] / world.now > 0.97
    if with_draft and prices in (F16, STREAMED):
        assert world.num_drafted


@pytest.mark.parametrize("prices", [F16, Q4, STREAMED, EXPERTS])
@pytest.mark.parametrize("right", [0.05, 0.35, 0.5])
def test_what_a_recurrent_state_reads_again_is_paid_for(
    run: Run, prices: tuple[CostCurve, CostCurve], right: float
) -> None:
    """Beside a draft that is mostly refused, over a target that keeps no snapshots."""
    world = World(fresh_text(600), prices, lambda _at: (right, 0.1), rereads=True)
    policy = PricedPolicy(ENDS)
    policy.narrow(16)
    policy.set_prices(live_prices(*prices))
    run(world, policy=policy)
    assert plain_seconds(world, world.at - 1) / world.now > 0.97


def test_wrong_prices_are_corrected_by_real_passes(run: Run) -> None:
    """Rows were believed to be nearly free, and are not."""
    world = World(fresh_text(600), Q4, lambda _: (0.7, 0.1))
    run(world, believed=STREAMED)
    assert plain_seconds(world, 600) / world.now > 0.96
    assert np.mean(world.sizes[-100:]) < 1.5


def test_from_boilerplate_to_poetry_and_back(run: Run) -> None:
    def right(at: int) -> Sequence[float]:
        return (0.3, 0.05) if 400 <= at < 800 else (0.92, 0.04)

    world = World(fresh_text(1200), F16, right)
    marks: dict[int, tuple[float, int]] = {}
    run(world, at_step=lambda at: marks.setdefault(at // 400, (world.now, len(world.sizes))))
    times = [marks[i][0] for i in (0, 1, 2)] + [world.now]
    speeds = [400 / (b - a) for a, b in pairwise(times)]
    assert speeds[0] > 1.5
    assert speeds[1] > 0.95
    assert speeds[2] > 1.3
    means = [np.mean(world.sizes[marks[i][1] : marks[i + 1][1]]) for i in (0, 1)]
    assert means[0] > 2 * means[1]


@pytest.mark.parametrize(
    ("curves", "prompt", "longest"),
    [
        (F16, 10, None),
        (F16, 200, None),
        (F16, 700, 128),  # all would cost 47 tokens' time, for a reply of 128 tokens
        (F16, 3700, 128),
        (STREAMED, 1400, None),
        (STREAMED, 3700, 1024),
    ],
)
def test_so_much_of_the_prompt_is_read_as_pays(
    curves: tuple[CostCurve, CostCurve], prompt: int, longest: int | None
) -> None:
    text = fresh_text(prompt + 1)
    policy = PricedPolicy(ENDS)
    policy.set_prices(live_prices(*curves))
    world = World(text, curves, unread=prompt)
    assert policy.begin(text, world)
    assert world.longest_read == longest
    assert policy.acceptance.share == SHARES.get(longest or prompt, 1.0)
    world.unread = prompt
    assert policy.begin(fresh_text(prompt + 1, seed=1), world), "again as much"
    assert policy.acceptance.share == SHARES.get(longest or prompt, 1.0)


def test_the_prompt_is_not_read_where_that_cannot_pay() -> None:
    text = fresh_text(1401)
    policy = PricedPolicy(ENDS)
    policy.set_prices(live_prices(*Q4))
    assert not policy.begin(text, World(text, Q4, unread=1400))
    assert not policy.begin(text, NoDrafter())
    policy.set_prices(live_prices(*F16))
    short = {**policy.as_dict(), "num_replies": 100, "reply_tokens": 800}
    policy.restore(short)
    assert not policy.begin(text, World(text, F16, unread=1400)), "replies are short"


def test_a_long_reply_is_a_reason_to_read_after_all(run: Run) -> None:
    text = fresh_text(4000)
    world = World(text, (F16[0], CostCurve((1, 16), (0.17, 6.0))))
    drafted_from: list[int] = []
    policy = run(
        world,
        prompt=1000,
        at_step=lambda at: drafted_from.append(at) if world.num_drafted else None,
    )
    assert 1100 < drafted_from[0] < 2500
    assert policy.account.seconds < world.now, "reading is no part of the account"
    assert policy._pays_to_read()


@pytest.mark.parametrize("acceptance", [0.67, 0.75])
@pytest.mark.parametrize("longest", [96, 500])
def test_nothing_is_read_for_tokens_that_a_reply_may_not_have(
    run: Run, acceptance: float, longest: int
) -> None:
    """A reply of at most 96 tokens would let the draft read a summary's prompt at its 87th."""
    target = CostCurve((1, 2, 3, 6, 8, 16, 64), (0.102, 0.133, 0.153, 0.173, 0.224, 0.337, 1.2))
    curves = target, CostCurve((1, 128), (0.021, 0.4))
    world = World(fresh_text(718 + longest), curves)
    policy = PricedPolicy(ENDS)
    policy.set_prices(live_prices(*curves))
    seen = {"acceptances": [acceptance] * 5, "num_replies": 4, "reply_tokens": 416}
    policy.restore({**policy.as_dict(), **seen})
    read_from: list[int] = []
    run(
        world,
        policy=policy,
        prompt=718,
        at_step=lambda at: read_from.append(at - 718) if world.read_seconds else None,
    )
    # What 0.75 promises is worth it from the start, 0.67 if the reply may be a long one.
    assert bool(read_from) == (acceptance == 0.75 or longest == 500)
    assert all(at < longest // 3 for at in read_from[:1])


def test_what_was_learned_is_kept(run: Run) -> None:
    world = World(fresh_text(300), F16, lambda _: (0.6, 0.1))
    policy = run(world)
    other = PricedPolicy(ENDS)
    other.set_prices(live_prices(*F16))
    other.restore(policy.as_dict())
    assert other.as_dict() == policy.as_dict()
    assert other.left == pytest.approx((1 + STAKE) * other.target.at(1)), "a fresh account"
    for wrong in (
        {},
        {**policy.as_dict(), "acceptances": [7.0]},
        {**policy.as_dict(), "seen": 0.0},
    ):
        with pytest.raises((KeyError, ValueError)):
            other.restore(wrong)


def test_what_a_reply_saved_is_not_at_stake_in_the_next() -> None:
    policy = PricedPolicy(ENDS)
    policy.set_prices(live_prices(CostCurve((1, 64), (0.1, 0.1))))
    stake, tree = policy.left, TokenTree(64, 4)
    policy.begin([5, 6, 7], NoDrafter())
    for _ in range(50):
        policy.learn(tree, [0], [8] * 8, StepCost(0.1, target_seconds=0.1, num_rows=8))
    assert policy.left > 10 * stake
    policy.begin([5, 6, 7], NoDrafter())
    assert policy.left == pytest.approx(stake, rel=1e-3)


def test_what_a_reply_lost_is_owed_by_the_next() -> None:
    policy = PricedPolicy(ENDS)
    policy.set_prices(live_prices(CostCurve((1, 64), (0.1, 0.1))))
    tree = TokenTree(64, 4)
    policy.begin([5, 6, 7], NoDrafter())
    for _ in range(3):
        policy.learn(tree, [0], [8], StepCost(0.2, target_seconds=0.2, num_rows=8))
    left = policy.left
    policy.begin([5, 6, 7], NoDrafter())
    assert policy.left == pytest.approx(left)


# On tiny models, where arithmetic is exact


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, repeat_penalty=1.1, top_k=0),
]


@pytest.mark.parametrize("params", PARAMS, ids=["T0", "T0.7", "T1"])
@pytest.mark.parametrize("with_draft", [True, False], ids=["draft", "lookup"])
def test_the_text_is_plain_decodings(
    tiny_pair: TinyPair, params: SamplingParams, with_draft: bool
) -> None:
    prompt = [1, *range(300, 340), *range(300, 320)]
    with opened_decoder(tiny_pair, "none") as plain:
        wanted = [reply(plain, prompt, params, seed=s, max_tokens=90) for s in (1, 2)]
    with opened_decoder(tiny_pair, "priced", with_draft=with_draft) as decoder:
        assert [reply(decoder, prompt, params, seed=s, max_tokens=90) for s in (1, 2)] == wanted


def test_trees_grow_on_real_passes(tiny_pair: TinyPair) -> None:
    with opened_decoder(tiny_pair, "priced", end_tokens=ENDS) as decoder:
        params = SamplingParams(temperature=1.0)
        found = list(steps(decoder, [1, 300, 301], params, seed=4, max_tokens=60))
        policy, drafter = decoder.policy, model_drafter(decoder)
        assert isinstance(policy, PricedPolicy)
        assert max(step.num_drafted for step in found) > 16
        assert any(not step.is_chain for step in found)
        assert sum(len(s.tokens) for s in found) / len(found) > 2
        assert policy.copies.lookup.tokens[3:] == [t for s in found for t in s.tokens]
        assert len(decoder.target.tokens) - len(drafter.cache.tokens) < 60


def test_turns_and_cuts_leave_the_index_true(tiny_pair: TinyPair) -> None:
    params = SamplingParams(temperature=1.0)
    prompt = [1, *range(300, 340)]
    with opened_decoder(tiny_pair, "priced") as decoder, opened_decoder(tiny_pair, "none") as plain:
        for n in (60, 20, 41, 30):
            text = [*prompt[:n], *range(310, 330)]
            expected = reply(plain, text, params, seed=n, max_tokens=40)
            for _ in steps(decoder, text, params, seed=n, max_tokens=40):
                break  # a consumer that walks away
            assert reply(decoder, text, params, seed=n, max_tokens=40) == expected


def test_a_copied_token_that_the_draft_lacks(tiny_target: Path, tiny_shortened: Path) -> None:
    with Model(tiny_shortened) as model:
        missing = model.num_vocab
    loop = [300, 301, missing, 302, 303]
    prompt = [1, *loop * 6, 300, 301]
    params = SamplingParams(temperature=0.0)
    pair = TinyPair(tiny_target, tiny_shortened)
    with opened_decoder(pair, "none") as plain:
        expected = reply(plain, prompt, params, seed=1, max_tokens=30)
    with opened_decoder(pair, "priced", prices=CHEAP_ROWS) as decoder:
        assert reply(decoder, prompt, params, seed=1, max_tokens=30) == expected


def test_slow_plain_passes_leave_the_account_alone() -> None:
    policy = PricedPolicy(np.array([2], np.int32))
    policy.set_prices(live_prices(CostCurve((1, 64), (0.1, 1.0))))
    policy.begin([5, 6, 7], NoDrafter())
    tree = TokenTree(8, 4)
    for i in range(200):
        slow = 0.5 if i % 5 == 0 else 0.1  # the median sees none of the slow ones
        policy.learn(tree, [0], [9 + i], StepCost(slow, target_seconds=slow, num_rows=1))
    assert policy.left >= 3 * policy.target.at(1)
