# SPDX-License-Identifier: Apache-2.0
"""Errors that are answered over HTTP, in the shape that OpenAI's clients read."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class HttpError(Exception):
    """A request that fails: whose fault it was is in the status.

    `code` is a word for programs, `param` the field of the request that is to blame. `final` tells clients
    that repeating the request is no use, or would repeat work; they repeat most others unasked.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        usual = "invalid_request_error" if status < 500 else "server_error"
        self.type = type or _TYPES.get(status, usual)
        self.headers = (*headers, ("x-should-retry", "false")) if final else tuple(headers)

    def body(self) -> dict[str, Any]:
        """`{"error": {message, type, param, code}}`"""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def encode(self) -> bytes:
        return json.dumps(self.body()).encode()


class BadRequest(HttpError):
    """The request's field `param` cannot be honoured."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(400, message, code=code, param=param)


class InternalFault(HttpError):
    """Our own fault. The detail is in the log, never in the reply."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            500,
            f"An internal error occurred. The log has the detail under request {request_id}.",
            code="internal_error",
            final=True,
        )
