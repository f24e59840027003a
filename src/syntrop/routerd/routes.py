# SPDX-License-Identifier: Apache-2.0
"""Which handler a request is for. Pure."""

from __future__ import annotations

from syntrop.common.http.errors import HttpError
from syntrop.common.http.routing import Routes

_READ, _POST = ("GET", "HEAD"), ("POST",)

# Path, methods and handler; see `routing`.
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

route = Routes(ROUTES).find


def unbuilt(path: str) -> HttpError:
    """What a route is answered that does not exist yet, but will."""
    message = f"{path} is not built yet: no engine here makes or reads sounds and images."
    return HttpError(501, message, code="not_built", type="not_implemented_error", final=True)
