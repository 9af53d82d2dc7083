"""Which path is answered by whom, and the answers that say what is here."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response

from dyspec_edge.server import anthropic, native, ollama, responses
from dyspec_edge.server.answers import as_json
from dyspec_edge.server.chat import ChatBody, chat_completions
from dyspec_edge.server.completions import CompletionBody, completions
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.metrics import CONTENT_TYPE
from dyspec_edge.server.openapi import openapi
from dyspec_edge.server.service import Service

Handler = Callable[[Service, HttpRequest], Awaitable[Response]]

PAGE = Path(__file__).parent / "static" / "index.html"
_OWN_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]+)"')


class Endpoint(NamedTuple):
    """A path and who answers there.

    Attributes:
        body: fields of a request.
    """

    method: str
    path: str
    handler: Handler
    body: type[BaseModel] | None = None


async def page(_service: Service, _http: HttpRequest) -> Response:
    """GET /."""
    text, policy = _page()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


async def health(_service: Service, _http: HttpRequest) -> Response:
    """GET /health."""
    return as_json({"status": "ok"})


async def models(service: Service, _http: HttpRequest) -> Response:
    """GET /v1/models."""
    return as_json({"object": "list", "data": [_entry(service)]})


async def model(service: Service, http: HttpRequest) -> Response:
    """GET /v1/models/NAME."""
    name = http.path_params["name"]
    if name != service.name:
        raise ApiError(404, f"there is no model {name[:100]!r} here", code="model_not_found")
    return as_json(_entry(service))


async def description(_service: Service, _http: HttpRequest) -> Response:
    """GET /openapi.json."""
    return as_json(openapi([(one.method, one.path, one.body) for one in ENDPOINTS]))


def _entry(service: Service) -> dict[str, Any]:
    model = service.model
    meta = {
        "n_vocab": model.num_vocab,
        "n_ctx": service.slots.num_ctx,
        "n_ctx_train": model.num_ctx_train,
        "description": model.description,
    }
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "dyspec-edge",
        "meta": meta,
    }


async def embeddings(_service: Service, _http: HttpRequest) -> Response:
    """POST /v1/embeddings: not here."""
    raise ApiError(
        501,
        "this server generates text and makes no embeddings; use another one for these",
        "not_supported_error",
    )


async def metrics(service: Service, _http: HttpRequest) -> Response:
    """GET /metrics."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


@cache
def _page() -> tuple[str, str]:
    """The page and its policy, to which only a header can add that nobody may frame it."""
    text = PAGE.read_text(encoding="utf-8")
    found = _OWN_POLICY.search(text)
    assert found is not None, "the built page has no policy"
    return text, f"{found[1]}; frame-ancestors 'none'"


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/", page),
    Endpoint("GET", "/health", health),
    Endpoint("GET", "/v1/health", health),
    Endpoint("GET", "/v1/models", models),
    Endpoint("GET", "/v1/models/{name:path}", model),
    Endpoint("GET", "/models", models),
    Endpoint("GET", "/openapi.json", description),
    Endpoint("POST", "/v1/chat/completions", chat_completions, ChatBody),
    Endpoint("POST", "/chat/completions", chat_completions, ChatBody),
    Endpoint("POST", "/v1/completions", completions, CompletionBody),
    Endpoint("POST", "/completion", native.completion, native.NativeBody),
    Endpoint("POST", "/completions", native.completion, native.NativeBody),
    Endpoint("POST", "/infill", native.infill, native.InfillBody),
    Endpoint("POST", "/tokenize", native.tokenize, native.TextBody),
    Endpoint("POST", "/detokenize", native.detokenize, native.TokensBody),
    Endpoint("POST", "/apply-template", native.apply_template, native.TemplateBody),
    Endpoint("GET", "/props", native.props),
    Endpoint("GET", "/slots", native.slots),
    Endpoint("GET", "/metrics", metrics),
    Endpoint("POST", "/v1/messages", anthropic.messages, anthropic.MessagesBody),
    Endpoint("POST", "/v1/messages/count_tokens", anthropic.count_tokens, anthropic.CountBody),
    Endpoint("POST", "/v1/responses", responses.responses, responses.ResponsesBody),
    Endpoint("POST", "/responses", responses.responses, responses.ResponsesBody),
    Endpoint("POST", "/api/chat", ollama.chat, ollama.OllamaChatBody),
    Endpoint("POST", "/api/generate", ollama.generate, ollama.OllamaGenerateBody),
    Endpoint("GET", "/api/tags", ollama.tags),
    Endpoint("GET", "/api/version", ollama.version),
    Endpoint("POST", "/v1/embeddings", embeddings),
    Endpoint("POST", "/embeddings", embeddings),
)
