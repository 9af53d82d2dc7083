"""Answers on the wire: JSON, and server-sent events whose client may leave in mid-stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import anyio
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dyspec_edge.errors import DyspecError
from dyspec_edge.server import errors
from dyspec_edge.server.errors import ApiError
from dyspec_edge.server.service import Running

DONE = "[DONE]"
PING = b": still working\n\n"
CLIENT_LEFT = 499
"""nginx's status for clients that do not wait; only the log sees it."""

Event = Mapping[str, Any] | str | None
"""JSON for a `data:` line, the text of one, or None for a sign of life."""


def as_json(
    document: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, dict(headers or {}), "application/json")


def refusal(error: DyspecError) -> Response:
    """An error as an answer."""
    found = errors.of(error)
    return as_json(found.body, found.status, found.headers)


def event_text(event: Event, name: str | None = None) -> bytes:
    """An event on the wire."""
    if event is None:
        return PING
    data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


async def when_complete(
    http: HttpRequest, running: Running, answer: Callable[[], Awaitable[Response]]
) -> Response:
    """The answer to a client that waits for it; without one nothing more is generated."""
    found = Response(status_code=CLIENT_LEFT)
    failure: DyspecError | None = None

    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await _until_left(http.receive)
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            found = await answer()
        except DyspecError as error:
            failure = error
        finally:
            running.leave()
        group.cancel_scope.cancel()
    return found if failure is None else refusal(failure)


class EventStream(Response):
    """Server-sent events of one reply.

    Args:
        running: ended when the client leaves.
        lines: what is sent; an error in mid-stream becomes an event of its own.
        failed: the events of an error.
    """

    def __init__(
        self,
        running: Running,
        lines: AsyncGenerator[bytes],
        failed: Callable[[ApiError], bytes],
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._running = running
        self._lines = lines
        self._failed = failed

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until nobody listens."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await _until_left(receive)
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                await self._send_lines(send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                self._running.leave()
            group.cancel_scope.cancel()

    async def _send_lines(self, send: Send) -> None:
        try:
            async with aclosing(self._lines) as lines:
                async for line in lines:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
        except DyspecError as error:
            body = self._failed(errors.of(error))
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
