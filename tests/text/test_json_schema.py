"""Whatever a schema's grammar lets pass is valid under the schema; what it cannot keep is named."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dyspec_edge.decode.grammar import Grammar
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import Model
from dyspec_edge.text.json_numbers import integer, number
from dyspec_edge.text.json_schema import to_gbnf


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model(tiny_target, vocab_only=True) as found:
        yield found


def fits(model: Model, gbnf: str, text: str) -> bool:
    """Whether the grammar lets a whole text pass."""
    # byte by byte: the tokens of a tiny model's alphabet
    tokens = [3 + byte for byte in text.encode()] + [model.eos]
    grammar = Grammar(model, gbnf)
    found = grammar.num_following(tokens) == len(tokens)
    grammar.close()
    return found


PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}, "maxItems": 2},
        "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "pets"],
    "additionalProperties": False,
    "$defs": {"pet": {"enum": ["cat", "dog", 3]}},
}
SHAPES = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "a"}, "x": {"type": "number"}},
            "required": ["kind"],
        },
        {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        {"type": "null"},
    ]
}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            PERSON,
            [
                '{"name": "Bob", "pets": []}',
                '{"name": "Bob", "age": 120, "pets": ["cat", 3]}',
                '{\n  "name": "\\u00e4",\n  "pets": ["dog"],\n'
                '  "parent": {"name":"A","pets":[],"parent":null}\n}',
            ],
            [
                '{"name": "", "pets": []}',
                '{"name": "Robert", "pets": []}',
                '{"pets": []}',
                '{"name": "Bob", "age": 121, "pets": []}',
                '{"name": "Bob", "pets": ["cat", "cat", "cat"]}',
                '{"name": "Bob", "pets": [],}',
                '{"name": "Bob", "pets": [], "more": 1}',
            ],
        ),
        (True, ['{"a": [1, true, null, "x"]}', "-0.5e+3"], ["01", "{a: 1}", '"a\n"', '"\\ud83d"']),
        ({"type": "object"}, ["{}", '{"a": {"b": []}}'], ["[]", "1"]),
        ({"type": ["string", "null"], "maxLength": 1}, ['""', '"a"', "null"], ['"ab"', "1"]),
        ({"enum": ['a"b', "c\\d\n", "é"]}, ['"a\\"b"', '"c\\\\d\\n"', '"é"'], ['"a"']),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
            ["{}", '{"a":1}', '{"b":2}', '{"a":1,"c":3}', '{"a":1,"b":2,"c":3}'],
            ['{,"b":2}', '{"b":2,"a":1}', '{"a":1 "c":3}'],
        ),
        (
            {"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2},
            ["[1, null]", "[1,null,null]"],
            ["[1]", "[null]", "[1, 2]"],
        ),
        ({"items": {"const": 0}, "minItems": 2, "maxItems": 3}, ["[0,0]", "[0, 0, 0]"], ["[0]"]),
        ({"items": False}, ["[]"], ["[1]"]),
        (SHAPES, ['{"kind": "a", "x": 2.5}', '{"kind":"b"}', "null"], ['{"kind":"c"}', "{}"]),
        (
            {"allOf": [{"$ref": "#/$defs/n"}], "maximum": 3, "$defs": {"n": {"type": "integer"}}},
            ["3", "-17"],
            ["4", "2.5"],
        ),
        (
            {"type": "object", "required": ["x"], "additionalProperties": {"type": "boolean"}},
            ['{"x": true}'],
            ["{}", '{"x": 1}'],
        ),
        ({"additionalProperties": {"const": 1}}, ["{}", '{"a":1, "b":1}'], ['{"a":2}']),
        ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-02-30"', '"24-1-1"']),
        ({"type": "string", "format": "email"}, ['"a@b"'], ["1"]),
        ({"exclusiveMinimum": 0, "maximum": 2, "type": "number"}, ["1", "1.9", "2"], ["0", "2.1"]),
    ],
)
def test_what_passes(model: Model, schema: Any, valid: list[str], invalid: list[str]) -> None:
    gbnf = to_gbnf(schema)
    for text in valid:
        jsonschema.validate(json.loads(text), schema)
        assert fits(model, gbnf, text), text
    for text in invalid:
        assert not fits(model, gbnf, text), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {}}, "`not`"),
        ({"properties": {"a": {"type": "string", "pattern": "^a$"}}}, r"/a: .*`pattern`"),
        ({"type": "array", "uniqueItems": True}, "`uniqueItems`"),
        ({"type": "number", "multipleOf": 2}, "`multipleOf`"),
        ({"if": {}, "then": {}}, "`if`"),
        ({"type": "strnig"}, "`type` 'strnig'"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "`oneOf`"),
        (
            {"oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": "null"}]},
            "`oneOf`",  # null is valid under the first as well
        ),
        ({"$ref": "https://example.com/x"}, "`\\$ref`"),
        ({"$ref": "#/$defs/x"}, "points to nothing"),
        ({"properties": 5}, "`properties`"),
        ({"required": "a"}, "`required`"),
        ({"type": "string", "minLength": -1}, "`minLength`"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "`minLength`"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "`minimum`"),
        ({"type": "number", "minimum": 0.2, "maximum": 0.8}, "`minimum`"),
        ({"enum": []}, "allows nothing"),
        ({"enum": 3}, "`enum`"),
        ({"enum": [math.nan]}, "no JSON value"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "`type`"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"anyOf": 1}, "`anyOf`"),
        (False, "`false`"),
        ([], "no schema"),
        ({"properties": {"a": []}}, "no schema"),
        ({"type": "string", "format": ["date"]}, "`format` must be a text"),
        ({"$ref": "#/prefixItems/" + 5000 * "1", "prefixItems": []}, "points to nothing"),
        ({"$ref": ["#"]}, "`\\$ref`"),
        ({"allOf": [{"properties": []}, {"additionalProperties": False}]}, "`properties`"),
        ({"oneOf": [{"enum": 5}, {"enum": [1]}]}, "`oneOf`"),
        ({"oneOf": [{"required": [[]]}, {"required": [{}]}]}, "`oneOf`"),
        ({"oneOf": [{"enum": [1, [2]]}, {"enum": [[2.0]]}]}, "`oneOf`"),
    ],
)
def test_what_a_grammar_cannot_keep_is_named(schema: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        to_gbnf(schema)


def test_each_of_many_values_passes_and_nothing_else(model: Model) -> None:
    rng = random.Random(2)
    for pieces in ("ab", ["é", "e\u0301", '"', "\\", "\n"], range(10)):
        values: list[Any] = []
        for _ in range(300):
            text = "".join(str(rng.choice(pieces)) for _ in range(rng.randrange(1, 9)))
            values.append(int(text) if isinstance(pieces, range) else text)
        gbnf = to_gbnf({"enum": values})
        for value in values[:60]:
            text = json.dumps(value, ensure_ascii=False)
            for other in (text, text[:-1], text + text[-1], text[:-2] + text[-1]):
                is_one = any(other == json.dumps(one, ensure_ascii=False) for one in values)
                assert fits(model, gbnf, other) == is_one, other


def test_few_of_many_values_are_open_at_a_time(model: Model) -> None:
    """Each has a bracket of its own inside the one before it, too: the parser takes so many."""
    gbnf = to_gbnf(
        {"enum": [200 * "a" + str(i) for i in range(5000)] + ["a" * i for i in range(80)]}
    )
    assert fits(model, gbnf, f'"{200 * "a"}4999"')
    most, rest = 0, next(line for line in gbnf.splitlines() if '"\\"' in line and "root" in line)
    while found := re.findall(r"\([^()]*\)", rest):
        most = max(most, *(one.count(" | ") for one in found))
        rest = re.sub(r"\([^()]*\)", "", rest)
    assert most < 20


def test_deep_nesting_is_refused() -> None:
    schema: Any = {"type": "null"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(OptionError, match="deeply"):
        to_gbnf(schema)


def twice(depth: int) -> Any:
    """A schema that stands twice within itself, and so on."""
    part = {"$ref": f"#/$defs/{depth - 1}"} if depth else {"type": "object"}
    return {"type": "object", "properties": {name: {"allOf": [part, {}]} for name in "ab"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/40", "$defs": {str(depth): twice(depth) for depth in range(41)}},
        {"allOf": [{"properties": {str(i): True}} for i in range(3000)]},
        {"oneOf": [{"const": i} for i in range(3000)]},
        {"enum": list(range(100_000))},
        {"prefixItems": 300 * [{"type": "string", "maxLength": 1000}]},
        {"properties": {str(i): True for i in range(2000)}},
    ],
    ids=["unfolds", "merged", "compared", "long", "repeats", "optional"],
)
def test_what_would_take_minutes_is_refused_at_once(schema: Any) -> None:
    started = time.process_time()
    with pytest.raises(OptionError, match="too large, or unfolds to more than"):
        to_gbnf(schema)
    assert time.process_time() - started < 2


JUNK: Any = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**400,
    "",
    "#",
    "string",
    [],
    [[]],
    {},
    [{}],
    {"a": []},
]
WORDS = [
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "$ref"),
    *("prefixItems", "minItems", "maxItems", "minLength", "maxLength", "format", "minimum"),
    *("maximum", "exclusiveMinimum", "anyOf", "oneOf", "allOf", "minProperties"),
]


def junk(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(JUNK)
    schema = {rng.choice(WORDS): junk(rng, depth - 1) for _ in range(3)}
    return rng.choice([schema, schema, [schema, junk(rng, depth - 1)], {"a": schema}])


def test_nothing_that_json_can_say_is_a_mistake_of_ours() -> None:
    rng, written = random.Random(0), 0
    for _ in range(20_000):
        with suppress(OptionError):
            written += bool(to_gbnf(junk(rng, 4)))
    assert written > 500


def test_integers_between_bounds_are_those_and_no_others(model: Model) -> None:
    rng = random.Random(0)
    for _ in range(60):
        low, high = sorted(rng.randrange(-(10 ** rng.randrange(1, 5)), 2000) for _ in range(2))
        words = {"minimum": low, "maximum": high}
        gbnf = f"root ::= {integer(words, '#')}\n"
        near = {low - 1, low, low + 1, high - 1, high, high + 1, 0, -1, 9, 10, 99, 100, -100}
        for value in near | {rng.randrange(-9999, 9999) for _ in range(8)}:
            assert fits(model, gbnf, str(value)) == (low <= value <= high), (words, value)


def test_numbers_between_bounds_are_within_them(model: Model) -> None:
    rng = random.Random(1)
    for _ in range(60):
        low, high = sorted(round(rng.uniform(-30, 30), 1) for _ in range(2))
        if math.ceil(low) > math.floor(high):
            continue
        words = {"minimum": low, "exclusiveMaximum": math.floor(high) + 1}
        gbnf = f'root ::= {number(words, "#")}\nfraction ::= "." [0-9]+\n'
        for _ in range(20):
            value = round(rng.uniform(-32, 32), rng.randrange(3))
            inside = math.ceil(low) <= value <= math.floor(high)
            text = str(int(value)) if value.is_integer() else str(value)
            if inside or not low <= value < math.floor(high) + 1:
                assert fits(model, gbnf, text) == inside, (words, text)
