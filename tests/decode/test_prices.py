"""Prices in plain words, as predictions, and shared by policies."""

from __future__ import annotations

import pytest

from dyspec_edge.decode.cost import CostCurve
from dyspec_edge.decode.policy.priced import PricedPolicy
from dyspec_edge.decode.prices import ACCEPTANCES, REQUIRED_GAIN, LivePrices, Prices
from tests.decode.test_priced import ENDS, EXPERTS, F16, Q4, STREAMED
from tests.decoding import live_prices

Pair = tuple[CostCurve, CostCurve]


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        (Q4, "compute-bound: a draft model will not pay, prompt lookup will"),
        (F16, "memory-bound: a draft model will pay"),
        (STREAMED, "rows are nearly free: a draft model will pay, large trees too"),
        (EXPERTS, "compute-bound: a draft model will pay"),
    ],
)
def test_plain_words(prices: Pair, words: str) -> None:
    found = Prices(*prices, measured=True)
    assert words in found.verdict
    assert found.verdict.startswith("this target on this machine is ")
    alone = Prices(prices[0], None, measured=True)
    assert alone.verdict.endswith("prompt lookup will pay")
    assert alone.as_dict()["draft_speedup"] is None


def test_the_curves_in_a_few_words() -> None:
    assert Prices(*F16).summary.startswith("T(1) 1000 ms, T(4) 1.4x, ")
    assert Prices(CostCurve((1, 3), (0.0123, 0.02))).summary == "T(1) 12.3 ms"


def test_predictions_rise_with_acceptance() -> None:
    found = Prices(*F16, measured=False).as_dict()
    assert list(found["draft_speedup"]) == [str(a) for a in ACCEPTANCES]
    for kind in ("draft_speedup", "copy_speedup"):
        speeds = list(found[kind].values())
        assert speeds == sorted(speeds)
        assert speeds[0] >= 1.0
    assert found["copy_speedup"]["0.9"] > found["draft_speedup"]["0.9"]
    assert found["target_seconds"]["4"] == 1.4


def test_the_gain_of_a_fixed_policy_is_the_best_chains_computed_by_hand() -> None:
    flat = Prices(CostCurve((1, 64), (0.1, 0.1)), CostCurve((1, 16), (0.01, 0.01)))
    of_five = sum(0.75**i for i in range(6)) * 0.1 / (5 * 0.01 + 0.1)
    assert flat.fixed_gain == pytest.approx(of_five)
    assert Prices(flat.target).fixed_gain == 1.0, "without a draft nothing is gained"


@pytest.mark.parametrize(("draft", "pays"), [(0.030, True), (0.080, False)])
def test_drafting_has_to_pay_a_tenth(draft: float, pays: bool) -> None:
    target = CostCurve((1, 5, 9), (0.1, 0.12, 0.16))
    found = Prices(target, CostCurve((1, 16), (draft, 2 * draft)))
    assert (found.fixed_gain >= REQUIRED_GAIN) is pays


def test_what_one_policy_observes_is_true_for_all() -> None:
    prices = live_prices(*F16)
    one, other = PricedPolicy(ENDS), PricedPolicy(ENDS)
    for policy in (one, other):
        policy.set_prices(prices)
    for _ in range(5):
        one.target.observe(1, 2 * F16[0].at(1))
    assert other.target.at(8) == pytest.approx(2 * F16[0].at(8))
    one.acceptance.remember([0.5])
    assert other.acceptance.texts == [], "how well a draft fits is a matter of the text"


def test_what_use_has_taught_is_kept() -> None:
    prices = live_prices(*F16)
    for _ in range(20):
        prices.target.observe(1, F16[0].at(1))
        prices.target.observe(8, 1.4 * F16[0].at(8))
    again = LivePrices(prices.as_prices())
    assert again.target.at(8) > 1.3 * F16[0].at(8)
    assert again.target.at(8) == pytest.approx(prices.target.at(8), rel=0.02)
    assert not again.target.is_sure(8), "of another day"
    assert LivePrices(Prices(F16[0])).as_prices().draft is None


def test_a_draft_that_cannot_pay_is_left_out() -> None:
    def priced(prices: Pair) -> PricedPolicy:
        policy = PricedPolicy(ENDS)
        assert policy.uses_draft, "before prices are known"
        policy.set_prices(live_prices(*prices))
        return policy

    alone, pair = priced(Q4), priced(F16)
    assert (alone.uses_draft, pair.uses_draft) == (False, True)
    assert "from the text's repetitions: " in (alone.explanation or "")
    assert "from the draft and the text's own repetitions: " in (pair.explanation or "")
