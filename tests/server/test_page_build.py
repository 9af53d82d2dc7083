"""The built pages are what their sources give."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import dyspec_edge

ROOT = Path(__file__).parents[2]
BUILT = Path(dyspec_edge.__file__).parent / "server" / "static"
LARGEST = 250 * 1024
"""Bytes of all built pages together."""


def test_the_built_pages_are_small() -> None:
    assert sum(path.stat().st_size for path in BUILT.iterdir()) < LARGEST


def test_the_built_pages_are_what_the_sources_give(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (ROOT / "page" / "node_modules").is_dir():
        pytest.skip("the page's packages are not installed: npm ci --prefix page")
    script = ROOT / "page" / "build.mjs"
    subprocess.run([node, str(script), str(tmp_path)], check=True, capture_output=True)
    built = {path.name: path.read_bytes() for path in BUILT.iterdir()}
    assert built == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, (
        "build the pages again: npm run build --prefix page"
    )
