# SPDX-License-Identifier: Apache-2.0
"""`/openapi.json`: every route of `routes.ROUTES` as an OpenAPI 3.1 document. Imported when it is asked for.

The schemas of requests are as strict as the parsers: what is valid here and refused there is a rule between
fields, which is told in the words of a field. `tests/unit/routerd/test_openapi.py` holds the two together.
"""

from __future__ import annotations

from syntrop import __version__
from syntrop.routerd.openapi import anthropic, ollama, openai
from syntrop.routerd.openapi.shapes import choice, either, number, reply, text, whole
from syntrop.routerd.routes import ROUTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.routerd.openapi.shapes import Schema

_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"
_PROM = "text/plain; version=0.0.4; charset=utf-8"

HEALTH = reply(
    {
        "status": choice("ok", "degraded"),
        "version": text(1),
        **{name: whole(0) for name in ("uptime_seconds", "total_requests", "active_requests")},
        **{name: whole(0) for name in ("providers_count", "healthy_providers_count", "rss_bytes")},
        "psi_level": choice("normal", "elevated", "critical", "unknown"),
        "psi_memory_some": number(0, 100),
        "rss_mb": {"type": "number"},
    }
)

SCHEMAS: dict[str, Schema] = {
    "ChatRequest": openai.CHAT,
    "ChatCompletion": openai.COMPLETED_CHAT,
    "CompletionRequest": openai.COMPLETIONS,
    "Completion": openai.COMPLETED,
    "EmbeddingRequest": openai.EMBEDDINGS,
    "Embeddings": openai.EMBEDDED,
    "ResponseRequest": openai.RESPONSES,
    "Response": openai.RESPONSE,
    "Models": openai.MODELS,
    "Model": openai._MODEL,
    "Error": openai.ERROR,
    "MessageRequest": anthropic.MESSAGES,
    "Message": anthropic.MESSAGE,
    "TokenCountRequest": anthropic.COUNT,
    "TokenCount": anthropic.COUNTED,
    "AnthropicError": anthropic.ERROR,
    "OllamaChatRequest": ollama.CHAT,
    "OllamaChat": ollama.CHATTED,
    "OllamaGenerateRequest": ollama.GENERATE,
    "OllamaGenerate": ollama.GENERATED,
    "OllamaEmbedRequest": ollama.EMBED,
    "OllamaEmbed": ollama.EMBEDDED,
    "OllamaEmbeddingsRequest": ollama.EMBEDDINGS,
    "OllamaEmbeddings": ollama.EMBEDDED_ONE,
    "OllamaShowRequest": ollama.SHOW,
    "OllamaShow": ollama.SHOWN,
    "OllamaTags": ollama.TAGS,
    "OllamaPs": ollama.PS,
    "OllamaVersion": ollama.VERSION,
    "OllamaError": ollama.ERROR,
    "Health": HEALTH,
}
EXAMPLES: dict[str, dict[str, Any]] = {**openai.EXAMPLES, **anthropic.EXAMPLES, **ollama.EXAMPLES}

# By the route's name: what it does, the schema of its request, that of its reply, and what a stream of it is.
_DOES: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "root": ("Whether anybody is there", None, None, None),
    "openapi": ("This document", None, None, None),
    "health": ("How the router is", None, "Health", None),
    "metrics": ("What Prometheus reads", None, None, None),
    "models": ("The models of all providers", None, "Models", None),
    "model": ("One model", None, "Model", None),
    "chat": ("OpenAI: an answer to a chat", "ChatRequest", "ChatCompletion", _EVENTS),
    "completions": ("OpenAI: a text, continued", "CompletionRequest", "Completion", _EVENTS),
    "responses": ("OpenAI: a response; nothing is kept of it", "ResponseRequest", "Response", _EVENTS),
    "embeddings": ("OpenAI: vectors", "EmbeddingRequest", "Embeddings", None),
    "messages": ("Anthropic: an answer to a chat", "MessageRequest", "Message", _EVENTS),
    "count-tokens": ("Anthropic: tokens of a chat", "TokenCountRequest", "TokenCount", None),
    "ollama-chat": ("Ollama: an answer to a chat", "OllamaChatRequest", "OllamaChat", _LINES),
    "ollama-generate": ("Ollama: an answer to a prompt", "OllamaGenerateRequest", "OllamaGenerate", _LINES),
    "ollama-embed": ("Ollama: vectors", "OllamaEmbedRequest", "OllamaEmbed", None),
    "ollama-embeddings": ("Ollama: a vector", "OllamaEmbeddingsRequest", "OllamaEmbeddings", None),
    "ollama-tags": ("Ollama: the models", None, "OllamaTags", None),
    "ollama-show": ("Ollama: a model", "OllamaShowRequest", "OllamaShow", None),
    "ollama-ps": ("Ollama: the models in memory", None, "OllamaPs", None),
    "ollama-version": ("Ollama: the version", None, "OllamaVersion", None),
    "unbuilt": ("Not built yet", None, None, None),
}
_EVENT_NAMES = {
    "messages": (
        *("message_start", "message_delta", "message_stop", "ping", "error"),
        *(f"content_block_{what}" for what in ("start", "delta", "stop")),
    ),
    "responses": (
        "error",
        *(f"response.{what}" for what in ("created", "in_progress", "completed", "incomplete", "failed")),
        *(f"response.output_item.{what}" for what in ("added", "done")),
        *(f"response.content_part.{what}" for what in ("added", "done")),
        *(f"response.output_text.{what}" for what in ("delta", "done")),
        *(f"response.reasoning_text.{what}" for what in ("delta", "done")),
        *(f"response.function_call_arguments.{what}" for what in ("delta", "done")),
    ),
}
_PLAIN = {"root": "text/plain; charset=utf-8", "metrics": _PROM, "openapi": "application/json"}
_ID = {"x-request-id": {"description": "Names the request in the log.", "required": True, "schema": text(1)}}
_ROUTING_HEADERS: list[dict[str, Any]] = [
    {
        "name": "x-syntrop-tier",
        "in": "header",
        "description": "How difficult the request is; `triage` is for the suite's own users by router.sock.",
        "schema": choice("auto", "fast", "hard", "triage"),
    },
    {
        "name": "x-syntrop-local",
        "in": "header",
        "description": "The request must not leave this machine.",
        "schema": choice("yes", "no", "true", "false", "1", "0", "on", "off"),
    },
]
# Statuses of errors: of any request, of those with a body, and of those that ask a provider.
_ANY = {
    400: "The request is malformed, or a parameter cannot be honoured; the error names it.",
    403: "A web page asks, or the host is none of this machine's names.",
    408: "The request did not arrive in time.",
    429: "The router or an engine is full.",
    431: "The head of the request is too large.",
}
_BODY = {
    413: "The body is too large.",
    415: "The body has an encoding.",
    417: "The expectation cannot be met.",
}
_ASKING = {
    404: "There is no such model.",
    502: "Who was asked failed.",
    503: "Nobody can answer; each candidate is told with its reason.",
    504: "Who was asked said nothing for too long.",
}
_OVERLOADED = {529: "An engine is full."}


def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for path, methods, name in ROUTES:
        method = methods[0].lower()
        paths[path] = {method: _operation(path, name)}
    schemas = {
        name: {**schema, "examples": [EXAMPLES[name]]} if name in EXAMPLES else schema
        for name, schema in SCHEMAS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "syntrop routerd",
            "version": __version__,
            "description": "Local AI by the APIs that clients know. Parameters are honoured, or refused by name.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:32768"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(path: str, name: str) -> dict[str, Any]:
    about, asked, told, stream = _DOES[name]
    operation: dict[str, Any] = {
        "operationId": name if name != "unbuilt" else "unbuilt" + path.replace("/", "-"),
        "summary": about,
        "tags": [_dialect(path, name)],
        "responses": _responses(path, name, told, stream),
    }
    if asked is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(asked)}}}
        if name != "ollama-show":
            operation["parameters"] = _ROUTING_HEADERS
    if path.endswith("{id}"):
        described = "The model's name; slashes in it may stand as they are."
        given = {"name": "id", "in": "path", "required": True, "schema": text(1), "description": described}
        operation["parameters"] = [given]
    return operation


def _dialect(path: str, name: str) -> str:
    if path.startswith("/api/"):
        return "Ollama"
    if path.startswith("/v1/"):
        return "Anthropic" if path.startswith("/v1/messages") else "OpenAI"
    return "router"


def _responses(path: str, name: str, told: str | None, stream: str | None) -> dict[str, Any]:
    error = {"Ollama": "OllamaError", "Anthropic": "AnthropicError"}.get(_dialect(path, name), "Error")
    errors = dict(_ANY)
    content: dict[str, Any] = {}
    if name == "unbuilt":
        errors[501] = "There is no engine for it yet."
    elif told is not None:
        content["application/json"] = {"schema": _ref(told)}
    else:
        content[_PLAIN[name]] = {"schema": {"type": "object"} if name == "openapi" else {"type": "string"}}
    if stream is not None:
        content[stream] = {"schema": _event(name) if stream == _EVENTS else {"type": "string"}}
    if _DOES[name][1] is not None:
        errors |= _BODY
    if name not in ("root", "openapi", "health", "metrics", "unbuilt", "ollama-version"):
        errors |= _ASKING
    if error == "AnthropicError":
        errors |= _OVERLOADED
    # Before the route is known, errors have OpenAI's shape.
    schema = _ref(error) if error == "Error" else either(_ref(error), _ref("Error"))
    responses: dict[str, Any] = {
        str(status): {
            "description": what,
            "headers": _ID,
            "content": {"application/json": {"schema": schema}},
        }
        for status, what in sorted(errors.items())
    }
    if content:
        responses = {"200": {"description": about_reply(stream), "headers": _ID, "content": content}, **responses}
    return responses


def _event(name: str) -> Schema:
    """One event of a stream; the data of each is JSON, but for the last of OpenAI's older routes."""
    words = _EVENT_NAMES.get(name, ("message",))
    return reply({"event": choice(*words), "data": text(1)}) | {"description": "Each event of the stream."}


def about_reply(stream: str | None) -> str:
    return "The answer." if stream is None else f"The answer; streamed where that is asked for, as {stream}."


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
