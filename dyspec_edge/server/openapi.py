"""The server's interface as an OpenAPI document, from the fields that bodies have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import dyspec_edge

REF = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}


def openapi(endpoints: Sequence[tuple[str, str, type[BaseModel] | None]]) -> dict[str, Any]:
    """The document.

    Args:
        endpoints: method, path, and the fields of a body.
    """
    bodies = [(body, "validation") for _, _, body in endpoints if body is not None]
    refs, schemas = models_json_schema(bodies, ref_template=REF)  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for method, path, body in endpoints:
        shown = path.replace(":path", "")
        operation: dict[str, Any] = {"responses": _responses()}
        if body is not None:
            content = {"application/json": {"schema": refs[body, "validation"]}}
            operation["requestBody"] = {"required": True, "content": content}
        if "{" in path:
            name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        paths.setdefault(shown, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "dyspec-edge", "version": dyspec_edge.__version__},
        "paths": paths,
        "components": {"schemas": {**schemas.get("$defs", {}), "Error": ERROR}},
    }


def _responses() -> dict[str, Any]:
    error = {"schema": {"$ref": REF.format(model="Error")}}
    return {
        "200": {"description": "the answer, or a stream of events"},
        "default": {"description": "why not", "content": {"application/json": error}},
    }
