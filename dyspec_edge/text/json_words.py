"""What stands behind a keyword of a JSON schema, or why that has no meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyspec_edge.errors import OptionError
from dyspec_edge.text.json_merge import TYPES, Schema

UNSUPPORTED = frozenset(
    (
        *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"),
        *("patternProperties", "propertyNames", "maxProperties", "contains", "minContains"),
        *("maxContains", "unevaluatedItems", "additionalItems", "multipleOf", "uniqueItems"),
        *("pattern", "$dynamicRef", "$recursiveRef"),
    )
)


def refusal(at: str, what: str) -> OptionError:
    """Why a part of a schema cannot be used."""
    return OptionError(f"JSON schema, {at[:200]}: {what}")


def refuse_unsupported(words: Schema, at: str) -> None:
    """Raise an OptionError for a keyword that no grammar here keeps."""
    for word in words:
        harmless = word == "uniqueItems" and words[word] is False
        if word in UNSUPPORTED and not harmless:
            raise refusal(at, f"the keyword `{word}` is not supported")


def text(words: Schema, word: str, at: str) -> str:
    """A text, "" where the keyword is not there; else an OptionError."""
    found = words.get(word, "")
    if not isinstance(found, str):
        raise refusal(at, f"`{word}` must be a text, not {found!r:.40}")
    return found


def schemas(words: Schema, word: str, at: str) -> list[Any]:
    """A list of schemas; else an OptionError."""
    found = words[word]
    if not isinstance(found, list) or not all(isinstance(x, (Mapping, bool)) for x in found):
        raise refusal(at, f"`{word}` must be a list of schemas")
    return found


def type_names(words: Schema, at: str) -> list[str]:
    """The names behind `type`, no integers beside numbers; else an OptionError."""
    found = words["type"]
    names = found if isinstance(found, list) else [found]
    if not names or not all(name in TYPES for name in names):
        raise refusal(at, f"`type` {found!r:.80} is none of {', '.join(TYPES)}")
    return [name for name in names if not (name == "integer" and "number" in names)]


def count(words: Schema, word: str, at: str, default: Any) -> Any:
    """A whole number from 0 on, or the default; else an OptionError."""
    found = words.get(word, default)
    if found is default:
        return default
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise refusal(at, f"`{word}` must be a whole number, not {found!r:.40}")
    return found
