# SPDX-License-Identifier: Apache-2.0
"""What the errors of providers mean: status, headers and body in, one of our own out. Pure.

Their words are passed on where they are about the request, cut to a length that a client can show. What they say
about who asks stays here: some repeat the key that they were given.
"""

from __future__ import annotations

import json
import re

from syntrop.common.http import chat
from syntrop.common.http.client import Silent, TooMany
from syntrop.common.http.response import BadResponse
from syntrop.common.http.wire import Broken, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Header = Callable[[str], str | None]

_LONGEST = 1000  # characters of a message
_CONTEXT = (
    # OpenAI and vLLM: what fits, then what was asked
    re.compile(r"maximum context length is (?P<most>\d+)\D+?(?P<requested>\d+)", re.DOTALL),
    # Anthropic
    re.compile(r"prompt is too long: (?P<requested>\d+) tokens > (?P<most>\d+)"),
)
_TYPES = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "model_not_found": 404,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "server_error": 500,
    "timeout_error": 504,
}


class Teller:
    """Puts a provider's failures into words for clients. `secret` is in none of them."""

    __slots__ = ("_secret", "id")

    def __init__(self, id: str, secret: str | None) -> None:
        self.id = id
        self._secret = secret

    def status(self, status: int, header: Header, body: bytes, model: str) -> chat.EngineError:
        """The error that an answer with this status means; `model` is the one that was asked."""
        if 300 <= status < 400:
            where = f" to {self._clean(to)}" if (to := header("location")) else ""
            return chat.Denied(f"{self.id} answers with a redirect{where}, which is not followed.")
        return self._judge(status, _error_object(body), model, retry_after(header))

    def told(self, error: Any, model: str) -> chat.EngineError:
        """The error that came as an event of a stream, or in the place of an answer."""
        given = error if isinstance(error, dict) else {"message": error}
        status = next((given[key] for key in ("status", "status_code", "code") if _is_status(given.get(key))), 0)
        words = (_text(given, "type") or "", _text(given, "code") or "")
        status = status or next((_TYPES[word] for word in words if word in _TYPES), 500)
        return self._judge(status, given, model, None)

    def transport(self, error: Exception) -> chat.EngineError:
        """The error that one of the client's means."""
        why = self._clean(str(error))
        match error:
            case Unreachable():
                return chat.Unavailable(f"{self.id} cannot be reached: {why}.")
            case TooMany():
                return chat.Overloaded(f"{self.id} has no room: {why}.")
            case Silent():
                return chat.EngineTimeout(f"{self.id} is silent: {why}.")
            case Broken():
                return chat.GenerationFailed(f"{self.id} broke off: {why}.")
            case BadResponse():
                return self.broken(f"it sent {why}")
            case _:
                raise error

    def broken(self, why: str) -> chat.EngineError:
        """It answered in a way that is not the dialect's."""
        return chat.GenerationFailed(f"{self.id} broke its protocol: {self._clean(why)}.")

    def _judge(
        self, status: int, given: dict[str, Any] | None, model: str, after: float | None
    ) -> chat.EngineError:
        code = _text(given, "code") or _text(given, "type")
        said = _text(given, "message")
        words = self._clean(said) if said else f"it answered with status {status}"
        if status in (401, 402, 403) or code == "insufficient_quota":
            what = "has no quota left for the router" if status == 402 or code == "insufficient_quota" else None
            return chat.Denied(f"{self.id} {what or 'does not accept the credential of the router'} ({status}).")
        if status == 429 or status == 529:
            return chat.Overloaded(f"{self.id} is busy: {words}", retry_after=after)
        if status == 404:
            if said is not None and model:
                return chat.ModelNotFound(model)
            return chat.Denied(f"{self.id} has no such route (404): its base_url may be wrong.")
        if status == 405:
            return chat.Denied(f"{self.id} does not take such requests (405): its base_url may be wrong.")
        if status in (408, 504):
            return chat.EngineTimeout(f"{self.id} gave up: {words}", retry_after=after)
        if status == 503:
            return chat.Unavailable(f"{self.id} is not available: {words}", retry_after=after)
        if 400 <= status < 500 and status not in (409, 425):
            return self._refused(given, words, code)
        return chat.GenerationFailed(f"{self.id} failed: {words}", retry_after=after)

    def _refused(self, given: dict[str, Any] | None, words: str, code: str | None) -> chat.EngineError:
        if given is not None and _is_count(given.get("n_prompt_tokens")) and _is_count(given.get("n_ctx")):
            return chat.ContextExceeded(given["n_prompt_tokens"], given["n_ctx"])  # llama.cpp
        for pattern in _CONTEXT:
            if (found := pattern.search(words)) and int(found["requested"]) > int(found["most"]):
                return chat.ContextExceeded(int(found["requested"]), int(found["most"]))
        parameter = _text(given, "param")
        return chat.Refused(f"{self.id} refuses the request: {words}", parameter and self._clean(parameter), code)

    def _clean(self, text: str) -> str:
        """What somebody else said, without the key, in one line that is not too long."""
        if self._secret:
            text = text.replace(self._secret, "…")
        text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _LONGEST]).split())
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def retry_after(header: Header) -> float | None:
    """Seconds after which the server asks to be tried again; None where it does not say."""
    given = header("retry-after-ms")
    if given is not None and (seconds := _seconds(given)) is not None:
        return seconds / 1000
    given = header("retry-after")
    if given is None:
        return None
    seconds = _seconds(given)
    return _until(given) if seconds is None else seconds


def _seconds(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text, re.ASCII) else None


def _until(date: str) -> float | None:
    """Seconds until a date as HTTP writes it; 0 for one that has passed."""
    from email.utils import parsedate_to_datetime
    from time import time

    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time())
    except (ValueError, OverflowError, OSError):
        return None


def _error_object(body: bytes) -> dict[str, Any] | None:
    """The error that a body describes, in the shapes that servers are known to use; None for another body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {**value, "message": error}
    if value.get("object") == "error":
        return value  # vLLM's, before it followed OpenAI
    detail = value.get("detail")
    if detail == "Not Found":
        return None  # what FastAPI says of a route, not of a model
    if isinstance(detail, str):
        return {"message": detail}
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):  # FastAPI's, of a field
        parts = detail[0].get("loc")
        place = ".".join(str(part) for part in parts if part != "body") if isinstance(parts, list) else ""
        return {"message": f"{place}: {detail[0].get('msg', 'is not valid')}", "param": place}
    message = value.get("message")
    return value if isinstance(message, str) else None


def _text(given: dict[str, Any] | None, key: str) -> str | None:
    value = given.get(key) if given is not None else None
    return value if isinstance(value, str) and value else None


def _is_status(value: Any) -> bool:
    return type(value) is int and 400 <= value < 600


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
