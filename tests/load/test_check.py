"""n-token against one-token passes: sound files pass, a backend that errs does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dyspec_edge.decode.cache import Cache
from dyspec_edge.decode.tree import TokenTree
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import Context
from dyspec_edge.load.check import DEFAULT_BOUND, CheckReport, compare_passes
from tests.conftest import TinyPair
from tests.engines import tiny_config
from tests.load.test_loading import adapter, is_open


def test_both_files_agree_with_themselves(tiny_pair: TinyPair) -> None:
    reports = compare_passes(tiny_config(*tiny_pair))
    assert [(r.role, r.path, r.rows) for r in reports] == [
        ("target", tiny_pair.target, 16),
        ("draft", tiny_pair.draft, 16),
    ]
    for report in reports:
        assert report.ok
        assert 0 < report.max_logit_difference < 1e-3
        assert (report.top1_flips, report.largest_flip_gap) == (0, 0.0)
        assert report.bound == DEFAULT_BOUND


@pytest.mark.parametrize("which", ["tiny_target", "tiny_recurrent"])
@pytest.mark.parametrize("policy", ["none", None])
def test_a_target_alone(request: pytest.FixtureRequest, which: str, policy: str | None) -> None:
    path: Path = request.getfixturevalue(which)
    (report,) = compare_passes(tiny_config(path, policy=policy), n=40)
    assert report.ok
    assert (report.role, report.rows) == ("target", 40)


def test_a_sliding_window(tiny_sliding: TinyPair) -> None:
    assert [report.ok for report in compare_passes(tiny_config(*tiny_sliding), n=64)] == [True] * 2


def test_an_adapter_is_part_of_the_target(tiny_target: Path, tmp_path: Path) -> None:
    adapters: list[Sequence[Any]] = []
    original = Context.__init__

    def seen(self: Context, *args: Any, **values: Any) -> None:
        adapters.append(values.get("adapters", ()))
        original(self, *args, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "__init__", seen)
        lora = (adapter(tmp_path, tiny_target),)
        (report,) = compare_passes(tiny_config(tiny_target, lora=lora))
    assert report.ok
    assert len(adapters[-1]) == 1


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_backend_that_errs_in_large_passes_is_found(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    original = Cache.evaluate

    def off_by_one(self: Cache, tree: TokenTree, nodes: npt.NDArray[np.int32]) -> None:
        if len(nodes) == 16 and next(turns) == role:
            tree.token[3] += 1  # as if row 3 had been computed with its neighbour's data
        original(self, tree, nodes)

    turns = iter(["target", "draft"])
    monkeypatch.setattr(Cache, "evaluate", off_by_one)
    for report in compare_passes(tiny_config(*tiny_pair)):
        assert report.ok == (report.role != role)
        if report.role == role:
            assert report.max_logit_difference > report.bound
            assert report.top1_flips > 0
            assert 0 < report.largest_flip_gap <= 2 * report.max_logit_difference


def test_logits_that_are_no_numbers_are_not_ok(tiny_target: Path) -> None:
    report = CheckReport("target", tiny_target, 16, float("nan"), 0, 0.0, DEFAULT_BOUND)
    assert not report.ok


def test_the_bound_decides(tiny_target: Path) -> None:
    (strict,) = compare_passes(tiny_config(tiny_target), bound=1e-12)
    assert not strict.ok
    assert strict.bound == 1e-12


@pytest.mark.parametrize("n", [-1, 1, 513])
def test_too_few_or_too_many_tokens(tiny_target: Path, n: int) -> None:
    with pytest.raises(OptionError, match=f"{n} tokens to compare: it must be 2 to 512"):
        compare_passes(tiny_config(tiny_target), n)


def test_the_largest_pass(tiny_target: Path) -> None:
    (report,) = compare_passes(tiny_config(tiny_target), 512)
    assert report.ok
    assert report.rows == 512


def test_nothing_stays_open(tiny_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.gguf"
    path.write_bytes(tiny_target.read_bytes())
    compare_passes(tiny_config(path))
    assert not is_open(path)
