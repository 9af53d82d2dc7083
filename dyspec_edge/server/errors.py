"""Errors as HTTP answers, in OpenAI's shape.

{"error": {"message": "...", "type": "invalid_request_error", "param": null, "code": null}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyspec_edge.errors import ContextOverflow, DyspecError, OptionError


class ApiError(DyspecError):
    """A request that is not answered.

    Attributes:
        status: of HTTP.
        kind: OpenAI's "type".
        code: a word for programs, or None.
        param: the field that is to blame, or None.
        retry_after: seconds after which another try makes sense, or None.
        extra: more members of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.extra = dict(extra or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.extra}}

    @property
    def headers(self) -> dict[str, str]:
        """Those that belong to the answer."""
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found


def unsupported(field: str, remedy: str) -> ApiError:
    """A field that asks for something this server does not do."""
    return ApiError(400, f"{field} is not supported; {remedy}", code="unsupported", param=field)


def of(error: DyspecError) -> ApiError:
    """What a client is told of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflow):
        sizes = {"n_prompt_tokens": error.num_prompt_tokens, "n_ctx": error.num_ctx}
        return ApiError(
            400, str(error), code="context_length_exceeded", param="messages", extra=sizes
        )
    if isinstance(error, OptionError):
        return ApiError(400, str(error))
    return ApiError(500, str(error), "server_error")


def gone() -> ApiError:
    """For those whose reply is cut off because the server ends."""
    return ApiError(503, "the server is shutting down", "unavailable_error", retry_after=10)
