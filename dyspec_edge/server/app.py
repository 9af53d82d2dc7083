"""The web application: what stands before the handlers, and what becomes of their errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dyspec_edge.errors import DyspecError
from dyspec_edge.server.answers import refusal
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.guard import Guard, Rules
from dyspec_edge.server.log import AccessLog
from dyspec_edge.server.routes import ENDPOINTS, Handler
from dyspec_edge.server.service import Service

log = logging.getLogger(__name__)


def create_app(service: Service, rules: Rules, *, log_content: bool = False) -> ASGIApp:
    """The application, with what stands before it.

    Args:
        log_content: the log shows what was asked.
    """
    routes = [
        Route(one.path, _endpoint(service, one.handler), methods=[one.method]) for one in ENDPOINTS
    ]
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: _http_error, Exception: _mistake}
    )
    return AccessLog(Guard(app, rules), with_content=log_content)


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
