"""Arrows between the rooms of the package point down only, and no modules import in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dyspec_edge

PACKAGE = Path(dyspec_edge.__file__).parent

BELOW = {
    "errors": set(),
    "native": {"errors"},
    "llama": {"errors", "native"},
    "decode": {"errors", "native", "llama"},
    "text": {"errors"},
    "files": {"errors"},
    "load": {"errors", "native", "llama", "decode", "files"},
    "engine": {"errors", "llama", "decode", "files", "text", "load"},
    "compat": {"errors", "llama", "decode", "files", "text", "engine"},
    "bench": {"errors", "native", "llama", "decode", "files", "text", "load", "engine"},
    "drafts": {"errors", "llama", "decode", "files", "text", "load", "engine", "bench"},
    "server": {"errors", "llama", "decode", "files", "text", "load", "engine"},
    "cli": {
        "errors",
        "llama",
        "decode",
        "files",
        "text",
        "load",
        "engine",
        "bench",
        "server",
        "drafts",
    },
}
"""What each room may import, itself apart."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(name: str) -> set[str]:
    """Modules of the package that a module imports, at the top or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {i if i in MODULES else node.module for i in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {i for i in found if i in MODULES and i != name}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "engine"


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"dyspec_edge"}))
def test_a_module_imports_only_what_is_below_its_room(name: str) -> None:
    rooms = {room_of(i) for i in imports_of(name) if i != "dyspec_edge"}
    assert rooms - {room_of(name)} <= BELOW[room_of(name)]


def test_no_modules_import_in_a_circle() -> None:
    graph = {name: imports_of(name) for name in MODULES if name != "dyspec_edge"}
    packages = {n for n in graph if MODULES[n].name == "__init__.py"}
    # A package names what its modules hold; they may name the package's other modules.
    TopologicalSorter({n: i - packages - {"dyspec_edge"} for n, i in graph.items()}).prepare()


LONG = {"dyspec_edge.cli.options", "dyspec_edge.text.template"}
"""Lists, which a split would not make easier to read."""


@pytest.mark.parametrize("name", sorted(set(MODULES) - LONG))
def test_a_file_can_be_read_at_one_go(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 300


def test_what_measures_stays_smaller_than_what_it_measures() -> None:
    root = PACKAGE.parent
    files = [*(root / "benchmarks").rglob("*.py"), *(PACKAGE / "bench").rglob("*.py")]
    assert sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files) <= 4500
