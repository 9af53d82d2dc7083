"""The search for a program's best settings: one axis after another, each tried over its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Value = int | float | str
Settings = Mapping[str, Value]
"""A value for every axis, by the axis' name."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting of a program.

    Attributes:
        name: what the tables call it.
        flags: the options that carry it; each gets the same value.
        values: what is tried; the first is where the search starts.
    """

    name: str
    flags: tuple[str, ...]
    values: tuple[Value, ...]


def words(axes: Sequence[Axis], settings: Settings) -> list[str]:
    """The command line's share; an axis that is listed twice is said once."""
    flags = [(flag, axis.name) for axis in dict.fromkeys(axes) for flag in axis.flags]
    return [word for flag, name in flags for word in (flag, str(settings[name]))]


def search(axes: Sequence[Axis], speed: Callable[[Settings], float]) -> Settings:
    """The fastest settings that turn up when the axes are gone through in order.

    While one axis is tried, the others keep the best value so far.  An axis that is listed twice is
    tried again with what the others have become.

    Args:
        speed: of given settings, larger is better; asked `num_trials(axes)` times.  Settings come
            up again where an axis meets the best value so far: let it remember.
    """
    best: dict[str, Value] = {}
    for axis in axes:
        best.setdefault(axis.name, axis.values[0])
    for axis in axes:
        best = max(({**best, axis.name: value} for value in axis.values), key=speed)
    return best


def num_trials(axes: Sequence[Axis]) -> int:
    """How often `search` asks for a speed."""
    return sum(len(axis.values) for axis in axes)


def describe(settings: Settings) -> str:
    """For a table."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
