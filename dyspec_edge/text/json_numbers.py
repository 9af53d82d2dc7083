"""Numbers between bounds, as GBNF: digit by digit."""

from __future__ import annotations

import math
from typing import Any

from dyspec_edge.errors import OptionError
from dyspec_edge.text.json_merge import Schema

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

LARGEST = 10**16 - 1


def integer(words: Schema, at: str) -> str:
    """An expression for the integers that `words` allows, of at most 16 digits where it is open.

    Raises:
        OptionError: there are none, or a bound is no number.
    """
    if not any(word in words for word in BOUNDS):
        return "integer"
    low, high = _bounds(words, at)
    found = _signed("", low, high)
    if not found:
        raise OptionError(f"JSON schema, {at}: `minimum` and `maximum` allow no integer")
    return "(" + " | ".join(found) + ")"


def number(words: Schema, at: str) -> str:
    """An expression for numbers that `words` allows: whole ones, and fractions between them.

    Raises:
        OptionError: no whole number lies between the bounds, or a bound is no number.
    """
    if not any(word in words for word in BOUNDS):
        return "number"
    low, high = _bounds(words, at)
    found = _signed("", low, high)
    if not found:
        raise OptionError(
            f"JSON schema, {at}: `minimum` and `maximum` with no whole number between them "
            "are not supported"
        )
    positive = _naturals(max(low, 0), high - 1)
    negative = _naturals(max(-high, 0), -low - 1)
    found += [f"{positive} fraction"] if positive else []
    found += [f'"-" {negative} fraction'] if negative else []
    return "(" + " | ".join(found) + ")"


def _bounds(words: Schema, at: str) -> tuple[int, int]:
    """The least and the largest integer that is allowed."""

    def bound(word: str, otherwise: float) -> Any:
        found = words.get(word, otherwise)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or found != found:  # NaN
            raise OptionError(f"JSON schema, {at}: `{word}` must be a number, not {found!r:.40}")
        return max(-LARGEST - 1, min(LARGEST + 1, found))

    low = max(math.ceil(bound("minimum", -LARGEST)), -LARGEST)
    high = min(math.floor(bound("maximum", LARGEST)), LARGEST)
    low = max(low, math.floor(bound("exclusiveMinimum", -LARGEST - 1)) + 1)
    return low, min(high, math.ceil(bound("exclusiveMaximum", LARGEST + 1)) - 1)


def _signed(suffix: str, low: int, high: int) -> list[str]:
    positive, negative = _naturals(max(low, 0), high), _naturals(max(-high, 1), -low)
    found = [f"{positive}{suffix}"] if positive else []
    return found + ([f'"-" {negative}{suffix}'] if negative else [])


def _naturals(low: int, high: int) -> str:
    """low..high without leading zeros, or "" if there is nothing between."""
    found = []
    for length in range(len(str(max(low, 0))), len(str(max(high, 0))) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        last = min(high, 10**length - 1)
        if first <= last:
            found.append(_digits(str(first), str(last)))
    return "(" + " | ".join(found) + ")" if found else ""


def _digits(low: str, high: str) -> str:
    """Strings of digits of one length from `low` to `high`."""
    rest = len(low) - 1
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{len(low)}}}"
    if not rest:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" {_digits(low[1:], high[1:])}'
    found = [f'"{low[0]}" {_digits(low[1:], "9" * rest)}']
    if int(low[0]) + 1 < int(high[0]):
        found.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}] [0-9]{{{rest}}}")
    found.append(f'"{high[0]}" {_digits("0" * rest, high[1:])}')
    return "(" + " | ".join(found) + ")"
