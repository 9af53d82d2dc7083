"""What is believed of a text before the draft was asked, and after."""

from __future__ import annotations

import numpy as np
import pytest

from dyspec_edge.decode.policy.acceptance import MOST, TEXTS, USUAL, Acceptance


def written(acceptance: Acceptance, right: float, num_guesses: int = 100, seed: int = 0) -> None:
    """A text in which so large a share of the draft's first guesses is right."""
    acceptance.begin()
    hits = np.random.default_rng(seed).random(num_guesses) < right
    for hit in hits.tolist():
        acceptance.see([hit])


def test_a_text_is_begun_with_hope_whatever_the_last_one_was() -> None:
    acceptance = Acceptance()
    fresh = acceptance.now
    assert min(USUAL) < fresh < max(USUAL)
    written(acceptance, 0.3)
    assert acceptance.now < 0.45
    acceptance.begin()
    assert acceptance.now > 0.75
    for seed in range(TEXTS):
        written(acceptance, 0.95, seed=seed)
    acceptance.begin()
    assert acceptance.now > fresh


def test_a_text_is_followed_and_its_few_guesses_are_no_proof() -> None:
    acceptance = Acceptance()
    acceptance.begin()
    acceptance.see([False])
    assert acceptance.now > 0.6
    written(acceptance, 0.5, num_guesses=400)
    assert acceptance.now == pytest.approx(0.5, abs=0.15)
    acceptance.see([True] * 200)
    assert acceptance.now == pytest.approx(MOST, abs=0.01)


def test_a_text_in_which_the_draft_was_hardly_asked_is_not_remembered() -> None:
    acceptance = Acceptance()
    written(acceptance, 0.0, num_guesses=7)
    assert acceptance.texts == []
    written(acceptance, 0.0, num_guesses=8)
    assert acceptance.texts == [0.0]


def test_what_was_learned_with_a_part_of_the_prompt_is_kept_as_of_all_of_it() -> None:
    acceptance = Acceptance()
    acceptance.begin()
    hoped = acceptance.now
    acceptance.read(0.6)
    assert acceptance.now == pytest.approx(0.6 * hoped)
    for hit in [True, False] * 20:
        acceptance.see([hit])
    assert acceptance.texts == [pytest.approx(0.5 / 0.6)]
    acceptance.read(1.0)
    assert acceptance.now == pytest.approx(0.5 / 0.6, abs=0.1), "it has read the rest"


def test_steps_without_a_draft_bring_hope_back() -> None:
    acceptance = Acceptance()
    hoped = acceptance.now
    acceptance.see([False] * 40)
    low = acceptance.now
    for _ in range(200):
        acceptance.see([])
    assert low < 0.2
    assert acceptance.now == pytest.approx(hoped, rel=0.03)


def test_only_the_last_texts_count() -> None:
    acceptance = Acceptance()
    for seed in range(TEXTS + 3):
        written(acceptance, 0.5, seed=seed)
    acceptance.begin()
    assert len(acceptance.texts) == TEXTS
    assert acceptance.possible[: len(USUAL)] == USUAL
    other = Acceptance()
    other.remember(acceptance.texts)
    assert other.texts == acceptance.texts
    assert other.now == acceptance.now


@pytest.mark.parametrize("texts", [[1.5], [-0.1], [float("nan")], ["much"], 7])
def test_what_is_no_acceptance_is_refused(texts: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Acceptance().remember(texts)  # type: ignore[arg-type]
