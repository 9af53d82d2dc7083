from __future__ import annotations

import re
from pathlib import Path

import pytest

from dyspec_edge.files import catalog
from dyspec_edge.files.catalog import ModelSource, Pair, Wheels

PAIRS = catalog.load()
SOURCES = [
    source for pair in PAIRS.values() for source in (pair.target, pair.draft) if source is not None
]


def test_the_promised_pairs_are_there() -> None:
    assert {"qwen2.5-coder", "smollm2", "gemma3-270m", "llama3.1-8b", "llama3.3-70b"} <= set(PAIRS)
    assert PAIRS["qwen2.5-coder"].checked
    assert not PAIRS["llama3.3-70b"].checked
    assert PAIRS["qwen2.5-coder"].size == 1117320768 + 491400064
    assert PAIRS["llama3.3-70b"].size is None


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_sources_are_well_formed(source: ModelSource) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", source.repo)
    assert (source.file is None) != (source.quant is None)
    assert source.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", source.sha256)
    if source.wheels is not None:
        # Only a checksum makes a file from a package index as good as the hub's.
        assert source.file is not None
        assert source.size is not None
        assert source.sha256 is not None
        assert all("==" in package for package in source.wheels.packages)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_checked_pairs_have_checksums(pair: Pair) -> None:
    for source in (pair.target, pair.draft):
        assert not pair.checked or source is None or source.sha256 is not None


def test_a_catalog_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(
        """
        [pairs.mine]
        note = "a note"
        licence = "MIT"
        [pairs.mine.target]
        repo = "user/repo"
        file = "model.gguf"
        wheels = { packages = "model-part{}==2.0", count = 3, member = "*.bin" }
        """
    )
    pair = catalog.load(path)["mine"]
    packages = ("model-part1==2.0", "model-part2==2.0", "model-part3==2.0")
    wheels = Wheels(packages, "*.bin")
    assert pair == Pair(
        "mine", ModelSource("user/repo", "model.gguf", wheels=wheels), None, "MIT", False, "a note"
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (ModelSource("user/repo", "model.gguf"), "model.gguf"),
        (ModelSource("user/repo", quant="Q8_0"), "user/repo:Q8_0"),
        (ModelSource("user/repo"), "user/repo"),
    ],
)
def test_names_for_people(source: ModelSource, name: str) -> None:
    assert source.name == name
