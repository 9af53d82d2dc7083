"""Requests that schemathesis makes up from the OpenAPI document: none is a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyspec_edge.server.openapi import openapi
from dyspec_edge.server.routes import ENDPOINTS
from tests.server.conftest import TinyServer

DOCUMENT = openapi([(one.method, one.path, one.body) for one in ENDPOINTS])
API = schemathesis.openapi.from_dict(DOCUMENT)
QUICK = settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
FEW = {"max_tokens": 4, "n_predict": 4, "max_completion_tokens": 4, "max_output_tokens": 4}


def send(server: TinyServer, method: str, path: str, body: Any) -> httpx.Response:
    """The answer; a reply is no longer than a few tokens."""
    if isinstance(body, dict):
        wanted = {name: few for name, few in FEW.items() if isinstance(body.get(name), int)}
        body = {**body, **(wanted or FEW)}
        if isinstance(body.get("options"), dict):
            body = {**body, "options": {**body["options"], "num_predict": 4}}
        elif path.startswith("/api/"):
            body = {**body, "options": {"num_predict": 4}}
    data = json.dumps(body).encode() if body is not None else None
    return server.http.request(method, path, content=data)


def check(answer: httpx.Response) -> None:
    assert answer.status_code not in (500, 502), answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert isinstance(error["message"], str)
        assert error["message"]
        assert "\n" not in error["message"]
        assert isinstance(error["type"], str)


@pytest.mark.long
@API.parametrize()
@settings(QUICK, max_examples=40)
def test_what_the_document_allows_is_no_mistake_of_ours(server: TinyServer, case: Any) -> None:
    body = case.body if isinstance(case.body, (dict, list)) else None
    check(send(server, case.method, case.formatted_path, body))


WORDS = st.sampled_from(["user", "assistant", "system", "tool", "text", "function", "the cat", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=6), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("one", [e for e in ENDPOINTS if e.body], ids=lambda e: e.path)
@given(data=st.data())
@QUICK
def test_nor_is_what_it_forbids(server: TinyServer, one: Any, data: st.DataObject) -> None:
    names = list(one.body.model_fields)
    fields = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
    message = {"role": "user", "content": "the cat"}
    needed = {"messages": [message], "input": "the cat", "prompt": "the cat"}
    body = {name: value for name, value in needed.items() if name in names}
    check(send(server, "POST", one.path, {**body, **fields}))
