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
from dyspec_edge.text.json_text import FORMATS, RULES, gbnf, json_text, literal, one_of
from dyspec_edge.text.json_words import (
    count,
    refusal,
    refuse_unsupported,
    schemas,
    text,
    type_names,
)

MAX_REPEATS = 1000
"""Of one item: llama.cpp writes a rule for each, up to 2000."""

MAX_PARTS = 20_000
"""Of a schema, and of what it unfolds to, ten repeats as one: a grammar never takes minutes."""


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
        self._num_parts = 0
        self._spend(_size(document))
        self._num_parts = 0

    def rules(self) -> dict[str, str]:
        self._rules[self._name] = ""  # the first rule, under its own name
        self._rules[self._name] = self._value(self._document, "#")
        return self._rules

    def _spend(self, parts: int) -> None:
        self._num_parts += parts
        if self._num_parts > MAX_PARTS:
            raise OptionError(
                f"JSON schema: it is too large, or unfolds to more than {MAX_PARTS} parts"
            )

    def _rule(self, at: str, body: str) -> str:
        """The name of a new rule."""
        slug = "".join(c for c in at[-100:] if c.isascii() and c.isalnum())[-24:]
        name = f"{self._name}-{len(self._rules)}-{slug}"
        self._rules[name] = body
        return name

    def _value(self, schema: Any, at: str) -> str:
        """The expression of a schema."""
        self._spend(1)
        if schema is True:
            return "value"
        if not isinstance(schema, Mapping):
            raise refusal(at, "`false` allows nothing" if schema is False else "no schema")
        words = {k: v for k, v in schema.items() if k not in ANNOTATIONS}
        refuse_unsupported(words, at)
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
        if not isinstance(ref, str) or ref not in self._refs:
            target = self._target(ref, at)
            name = self._refs[ref] = self._rule(at, "")
            self._rules[name] = self._value(target, f"{ref}")
        return self._refs[ref]

    def _target(self, ref: Any, at: str) -> Any:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise refusal(at, f"`$ref` {ref!r} does not point into the schema itself")
        target: Any = self._document
        for part in ref.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            inside = isinstance(target, Mapping) and part in target
            if isinstance(target, list) and part in map(str, range(len(target))):
                target = target[int(part)]
            elif inside:
                target = target[part]
            else:
                raise refusal(at, f"`$ref` {ref!r} points to nothing")
        return target

    def _merged(self, words: Schema, at: str) -> Schema:
        """Without `$ref` and `allOf`: one schema that says all of it."""
        parts = [self._target(words["$ref"], at)] if "$ref" in words else []
        parts += schemas(words, "allOf", at) if "allOf" in words else []
        found: Schema = {k: v for k, v in words.items() if k not in ("$ref", "allOf")}
        for part in parts:
            if part is True:
                continue
            if not isinstance(part, Mapping):
                raise refusal(at, "`allOf` with `false` allows nothing")
            inner = {k: v for k, v in part.items() if k not in ANNOTATIONS}
            nested = "$ref" in inner or "allOf" in inner
            found = merge(found, self._merged(inner, at) if nested else inner, at)
            self._spend(1 + len(found.get("properties", ())))
        return found

    def _union(self, words: Schema, union: str, at: str) -> str:
        shared = {k: v for k, v in words.items() if k != union}
        found = list[Schema]()
        for alternative in schemas(words, union, at):
            if alternative is False:
                continue
            one: Schema = {} if alternative is True else alternative
            if shared:
                one = self._merged({"allOf": [shared, one]}, at)
            found.append(one)
        if not found:
            raise refusal(at, f"`{union}` allows nothing")
        plain = [self._merged(one, at) for one in found] if union == "oneOf" else []
        self._spend(len(plain) ** 2 // 2)
        if not all(are_disjoint(a, b) for i, a in enumerate(plain) for b in plain[:i]):
            raise refusal(at, "`oneOf` whose alternatives may both be true; use `anyOf`")
        names = [self._value(one, f"{at}/{union}/{i}") for i, one in enumerate(found)]
        return self._rule(at, " | ".join(names))

    def _constants(self, words: Schema, at: str) -> str:
        values = words.get("enum", [words["const"]] if "const" in words else [])
        if not isinstance(values, list):
            raise refusal(at, "`enum` must be a list")
        if "const" in words:
            values = [value for value in values if _same(value, words["const"])]
        types = type_names(words, at) if "type" in words else TYPES
        values = [value for value in values if any(is_of_type(value, name) for name in types)]
        for word in words.keys() - {"enum", "const", "type"}:
            raise refusal(at, f"`{word}` beside `enum` or `const` is not supported")
        if not values:
            raise refusal(at, "`enum` or `const` allows nothing")
        return self._rule(at, one_of(json_text(value) for value in values))

    def _typed(self, words: Schema, at: str) -> str:
        if "type" in words:
            types = type_names(words, at)
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
        least, most = count(words, "minLength", at, 0), count(words, "maxLength", at, None)
        form = FORMATS.get(text(words, "format", at), "")
        if form and (least or most is not None):
            raise refusal(at, "`minLength` or `maxLength` beside `format` is not supported")
        if form or (not least and most is None):
            return form or "string"
        return self._rule(at, rf'"\"" char{self._repeats(least, most, at, "minLength")} "\""')

    def _array(self, words: Schema, at: str) -> str:
        prefix, items = words.get("prefixItems", []), words.get("items", True)
        if isinstance(items, list):
            prefix, items = items, True
        if not isinstance(prefix, list):
            raise refusal(at, "`prefixItems` must be a list")
        least, most = count(words, "minItems", at, 0), count(words, "maxItems", at, None)
        if most is not None:
            prefix = prefix[:most]
            most -= len(prefix)
        least = max(0, least - len(prefix))
        if items is False or (prefix and "items" not in words and not least):
            most = 0
        repeats = "" if most == 0 and not least else self._repeats(least, most, at, "minItems")
        parts = [self._value(one, f"{at}/prefixItems/{i}") for i, one in enumerate(prefix)]
        listed = ' "," ws '.join(parts)
        if repeats:
            item = self._value(items, f"{at}/items")
            if parts:
                listed += f' ("," ws {item}){repeats}'
            else:
                rest = self._repeats(max(0, least - 1), None if most is None else most - 1, at, "")
                listed = f'{item} ("," ws {item}){rest}'
                listed = listed if least else f"({listed})?"
        return self._rule(at, f'"[" ws {listed} ws "]"')

    def _object(self, words: Schema, at: str) -> str:
        properties, required = words.get("properties", {}), words.get("required", [])
        others = words.get("additionalProperties", words.get("unevaluatedProperties", True))
        if not isinstance(properties, Mapping):
            raise refusal(at, "`properties` must be an object")
        if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
            raise refusal(at, "`required` must be a list of names")
        if count(words, "minProperties", at, 0) > len(set(required)):
            raise refusal(at, "`minProperties` is not supported")
        must = frozenset(required)
        named = {k: v for k, v in properties.items() if v is not False or k in must}
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
        wanted = [name in must for _, name in pairs]
        self._spend(wanted.count(False) ** 2 // 64)  # llama.cpp tries all that may come next
        return self._rule(at, f'"{{" ws {self._members(pairs, wanted, at)} ws "}}"')

    def _repeats(self, least: int, most: int | None, at: str, word: str) -> str:
        if most is not None and most < least:
            raise refusal(at, f"`{word}` is larger than the most that is allowed")
        if least > MAX_REPEATS:
            raise refusal(at, f"`{word}` above {MAX_REPEATS} is not supported")
        written = least if most is None else min(most, MAX_REPEATS)
        self._spend(written // 10)
        return f"{{{least},}}" if most is None else f"{{{least},{written}}}"

    def _members(self, pairs: Sequence[tuple[str, str]], wanted: Sequence[bool], at: str) -> str:
        """Pairs in their order, those that are not wanted perhaps left out."""
        more, tail, may_end = "", "", True  # more: what follows a comma; tail: what follows a pair
        for (pair, name), must in reversed(list(zip(pairs, wanted, strict=True))):
            own = f"{self._rule(f'{at}/{name}', pair)} {tail}"
            more = self._rule(at, own if must or not more else f"{own} | {more}")
            may_end = may_end and not must
            tail = f'("," ws {more})?' if may_end else f'"," ws {more}'
        return f"{more}?" if may_end else more


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _size(document: Any) -> int:
    """Values in a document, at most about so many as are too many."""
    found, rest = 0, [document]
    while rest and found <= MAX_PARTS:
        one = rest.pop()
        found += 1
        if isinstance(one, (Mapping, list)):
            rest += one.values() if isinstance(one, Mapping) else one
    return found
