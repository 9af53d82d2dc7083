"""Documents of `dyspec-edge bench` against the schemas that the package carries."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema

from dyspec_edge import bench


def validate(document: object, name: str) -> None:
    """Fail unless `document` is a "line" or a "report"."""
    _validator(name).validate(document)


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    path = Path(bench.__file__).with_name(f"{name}.schema.json")
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
