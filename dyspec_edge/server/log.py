"""One line a request in the log, and nothing of what was said unless that is asked for."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)


class AccessLog:
    """Writes a line when an answer is complete: who, what, how it ended, how long it took.

    Args:
        with_content: the line ends with the request's body, what cannot be printed escaped.
    """

    def __init__(self, app: ASGIApp, *, with_content: bool = False) -> None:
        self._app = app
        self._with_content = with_content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        parts: list[bytes] = []

        async def hearing() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, hearing if self._with_content else receive, noting)
        finally:
            seconds = time.perf_counter() - started
            client = (scope.get("client") or ("-",))[0]
            log.info(
                "%s %s %s %d %.2f s%s",
                client,
                scope["method"],
                ascii(scope["path"])[1:-1],
                status,
                seconds,
                _shown(b"".join(parts)),
            )


def _shown(body: bytes) -> str:
    """A body within a line; nobody can write lines of their own into the log."""
    return f" {body.decode('utf-8', 'replace')!r}" if body else ""
