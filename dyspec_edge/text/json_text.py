"""Pieces of GBNF for JSON: what every schema's grammar is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def gbnf(rules: Mapping[str, str]) -> str:
    """The text of a grammar of these rules and `RULES`."""
    return "".join(f"{name} ::= {body}\n" for name, body in {**RULES, **rules}.items())


def literal(value: Any) -> str:
    """The JSON text of a value as a GBNF literal.

    Raises:
        OptionError: JSON has no text for it.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise OptionError(f"JSON schema: {value!r:.80} is no JSON value") from None
    # Half a surrogate pair has no UTF-8; JSON spells it out.
    text = "".join(rf"\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)
    return quoted(text)


def quoted(text: str) -> str:
    """A text as a GBNF literal."""
    return '"' + text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
