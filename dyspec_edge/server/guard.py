"""Who may ask, from where, and how much: what stands before every handler.

key         Authorization: Bearer KEY or X-Api-Key: KEY, compared in constant time
host        on loopback only names of this machine: no website reaches it by a name of its own
origin      only pages of this server, and those that --cors-origin names
body        no longer than --max-body, and there within seconds
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dyspec_edge.server.answers import refusal
from dyspec_edge.server.errors import ApiError

PUBLIC = frozenset(("/", "/health", "/v1/health"))
"""Paths without a key: the page, which holds nothing, and whether anybody is there."""

BODY_SECONDS = 30.0

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""With every answer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask.

    Attributes:
        keys: any of these opens the door; none is asked for where there are none.
        host: what the server is bound to.
        origins: of pages elsewhere that may ask; "*" for all.
        max_body: bytes of a request.
    """

    keys: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    origins: tuple[str, ...] = ()
    max_body: int = 8 << 20


class Guard:
    """Refuses what the rules do not allow; the application sees the rest."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._keys = [key.encode() for key in rules.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(MutableHeaders(scope=message), origin)
            await send(message)

        try:
            self._check_host(headers)
            self._check_origin(headers, origin)
            if _is_preflight(scope, headers):
                await self._preflight(headers)(scope, receive, send_guarded)
                return
            self._check_key(scope["path"], headers)
            body = await self._body(headers, receive)
        except ApiError as error:
            await refusal(error)(scope, receive, send_guarded)
            return
        await self._app(scope, _replayed(body, receive), send_guarded)

    def _check_host(self, headers: Headers) -> None:
        if not _is_loopback(self._rules.host):
            return
        name = _hostname(headers.get("host", ""))
        if not (name == self._rules.host or _is_loopback(name)):
            raise ApiError(
                403,
                f"this server answers to names of this machine only, not to {name[:100]!r}",
                "permission_error",
            )

    def _check_origin(self, headers: Headers, origin: str | None) -> None:
        own = headers.get("host", "").lower()
        if origin is None or self._allows(origin) or urlsplit(origin).netloc.lower() == own:
            return
        raise ApiError(
            403,
            f"pages of {origin[:100]} may not ask this server; start it with "
            f"--cors-origin {origin[:100]}",
            "permission_error",
        )

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in PUBLIC:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All are compared, so that the time tells nothing.
        fits = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        if not any(fits):
            raise ApiError(
                401, "a valid API key is required", "authentication_error", code="invalid_api_key"
            )

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        most = self._rules.max_body
        too_large = ApiError(
            413, f"the body is larger than {most} bytes (--max-body)", code="body_too_large"
        )
        length = headers.get("content-length", "0")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise too_large
        parts: list[bytes] = []
        try:
            with anyio.fail_after(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the client left before its request was complete")
                    parts.append(message.get("body", b""))
                    if sum(map(len, parts)) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {BODY_SECONDS:g} s", "timeout_error"
            ) from None

    def _allows(self, origin: str) -> bool:
        return "*" in self._rules.origins or origin in self._rules.origins

    def _add_headers(self, headers: MutableHeaders, origin: str | None) -> None:
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        if origin is not None and self._allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Cross-Origin-Resource-Policy"] = "cross-origin"
            headers.add_vary_header("Origin")

    def _preflight(self, headers: Headers) -> Response:
        asked = headers.get("access-control-request-headers", "")
        return Response(
            status_code=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST",
                "Access-Control-Allow-Headers": asked,
                "Access-Control-Max-Age": "600",
            },
        )


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, then what comes after it."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _hostname(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
