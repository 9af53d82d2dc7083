"""The web application: which path is answered by whom."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dyspec_edge.errors import DyspecError
from dyspec_edge.server import anthropic, native, ollama, responses
from dyspec_edge.server.answers import as_json, refusal
from dyspec_edge.server.chat import chat_completions
from dyspec_edge.server.completions import completions
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.guard import Guard, Rules
from dyspec_edge.server.log import AccessLog
from dyspec_edge.server.metrics import CONTENT_TYPE
from dyspec_edge.server.service import Service

Handler = Callable[[Service, HttpRequest], Awaitable[Response]]

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "static" / "index.html"
_OWN_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]+)"')


async def page(_service: Service, _http: HttpRequest) -> Response:
    """GET /."""
    text, policy = _page()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


async def health(_service: Service, _http: HttpRequest) -> Response:
    """GET /health."""
    return as_json({"status": "ok"})


async def models(service: Service, _http: HttpRequest) -> Response:
    """GET /v1/models."""
    model = service.model
    meta = {
        "n_vocab": model.num_vocab,
        "n_ctx": service.slots.num_ctx,
        "n_ctx_train": model.num_ctx_train,
        "description": model.description,
    }
    entry = {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "dyspec-edge",
        "meta": meta,
    }
    return as_json({"object": "list", "data": [entry]})


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


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", page),
    ("GET", "/health", health),
    ("GET", "/v1/health", health),
    ("GET", "/v1/models", models),
    ("GET", "/models", models),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/completion", native.completion),
    ("POST", "/completions", native.completion),
    ("POST", "/infill", native.infill),
    ("POST", "/tokenize", native.tokenize),
    ("POST", "/detokenize", native.detokenize),
    ("POST", "/apply-template", native.apply_template),
    ("GET", "/props", native.props),
    ("GET", "/slots", native.slots),
    ("GET", "/metrics", metrics),
    ("POST", "/v1/messages", anthropic.messages),
    ("POST", "/v1/messages/count_tokens", anthropic.count_tokens),
    ("POST", "/v1/responses", responses.responses),
    ("POST", "/responses", responses.responses),
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/version", ollama.version),
    ("POST", "/v1/embeddings", embeddings),
    ("POST", "/embeddings", embeddings),
)


def create_app(service: Service, rules: Rules) -> ASGIApp:
    """The application, with what stands before it."""
    routes = [Route(path, _endpoint(service, handler), methods=[m]) for m, path, handler in ROUTES]
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: _http_error, Exception: _mistake}
    )
    return AccessLog(Guard(app, rules))


def _endpoint(service: Service, handler: Handler) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def endpoint(http: HttpRequest) -> Response:
        try:
            return await handler(service, http)
        except DyspecError as error:
            return refusal(error)

    return endpoint


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{http.method} {http.url.path}"
    message = (
        f"there is nothing at {what}" if error.status_code == 404 else f"{what}: {error.detail}"
    )
    found = refusal(ApiError(error.status_code, message))
    found.headers.update(error.headers or {})
    return found


async def _mistake(_http: HttpRequest, error: Exception) -> Response:
    log.error("internal error", exc_info=error)
    return refusal(ApiError(500, "internal error; the server's log tells", "server_error"))


@cache
def _page() -> tuple[str, str]:
    """The page and its policy, to which only a header can add that nobody may frame it."""
    text = PAGE.read_text(encoding="utf-8")
    found = _OWN_POLICY.search(text)
    assert found is not None, "the built page has no policy"
    return text, f"{found[1]}; frame-ancestors 'none'"
