"""The built pages are what their sources give."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import dyspec_edge

PAGE = Path(__file__).parents[2] / "page"
BUILT = Path(dyspec_edge.__file__).parent / "server" / "static"
LARGEST = 250 * 1024
"""Bytes of all built pages together."""


def test_the_built_pages_are_small() -> None:
    assert sum(path.stat().st_size for path in BUILT.iterdir()) < LARGEST


@pytest.fixture
def node() -> str:
    """The program that builds the pages."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (PAGE / "node_modules").is_dir():
        pytest.skip("the page's packages are not installed: npm ci --prefix page")
    return node


def test_the_sources_pass_the_type_check(node: str) -> None:
    tsc = PAGE / "node_modules" / ".bin" / "tsc"
    checked = subprocess.run([node, tsc, "-p", PAGE], capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    assert checked.returncode == 0


def test_the_built_pages_are_what_the_sources_give(node: str, tmp_path: Path) -> None:
    subprocess.run([node, PAGE / "build.mjs", tmp_path], check=True, capture_output=True)
    built = {path.name: path.read_bytes() for path in BUILT.iterdir()}
    assert built == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, (
        "build the pages again: npm run build --prefix page"
    )
