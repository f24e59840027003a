# SPDX-License-Identifier: Apache-2.0
"""What the routes of Anthropic's dialect have in common: errors in its shape, names of parameters. Pure."""

from __future__ import annotations

from syntrop.common.http import chat, openai
from syntrop.common.http.errors import HttpError
from syntrop.common.http.terms import in_terms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ID_HEADER = "request-id"  # in which clients look for the request's identifier
OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
# What a parameter of `chat.GenerateRequest` is called here; of messages it is not said which one, since the
# client's blocks are not ours.
_NAMES = {"messages": "messages…", "stop": "stop_sequences", "reasoning_effort": "thinking"}


class AnthropicError(HttpError):
    """An error in Anthropic's shape: `{"type": "error", "error": {type, message}, "request_id"}`."""

    def __init__(self, error: HttpError, request_id: str) -> None:
        headers = (*error.headers, (ID_HEADER, request_id))
        super().__init__(error.status, error.message, code=error.code, param=error.param, headers=headers)
        self.type = kind(error)
        self.request_id = request_id

    def body(self) -> dict[str, Any]:
        return told(self, self.request_id)


def kind(error: HttpError) -> str:
    """Anthropic's word for an error; by it clients choose what to raise."""
    return _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")


def told(error: HttpError, request_id: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": kind(error), "message": error.message},
        "request_id": request_id,
    }


def shape(error: HttpError, request_id: str) -> HttpError:
    """An error that was not made in this dialect, in its shape."""
    return AnthropicError(error, request_id)


def failure(error: chat.EngineError, *, started: bool) -> HttpError:
    """How an engine's error is answered, before it is shaped. Where work had `started`, clients are told not to
    repeat it."""
    answer = openai.failure(in_terms(error, _NAMES), started=started)
    if isinstance(error, chat.Overloaded):
        answer.status = OVERLOADED  # 429 would say that it was the client who asked too often
    return answer


def request_id(message_id: str) -> str:
    """The identifier of the request that a message answers."""
    return "req_" + message_id.partition("_")[2]
