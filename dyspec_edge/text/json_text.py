"""Pieces of GBNF for JSON: what every schema's grammar is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from dyspec_edge.errors import OptionError

_CHARACTER = r'[^"\\\x00-\x1F\x7F\uD800-\uDFFF\U00110000-\U001FFFFF]'
_UNIT = r'"u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2})'  # no half pairs

RULES = {
    "ws": r'("" | " " | "\n" [ \t]{0,20})',
    "char": rf'{_CHARACTER} | "\\" (["\\/bfnrt] | {_UNIT})',
    "string": r'"\"" char* "\""',
    "whole": '"0" | [1-9] [0-9]{0,15}',
    "fraction": '"." [0-9]{1,16}',
    "integer": '"-"? whole',
    "number": '"-"? whole fraction? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '("true" | "false")',
    "null": '"null"',
    "object": r'"{" ws (string ":" ws value ("," ws string ":" ws value)*)? ws "}"',
    "array": '"[" ws (value ("," ws value)*)? ws "]"',
    "value": "object | array | string | number | boolean | null",
}
"""Whitespace is bounded, or a model might write nothing else."""

_DAY = '(("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
_DATE = (
    f'[12] [0-9]{{3}} "-" {_DAY} | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_CLOCK = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]'
_TIME = f'{_CLOCK} ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_CLOCK})'
_HEX = "[0-9a-fA-F]"

FORMATS = {
    name: rf'"\"" {body} "\""'
    for name, body in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f'{_DATE} "T" {_TIME}',
        "uuid": ' "-" '.join(f"{_HEX}{{{n}}}" for n in (8, 4, 4, 4, 12)),
    }.items()
}
"""Those that are kept; others are annotations."""

FEW = 8
"""Alternatives that may stand as they are."""

DEEPEST = 100
"""Of brackets: llama.cpp's parser has an end, and so has Python's stack."""


def gbnf(rules: Mapping[str, str]) -> str:
    """The text of a grammar of these rules and `RULES`."""
    return "".join(f"{name} ::= {body}\n" for name, body in {**RULES, **rules}.items())


def literal(value: Any) -> str:
    """The JSON text of a value as a GBNF literal; errors as of `json_text`."""
    return quoted(json_text(value))


def json_text(value: Any) -> str:
    """The JSON text of a value, characters as they are.

    Raises:
        OptionError: JSON has no text for it.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise OptionError(f"JSON schema: {value!r:.80} is no JSON value") from None
    # Half a surrogate pair has no UTF-8; JSON spells it out.
    return "".join(rf"\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)


def one_of(texts: Iterable[str], depth: int = 0) -> str:
    """An expression for one of these texts; where they are many, what they share comes first.

    llama.cpp tries each alternative that is open with every token of the vocabulary.

    Args:
        depth: brackets around it.
    """
    found = list(dict.fromkeys(texts))
    if len(found) <= FEW or depth == DEEPEST:
        return " | ".join(quoted(text) for text in found)
    groups = dict[str, list[str]]()
    for text in found:
        groups.setdefault(text[:1], []).append(text)
    parts = list[str]()
    for group in groups.values():
        pairs = zip(min(group), max(group), strict=False)
        shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        rests = one_of((text[len(shared) :] for text in group), depth + 1)
        parts.append(quoted(shared) if len(group) == 1 else f"{quoted(shared)} ({rests})")
    return " | ".join(parts)


def quoted(text: str) -> str:
    """A text as a GBNF literal."""
    return '"' + text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
