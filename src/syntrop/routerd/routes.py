# SPDX-License-Identifier: Apache-2.0
"""Which handler a request is for. Pure."""

from __future__ import annotations

import re

from syntrop.common.http.errors import HttpError

_READ, _POST = ("GET", "HEAD"), ("POST",)

# Path, methods and handler. `{id}` is the rest of the path, slashes included: names of models may have them.
ROUTES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("/", _READ, "root"),
    ("/openapi.json", _READ, "openapi"),
    ("/health", _READ, "health"),
    ("/metrics", _READ, "metrics"),
    ("/v1/models", _READ, "models"),
    ("/v1/models/{id}", _READ, "model"),
    ("/v1/chat/completions", _POST, "chat"),
    ("/v1/completions", _POST, "completions"),
    ("/v1/responses", _POST, "responses"),
    ("/v1/embeddings", _POST, "embeddings"),
    ("/v1/messages", _POST, "messages"),
    ("/v1/messages/count_tokens", _POST, "count-tokens"),
    ("/api/chat", _POST, "ollama-chat"),
    ("/api/generate", _POST, "ollama-generate"),
    ("/api/embed", _POST, "ollama-embed"),
    ("/api/embeddings", _POST, "ollama-embeddings"),
    ("/api/tags", _READ, "ollama-tags"),
    ("/api/show", _POST, "ollama-show"),
    ("/api/ps", _READ, "ollama-ps"),
    ("/api/version", _READ, "ollama-version"),
    ("/v1/audio/speech", _POST, "unbuilt"),
    ("/v1/audio/transcriptions", _POST, "unbuilt"),
    ("/v1/audio/translations", _POST, "unbuilt"),
    ("/v1/audio/generations", _POST, "unbuilt"),
    ("/v1/audio/music", _POST, "unbuilt"),
    ("/v1/images/generations", _POST, "unbuilt"),
    ("/v1/images/edits", _POST, "unbuilt"),
    ("/v1/images/variations", _POST, "unbuilt"),
    ("/v1/videos", _POST, "unbuilt"),
    ("/v1/video/generations", _POST, "unbuilt"),
    ("/v1/videos/generations", _POST, "unbuilt"),
)

_EXACT = {path: (methods, name) for path, methods, name in ROUTES if not path.endswith("{id}")}
_PREFIXES = [(path[:-4], methods, name) for path, methods, name in ROUTES if path.endswith("{id}")]


def route(method: str, path: str) -> tuple[str, str]:
    """Name of the handler, and the rest of the path. Raises HttpError: 404, or 405 with `Allow`."""
    found, rest = _EXACT.get(path), ""
    if found is None:
        for prefix, methods, name in _PREFIXES:
            if path.startswith(prefix) and len(path) > len(prefix):
                found, rest = (methods, name), _unquote(path[len(prefix) :])
    if found is None:
        raise HttpError(404, f"There is nothing at {path}.", code="unknown_url", type="invalid_request_error")
    methods, name = found
    if method not in methods:
        allow = ", ".join(methods)
        raise HttpError(
            405,
            f"{method} is not allowed on {path}; {allow} is.",
            code="method_not_allowed",
            headers=(("allow", allow),),
        )
    return name, rest


def unbuilt(path: str) -> HttpError:
    """What a route is answered that does not exist yet, but will."""
    message = f"{path} is not built yet: no engine here makes or reads sounds and images."
    return HttpError(501, message, code="not_built", type="not_implemented_error", final=True)


def _unquote(text: str) -> str:
    """Percent-decoding. Raises HttpError when the result is not UTF-8."""
    raw = text.encode("latin-1")
    try:
        return re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), raw).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "The path is not valid UTF-8.") from None
