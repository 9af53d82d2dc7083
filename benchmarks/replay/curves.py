"""Machines to replay on: cost curves of target and draft, measured or assumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from dyspec_edge.decode.cost import TARGET_SIZES, CostCurve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN_CURVES = Path(__file__).with_name("curves.toml")


@dataclass(frozen=True, slots=True)
class Machine:
    """What passes cost somewhere.

    Attributes:
        name: short.
        title: for people.
        basis: where the curves come from; what is assumed says so.
        target, draft: seconds by rows.
    """

    name: str
    title: str
    basis: str
    target: CostCurve
    draft: CostCurve


def sure(curve: CostCurve) -> CostCurve:
    """The curve, as if all its sizes had just been measured."""
    return replace(curve, sure=frozenset(TARGET_SIZES))


def own_machines() -> dict[str, Machine]:
    """Those of curves.toml, by name."""
    tables = tomllib.loads(OWN_CURVES.read_text(encoding="utf-8"))
    return {
        name: Machine(
            name,
            table["title"],
            table["basis"],
            _curve(table["target"]).scaled(table["unit"]),
            _curve(table["draft"]).scaled(table["draft_unit"]),
        )
        for name, table in tables.items()
    }


def find_machine(name: str) -> Machine:
    """The machine of that name, or the one that `dyspec-edge calibrate --json` wrote to a file.

    Raises:
        click.UsageError: neither.
    """
    known = own_machines()
    if name in known:
        return known[name]
    path = Path(name)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        padded = bool(document["padded"])
        target = _curve(document["target_seconds"], padded)
        draft = _curve(document["draft_seconds"], padded)
    except OSError as error:
        raise click.UsageError(
            f"--curve {name}: no such curve and no such file; curves: {', '.join(known)}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.UsageError(
            f"--curve {name}: not what `dyspec-edge calibrate --json` writes for a pair ({error!r})"
        ) from error
    return Machine(path.stem, path.stem, f"measured: {path.name}", target, draft)


def _curve(points: Mapping[str, Any], padded: bool = False) -> CostCurve:
    found = sorted((int(n), float(seconds)) for n, seconds in points.items())
    sizes, seconds = zip(*found, strict=True)
    if sizes[0] != 1 or not all(0 < s < 1e6 for s in seconds):
        raise ValueError("a curve needs seconds for 1 row and for more")
    return CostCurve(sizes, seconds, padded)
