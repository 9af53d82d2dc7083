"""Kept acceptance rates: whose they are, and what is done with a file that is of no use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dyspec_edge.decode.policy.sequoia import WIDTH, Acceptance
from dyspec_edge.files import stores
from dyspec_edge.load.sequoia_rates import keep, rates_key, recall
from tests.conftest import TinyPair

COLD = Acceptance((0.8, 0.1, *[0.0] * (WIDTH - 2)), 0.0, 100)
WARM = Acceptance((0.7, 0.2, *[0.0] * (WIDTH - 2)), 0.8, 200)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("home")
def test_fits_are_kept_by_temperature(tiny_pair: TinyPair) -> None:
    key = rates_key(*tiny_pair, "match")
    assert recall(key) == ()
    keep(key, [WARM])
    keep(key, [COLD])
    assert recall(key) == (COLD, WARM)
    newer = Acceptance(COLD.rates, 0.8, 300)
    keep(key, [newer])
    assert recall(key) == (COLD, newer)


@pytest.mark.usefixtures("home")
def test_rates_belong_to_weights_verifier_and_draft_temperature(
    tiny_pair: TinyPair, tiny_equal: TinyPair, tmp_path: Path
) -> None:
    key = rates_key(*tiny_pair, "match")
    keep(key, [COLD])
    for other in (
        rates_key(*tiny_pair, "residual"),
        rates_key(*tiny_pair, "match", 0.6),
        rates_key(*tiny_equal, "match"),
        rates_key(tiny_pair.draft, tiny_pair.target, "match"),
    ):
        assert recall(other) == ()
    copies = [Path(shutil.copy(path, tmp_path / f"a copy of {path.name}")) for path in tiny_pair]
    assert recall(rates_key(copies[0], copies[1], "match")) == (COLD,)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [{}],
        [{"rates": [0.5] * WIDTH, "temperature": 0, "num_steps": 1}],
        [{"rates": [0.5], "temperature": 0, "num_steps": 1}],
        [{"rates": [0.0] * WIDTH, "temperature": 0, "num_steps": 1}],
        [{"rates": [float("nan")] * WIDTH, "temperature": 0, "num_steps": 1}],
        [{"rates": ["x"] * WIDTH, "temperature": 0, "num_steps": 1}],
        7,
    ],
)
def test_a_file_of_no_use_is_as_none(home: Path, tiny_pair: TinyPair, value: object) -> None:
    key = rates_key(*tiny_pair, "match")
    keep(key, [COLD])
    (path,) = (home / "sequoia").iterdir()
    document = json.loads(path.read_text())
    assert stores.cache_dir() == home
    path.write_text(json.dumps({**document, "value": value}))
    assert recall(key) == ()
    keep(key, [WARM])
    assert recall(key) == (WARM,)
