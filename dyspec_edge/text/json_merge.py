"""Two JSON schemas as one, and whether two of them exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyspec_edge.errors import OptionError

Schema = Mapping[str, Any]

ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
        *("writeOnly", "discriminator", "nullable", "$schema", "$id", "$comment", "$anchor"),
        *("$defs", "definitions", "$vocabulary"),
    )
)
"""Words that say nothing about what is valid."""

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

_BY_TYPE = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
"""Keywords that say which type is meant where `type` does not."""

_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def merge(a: Schema, b: Schema, at: str) -> Schema:
    """A schema under which is valid what is valid under both.

    Raises:
        OptionError: two values of a keyword that one schema cannot say.
    """
    for schema in (a, b):
        if not isinstance(schema.get("properties", {}), Mapping):
            raise OptionError(f"JSON schema, {at}: `properties` must be an object")
    closed = [s for s in (a, b) if s.get("additionalProperties", True) is not True]
    if closed and a.get("properties", {}).keys() != b.get("properties", {}).keys():
        others = b if closed == [a] else a
        if len(closed) == 2 or others.get("properties"):
            raise _conflict("additionalProperties", at)
    found = dict(a)
    for word, value in b.items():
        if word not in found or found[word] == value:
            found[word] = value
        elif word == "properties":
            own = found[word]
            both = {name: {"allOf": [own[name], value[name]]} for name in own if name in value}
            found[word] = {**own, **value, **both}
        elif word == "required" and isinstance(value, list) and isinstance(found[word], list):
            found[word] = [*found[word], *value]
        elif word == "type":
            found[word] = _common_types(found[word], value, at)
        elif word in _LARGER + _SMALLER and all(_is_number(v) for v in (value, found[word])):
            found[word] = (max if word in _LARGER else min)(found[word], value)
        else:
            raise _conflict(word, at)
    return found


def _common_types(a: Any, b: Any, at: str) -> list[str]:
    first, second = (x if isinstance(x, list) else [x] for x in (a, b))
    found = [name for name in first if name in second]
    for one, other in ((first, second), (second, first)):
        if "integer" in one and "number" in other and "integer" not in found:
            found.append("integer")
    if not found:
        raise _conflict("type", at)
    return found


def _conflict(word: str, at: str) -> OptionError:
    return OptionError(f"JSON schema, {at}: two values of `{word}` that do not go together")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def are_disjoint(a: Any, b: Any) -> bool:
    """Whether it is plain that nothing is valid under both; for `oneOf`."""
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return False
    first, second = _values(a), _values(b)
    if first is not None and second is not None:
        return not _overlap(first, second)
    for values, other in ((first, b), (second, a)):
        if values is not None:
            return not any(is_of_type(value, name) for value in values for name in _types(other))
    # What is written under one, and is of a type that the other allows.
    common = _written(a) & _types(b) | _written(b) & _types(a)
    shared = _names(a) & _names(b)
    told_apart = any(are_disjoint(_property(a, name), _property(b, name)) for name in shared)
    return not common or (common == {"object"} and told_apart)


def implied_types(schema: Schema) -> list[str]:
    """The type that the keywords are about where `type` is not there; empty: none, so any."""
    return [name for name, own in _BY_TYPE.items() if any(word in schema for word in own)][:1]


def _property(schema: Schema, name: str) -> Any:
    properties = schema.get("properties", {})
    return properties.get(name) if isinstance(properties, Mapping) else None


def _names(schema: Schema) -> set[str]:
    found = schema.get("required", [])
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _overlap(first: list[Any], second: list[Any]) -> bool:
    """Whether the lists share a value; 1 and 1.0 are the same, as JSON Schema has it."""
    nested = [x for x in first if isinstance(x, (list, Mapping))]
    others = [y for y in second if isinstance(y, (list, Mapping))]
    plain = {x for x in first if not isinstance(x, (list, Mapping))}
    return any(y in plain for y in second if not isinstance(y, (list, Mapping))) or any(
        x == y for x in nested for y in others
    )


def _values(schema: Schema) -> list[Any] | None:
    """The only values that may be valid, if they are listed."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _types(schema: Schema) -> set[str]:
    """The types that may be valid, "integer" as "number"."""
    found = schema.get("type", list(TYPES))
    names = found if isinstance(found, list) else [found]
    return {"number" if name == "integer" else str(name) for name in names}


def _written(schema: Schema) -> set[str]:
    """Those of them that a grammar lets pass."""
    return _types(schema) if "type" in schema else set(implied_types(schema)) or _types(schema)


def is_of_type(value: Any, name: str) -> bool:
    """Whether a JSON value has the type of this name."""
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float) and name == "integer":
        return value.is_integer()
    kinds: dict[str, Any] = {
        "object": Mapping,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": int,
        "null": type(None),
    }
    return name in kinds and isinstance(value, kinds[name])
