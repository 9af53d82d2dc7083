"""Prices that were unknown or wrong become true in use, and what that costs is bounded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from dyspec_edge.decode.cost import TARGET_SIZES, CostCurve
from dyspec_edge.decode.draft.interface import NoDrafter
from dyspec_edge.decode.policy.account import EPS, STAKE
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.policy.reading import SHARES
from dyspec_edge.decode.prices import LivePrices, Prices
from dyspec_edge.decode.tree import TokenTree
from tests.decode.test_priced import ENDS, F16, Q4, World, fresh_text
from tests.decoding import live_prices

SLOW = CostCurve((1, 2, 3, 4, 8, 32), (0.6, 0.61, 0.7, 1.1, 1.75, 4.3))
"""A 1.5B F16 on two cores, cold: its knee lies between three rows and four."""

DRAFT = CostCurve((1, 16), (0.05, 0.4), sure=frozenset(TARGET_SIZES))
KNOWN = replace(SLOW, sure=frozenset(TARGET_SIZES))

NUM_TOKENS, LEARNED = 700, 200


@dataclass
class Watched(World):
    """Notes where the text stood, and when."""

    marks: list[tuple[int, float]] = field(default_factory=lambda: [(1, 0.0)])


def written(
    believed: CostCurve, truth: CostCurve = SLOW, seed: int = 1, draft: CostCurve = DRAFT
) -> Watched:
    """A text written by a policy that believes something, on a clock that knows the truth."""
    world = Watched(fresh_text(NUM_TOKENS, seed=seed), (truth, DRAFT), lambda _: (0.75, 0.1))
    policy = PricedPolicy(ENDS)
    policy.set_prices(LivePrices(Prices(believed, draft)))
    tree = TokenTree(policy.tree_capacity, 64)
    if policy.begin(world.text[:1], world):
        world.read()
    while world.at < len(world.text) - 1:
        world.step(policy, tree)
        world.marks.append((world.at, world.now))
    return world


def rate(world: Watched, first: int) -> float:
    """Tokens a second from token `first` on."""
    at, seconds = next(mark for mark in world.marks if mark[0] >= first)
    return (world.at - at) / (world.now - seconds)


def scaled(factor: float, *sizes: int) -> CostCurve:
    """The curve of an earlier load, wrong at those sizes; at all but one row if none is named."""
    wrong = sizes or SLOW.sizes[1:]
    seconds = [
        s * (factor if n in wrong else 1.0) for n, s in zip(SLOW.sizes, SLOW.seconds, strict=True)
    ]
    return CostCurve(SLOW.sizes, tuple(seconds))


FIRST_LOAD = CostCurve((1, 8, 32), (0.6, 1.75, 4.3), sure=frozenset((1, 8, 32)))


@pytest.mark.parametrize(
    "believed",
    [
        FIRST_LOAD,
        CostCurve((1,), (0.6,)),
        scaled(3.0),
        scaled(1 / 3),
        *(scaled(f, n) for f in (3.0, 1 / 3) for n in SLOW.sizes[1:]),
    ],
    ids=str,
)
def test_wrong_prices_cost_little_and_not_for_long(believed: CostCurve) -> None:
    seeds = (1, 2, 3)
    known = [written(KNOWN, seed=s) for s in seeds]
    found = [written(believed, seed=s) for s in seeds]
    assert np.mean([rate(w, 0) for w in known]) * 0.6 > 1.3, "drafting pays there"
    late = [np.mean([rate(w, LEARNED) for w in worlds]) for worlds in (found, known)]
    assert late[0] >= 0.95 * late[1]


@pytest.mark.parametrize("second", [1.3, 1.45, 1.6])
def test_a_second_load_where_two_rows_are_dear_and_five_are_not(second: float) -> None:
    """What has to be seen is not the next size, which never pays, but one beyond."""
    seconds = (0.6, 0.6 * second, 0.62 * second, 0.66 * second, 1.32, 4.3)
    kept = CostCurve((1, 2, 3, 6, 8, 32), seconds)
    world = written(kept, kept)
    known = written(replace(kept, sure=frozenset(TARGET_SIZES)), kept)
    assert rate(known, 0) * 0.6 > 1.1, "drafting pays there"
    assert rate(world, LEARNED) >= 0.95 * rate(known, LEARNED)


@pytest.mark.parametrize("sure", [(), (1, 4, 6)])
def test_a_first_load_that_had_to_fetch_the_weights(sure: tuple[int, ...]) -> None:
    """All sizes are eight times too dear, one row among them."""
    believed = CostCurve((1, 4, 6), (4.8, 8.0, 10.5), sure=frozenset(sure))
    world = written(believed)
    known = written(KNOWN)
    assert rate(world, LEARNED) >= 0.95 * rate(known, LEARNED)
    assert 1 in world.sizes[:3]


@pytest.mark.parametrize("factor", [20.0, 3.0, 1 / 3])
def test_a_draft_whose_price_is_wrong_is_used_in_the_same_reply(factor: float) -> None:
    known = [written(KNOWN, seed=seed) for seed in (1, 2, 3)]
    wrong = replace(DRAFT.scaled(factor), disturbed=True)
    found = [written(KNOWN, seed=seed, draft=wrong) for seed in (1, 2, 3)]
    late = [np.mean([rate(w, LEARNED) for w in worlds]) for worlds in (found, known)]
    assert late[0] >= 0.95 * late[1]


def test_a_draft_that_cannot_pay_is_looked_at_for_a_percent() -> None:
    """It costs half a token, and is believed to cost a bit more than where it would pay."""
    truth = CostCurve((1, 64), (0.1, 1.2))
    world = World(fresh_text(600), (truth, CostCurve((1, 16), (0.09, 0.9))))
    policy = PricedPolicy(ENDS)
    policy.set_prices(LivePrices(Prices(truth, world.prices[1])))
    assert policy.uses_draft, "the target's prices are not sure"
    tree = TokenTree(policy.tree_capacity, 64)
    policy.begin(world.text[:1], world)
    while world.at < len(world.text) - 1:
        world.step(policy, tree)
    assert 3 < world.num_looks < 30
    assert world.now <= 0.1 * 600 * 1.01 + 0.1


def test_looks_at_prices_that_turn_out_dear_cost_a_percent() -> None:
    """Every row costs a whole pass, and is believed to cost nothing or not known at all."""
    dear = CostCurve((1, 64), (0.6, 38.4))
    plain = 0.6 * NUM_TOKENS
    for believed in (CostCurve((1,), (0.6,)), CostCurve(dear.sizes, dear.seconds)):
        world = written(believed, dear)
        assert max(world.sizes) > 1, "it looked"
        assert world.now - plain <= 0.6 + 0.02 * plain
    world = written(CostCurve((1, 64), (0.6, 0.6)), dear)
    assert world.now - plain <= STAKE * 0.6 + 0.6 + (EPS + 0.01) * plain


def test_a_draft_is_not_left_out_for_a_doubtful_price() -> None:
    policy = PricedPolicy(ENDS)
    dear = CostCurve((1, 8, 64), (1.0, 12.0, 90.0))
    policy.set_prices(LivePrices(Prices(dear, DRAFT)))
    assert policy.uses_draft
    policy.set_prices(LivePrices(Prices(replace(dear, sure=frozenset(TARGET_SIZES)), DRAFT)))
    assert not policy.uses_draft


def test_rows_are_filled_up_to_see_a_price_before_the_draft_reads() -> None:
    """The draft has much to read, and at the believed prices would never pay."""
    text = fresh_text(900)
    world = World(text, (SLOW, DRAFT))
    policy = PricedPolicy(ENDS)
    policy.set_prices(LivePrices(Prices(scaled(3.0), DRAFT)))
    world.at, world.unread = 500, 499
    assert not policy.begin(text[:500], world)
    tree = TokenTree(policy.tree_capacity, 64)
    while not world.num_drafted and world.at < 600:
        world.step(policy, tree)
    assert world.num_drafted, "prices were seen, and the prompt was read"
    assert 2 in world.sizes[:3]


def test_nothing_is_filled_up_below_an_end() -> None:
    """A raw prompt may close with an end token, of which a filled row would be a copy."""
    text = fresh_text(900)
    world = World(text, (SLOW, DRAFT))
    policy = PricedPolicy(np.array(sorted(text[499:502]), np.int32))
    policy.set_prices(LivePrices(Prices(scaled(3.0), DRAFT)))
    world.at, world.unread = 500, 499
    assert not policy.begin(text[:500], world)
    tree = TokenTree(policy.tree_capacity, 64)
    for _ in range(3):
        world.step(policy, tree)
    assert world.sizes == [1, 1, 1]


@pytest.mark.parametrize("curves", [F16, (SLOW, DRAFT)])
@pytest.mark.parametrize("emitted", [16, 21, 64])
def test_reading_for_a_reply_that_ends_early_costs_three_percent(
    curves: tuple[CostCurve, CostCurve], emitted: int
) -> None:
    """Of the whole request, the target's own reading included."""
    prompt = 3700
    text = fresh_text(prompt + 200)
    policy = PricedPolicy(ENDS)
    policy.set_prices(live_prices(*curves))
    world = World(text, curves)
    world.at, world.unread = prompt, prompt - 1
    before = world.now
    if policy.begin(text[:prompt], world):
        world.read()
    assert world.longest_read in SHARES
    tree = TokenTree(policy.tree_capacity, 64)
    while world.at < prompt + emitted:
        world.step(policy, tree)
    request = curves[0].at(prompt)
    plain = request + curves[0].at(1) * (world.at - prompt)
    assert plain / (request + world.now - before) >= 0.965


def test_a_pass_of_one_row_is_asked_for_where_all_sizes_drift() -> None:
    policy = PricedPolicy(ENDS)
    policy.set_prices(LivePrices(Prices(KNOWN, None)))
    tree = TokenTree(policy.tree_capacity, 64)
    policy.begin([5, 6, 7, 5, 6], NoDrafter())
    for _ in range(6):
        policy.target.observe(4, 2 * SLOW.at(4))
    assert policy.target.asks_for_one_row
    tree.reset(6)
    assert policy.grow(tree, NoDrafter(), 50).tolist() == [0]
    policy.target.observe(1, SLOW.at(1))
    assert policy.target.at(1) == pytest.approx(SLOW.at(1), rel=0.02)


def test_compute_bound_targets_are_left_alone() -> None:
    """What Q4 looked like in a busy minute, on a quiet machine."""
    truth = Q4[0].scaled(0.07)
    believed = CostCurve((1, 4, 8), (0.07, 0.5, 0.84))
    world = written(believed, truth)
    assert 0.07 * NUM_TOKENS / world.now > 0.97
