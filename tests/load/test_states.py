"""How many states are held: as many as a chain needs, and no more than the memory allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dyspec_edge.decode.cache import NUM_COPIES
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.load.states import LONGEST_CHAIN, SHARE, StatePlan, plan_states
from tests.tiny_architectures import Architecture

PLENTY = 1e12


def test_what_has_no_state_branches(
    tiny_target: Path, tiny_state: Callable[[Architecture], Path]
) -> None:
    report = inspect_file(tiny_target)
    assert plan_states(report, report, room=0, num_conversations=2) == StatePlan()
    whole = replace(inspect_file(tiny_state("qwen35")), state="whole")
    assert plan_states(whole, None, room=PLENTY, num_conversations=1) == StatePlan()


def test_snapshots_of_a_target_fit_into_a_share_of_the_memory(
    tiny_state: Callable[[Architecture], Path],
) -> None:
    target = inspect_file(tiny_state("qwen35"))
    one = target.state_bytes
    for snapshots, room in ((LONGEST_CHAIN, PLENTY), (5, (1 + NUM_COPIES + 5) * one), (1, 0.0)):
        plan = plan_states(target, None, room=room / SHARE, num_conversations=1)
        assert plan.num_snapshots == plan.longest_chain == snapshots
        assert plan.num_snapshots_draft is None
        assert plan.num_bytes == (1 + NUM_COPIES + snapshots) * one
    several = plan_states(target, None, room=PLENTY, num_conversations=3)
    assert several.num_bytes == 3 * (1 + NUM_COPIES + LONGEST_CHAIN) * one


def test_copies_of_a_target_do_not_grow_with_the_chain(
    tiny_state: Callable[[Architecture], Path],
) -> None:
    target = inspect_file(tiny_state("jamba"))
    for room in (0.0, PLENTY):
        plan = plan_states(target, None, room=room, num_conversations=1)
        assert (plan.num_snapshots, plan.longest_chain) == (0, LONGEST_CHAIN)
        assert plan.num_bytes == (3 + NUM_COPIES) * target.state_bytes


def test_a_draft_takes_a_copy_for_each_of_its_passes(
    tiny_target: Path, tiny_state: Callable[[Architecture], Path]
) -> None:
    target, draft = inspect_file(tiny_target), inspect_file(tiny_state("lfm2"))
    plan = plan_states(target, draft, room=PLENTY, num_conversations=1)
    assert (plan.num_snapshots, plan.num_snapshots_draft) == (None, 0)
    assert plan.longest_chain == LONGEST_CHAIN
    assert plan.num_bytes == (2 + NUM_COPIES + LONGEST_CHAIN) * draft.state_bytes
