"""JSON schemas as GBNF grammars: whatever such a grammar lets pass is valid under its schema.

A grammar may let less pass than its schema, never more: properties come in the schema's order and
no others beside them, numbers have at most 16 digits.  What a grammar cannot keep is refused by
the name of its keyword.  Annotations, and words that JSON Schema does not know, change nothing.

Source: JSON Schema 2020-12, and `items` as a list, as in draft 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dyspec_edge.errors import OptionError
from dyspec_edge.text import json_numbers
from dyspec_edge.text.json_merge import (
    ANNOTATIONS,
    TYPES,
    Schema,
    are_disjoint,
    implied_types,
    is_of_type,
    merge,
)
from dyspec_edge.text.json_text import FORMATS, RULES, gbnf, literal

UNSUPPORTED = frozenset(
    (
        *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"),
        *("patternProperties", "propertyNames", "maxProperties", "contains", "minContains"),
        *("maxContains", "unevaluatedItems", "additionalItems", "multipleOf", "uniqueItems"),
        *("pattern", "$dynamicRef", "$recursiveRef"),
    )
)

MAX_REPEATS = 1000
"""Of one item: llama.cpp writes a rule for each, up to 2000."""


def to_gbnf(schema: Schema | bool) -> str:
    """A grammar whose texts are JSON documents that are valid under `schema`.

    Raises:
        OptionError: a keyword that a grammar cannot keep, or a value that has no meaning.
    """
    return gbnf(rules(schema, "root"))


def rules(schema: Schema | bool, name: str) -> dict[str, str]:
    """The same as rules: the first has this name, with which the names of all others begin."""
    try:
        return _Grammar(schema, name).rules()
    except RecursionError:
        raise OptionError("JSON schema: it nests or refers to itself too deeply") from None


class _Grammar:
    """The rules of one document, written one after the other."""

    def __init__(self, document: Schema | bool, name: str) -> None:
        self._document, self._name = document, name
        self._rules: dict[str, str] = {}
        self._refs: dict[str, str] = {}

    def rules(self) -> dict[str, str]:
        self._rules[self._name] = ""  # the first rule, under its own name
        self._rules[self._name] = self._value(self._document, "#")
        return self._rules

    def _rule(self, at: str, body: str) -> str:
        """The name of a new rule."""
        slug = "".join(c for c in at if c.isascii() and c.isalnum())[-24:]
        name = f"{self._name}-{len(self._rules)}-{slug}"
        self._rules[name] = body
        return name

    def _value(self, schema: Any, at: str) -> str:
        """The expression of a schema."""
        if schema is True:
            return "value"
        if not isinstance(schema, Mapping):
            raise _refusal(at, "`false` allows nothing" if schema is False else "no schema")
        words = {k: v for k, v in schema.items() if k not in ANNOTATIONS}
        _refuse_unsupported(words, at)
        if "$ref" in words and len(words) == 1:
            return self._reference(words["$ref"], at)
        if "$ref" in words or "allOf" in words:
            return self._value(self._merged(words, at), at)
        for union in ("anyOf", "oneOf"):
            if union in words:
                return self._union(words, union, at)
        if "const" in words or "enum" in words:
            return self._constants(words, at)
        return self._typed(words, at)

    def _reference(self, ref: Any, at: str) -> str:
        if ref not in self._refs:
            target = self._target(ref, at)
            name = self._refs[ref] = self._rule(at, "")
            self._rules[name] = self._value(target, f"{ref}")
        return self._refs[ref]

    def _target(self, ref: Any, at: str) -> Any:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise _refusal(at, f"`$ref` {ref!r} does not point into the schema itself")
        target: Any = self._document
        for part in ref.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            inside = isinstance(target, Mapping) and part in target
            if isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            elif inside:
                target = target[part]
            else:
                raise _refusal(at, f"`$ref` {ref!r} points to nothing")
        return target

    def _merged(self, words: Schema, at: str) -> Schema:
        """Without `$ref` and `allOf`: one schema that says all of it."""
        parts = [self._target(words["$ref"], at)] if "$ref" in words else []
        parts += _schemas(words, "allOf", at) if "allOf" in words else []
        found: Schema = {k: v for k, v in words.items() if k not in ("$ref", "allOf")}
        for part in parts:
            if part is True:
                continue
            if not isinstance(part, Mapping):
                raise _refusal(at, "`allOf` with `false` allows nothing")
            inner = {k: v for k, v in part.items() if k not in ANNOTATIONS}
            nested = "$ref" in inner or "allOf" in inner
            found = merge(found, self._merged(inner, at) if nested else inner, at)
        return found

    def _union(self, words: Schema, union: str, at: str) -> str:
        shared = {k: v for k, v in words.items() if k != union}
        found = list[Schema]()
        for alternative in _schemas(words, union, at):
            if alternative is False:
                continue
            one: Schema = {} if alternative is True else alternative
            if shared:
                one = self._merged({"allOf": [shared, one]}, at)
            found.append(one)
        if not found:
            raise _refusal(at, f"`{union}` allows nothing")
        plain = [self._merged(one, at) for one in found] if union == "oneOf" else []
        if not all(are_disjoint(a, b) for i, a in enumerate(plain) for b in plain[:i]):
            raise _refusal(at, "`oneOf` whose alternatives may both be true; use `anyOf`")
        names = [self._value(one, f"{at}/{union}/{i}") for i, one in enumerate(found)]
        return self._rule(at, " | ".join(names))

    def _constants(self, words: Schema, at: str) -> str:
        values = words.get("enum", [words["const"]] if "const" in words else [])
        if not isinstance(values, list):
            raise _refusal(at, "`enum` must be a list")
        if "const" in words:
            values = [value for value in values if _same(value, words["const"])]
        types = _types(words, at) if "type" in words else TYPES
        values = [value for value in values if any(is_of_type(value, name) for name in types)]
        for word in words.keys() - {"enum", "const", "type"}:
            raise _refusal(at, f"`{word}` beside `enum` or `const` is not supported")
        if not values:
            raise _refusal(at, "`enum` or `const` allows nothing")
        return self._rule(at, " | ".join(literal(value) for value in values))

    def _typed(self, words: Schema, at: str) -> str:
        if "type" in words:
            types = _types(words, at)
        else:
            types = implied_types(words)
        if not types:
            return "value"
        writers: dict[str, Callable[[Schema, str], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "number": json_numbers.number,
            "integer": json_numbers.integer,
        }
        found = [writers[t](words, at) if t in writers else RULES[t] for t in types]
        return found[0] if len(found) == 1 else self._rule(at, " | ".join(found))

    def _string(self, words: Schema, at: str) -> str:
        least, most = _count(words, "minLength", at, 0), _count(words, "maxLength", at, None)
        form = FORMATS.get(words.get("format", ""), "")
        if form and (least or most is not None):
            raise _refusal(at, "`minLength` or `maxLength` beside `format` is not supported")
        if form or (not least and most is None):
            return form or "string"
        return self._rule(at, rf'"\"" char{_repeats(least, most, at, "minLength")} "\""')

    def _array(self, words: Schema, at: str) -> str:
        prefix, items = words.get("prefixItems", []), words.get("items", True)
        if isinstance(items, list):
            prefix, items = items, True
        if not isinstance(prefix, list):
            raise _refusal(at, "`prefixItems` must be a list")
        least, most = _count(words, "minItems", at, 0), _count(words, "maxItems", at, None)
        if most is not None:
            prefix = prefix[:most]
            most -= len(prefix)
        least = max(0, least - len(prefix))
        if items is False or (prefix and "items" not in words and not least):
            most = 0
        repeats = "" if most == 0 and not least else _repeats(least, most, at, "minItems")
        parts = [self._value(one, f"{at}/prefixItems/{i}") for i, one in enumerate(prefix)]
        listed = ' "," ws '.join(parts)
        if repeats:
            item = self._value(items, f"{at}/items")
            if parts:
                listed += f' ("," ws {item}){repeats}'
            else:
                rest = _repeats(max(0, least - 1), None if most is None else most - 1, at, "")
                listed = f'{item} ("," ws {item}){rest}'
                listed = listed if least else f"({listed})?"
        return self._rule(at, f'"[" ws {listed} ws "]"')

    def _object(self, words: Schema, at: str) -> str:
        properties, required = words.get("properties", {}), words.get("required", [])
        others = words.get("additionalProperties", words.get("unevaluatedProperties", True))
        if not isinstance(properties, Mapping):
            raise _refusal(at, "`properties` must be an object")
        if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
            raise _refusal(at, "`required` must be a list of names")
        if _count(words, "minProperties", at, 0) > len(set(required)):
            raise _refusal(at, "`minProperties` is not supported")
        named = {k: v for k, v in properties.items() if v is not False or k in required}
        named |= {name: others for name in required if name not in named}
        if not named:
            if others is False or properties:
                return r'"{" ws "}"'
            pair = f'string ":" ws {self._value(others, at + "/additionalProperties")}'
            return self._rule(at, f'"{{" ws ({pair} ("," ws {pair})*)? ws "}}"')
        pairs = [
            (f'{literal(name)} ":" ws {self._value(one, f"{at}/properties/{name}")}', name)
            for name, one in named.items()
        ]
        wanted = [name in required for _, name in pairs]
        return self._rule(at, f'"{{" ws {self._members(pairs, wanted, at)} ws "}}"')

    def _members(self, pairs: Sequence[tuple[str, str]], wanted: Sequence[bool], at: str) -> str:
        """Pairs in their order, those that are not wanted perhaps left out."""
        tail, heads = "", list[str]()  # tail: what follows when something stands before it
        for (pair, name), must in reversed(list(zip(pairs, wanted, strict=True))):
            own = self._rule(f"{at}/{name}", pair)
            if must:
                heads = []
            heads.insert(0, f"{own} {tail}")
            rest = f'"," ws {own}' if must else f'("," ws {own})?'
            tail = self._rule(at, f"{rest} {tail}")
        starts = "(" + " | ".join(heads) + ")"
        return starts if any(wanted) else starts + "?"


def _refusal(at: str, what: str) -> OptionError:
    return OptionError(f"JSON schema, {at}: {what}")


def _refuse_unsupported(words: Schema, at: str) -> None:
    for word in words:
        harmless = word == "uniqueItems" and words[word] is False
        if word in UNSUPPORTED and not harmless:
            raise _refusal(at, f"the keyword `{word}` is not supported")


def _schemas(words: Schema, word: str, at: str) -> list[Any]:
    found = words[word]
    if not isinstance(found, list) or not all(isinstance(x, (Mapping, bool)) for x in found):
        raise _refusal(at, f"`{word}` must be a list of schemas")
    return found


def _types(words: Schema, at: str) -> list[str]:
    found = words["type"]
    names = found if isinstance(found, list) else [found]
    if not names or not all(name in TYPES for name in names):
        raise _refusal(at, f"`type` {found!r} is none of {', '.join(TYPES)}")
    return [name for name in names if not (name == "integer" and "number" in names)]


def _count(words: Schema, word: str, at: str, default: Any) -> Any:
    found = words.get(word, default)
    if found is default:
        return default
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise _refusal(at, f"`{word}` must be a whole number, not {found!r}")
    return found


def _repeats(least: int, most: int | None, at: str, word: str) -> str:
    if most is not None and most < least:
        raise _refusal(at, f"`{word}` is larger than the most that is allowed")
    if least > MAX_REPEATS:
        raise _refusal(at, f"`{word}` above {MAX_REPEATS} is not supported")
    return f"{{{least},}}" if most is None else f"{{{least},{min(most, MAX_REPEATS)}}}"


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
