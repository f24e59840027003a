# SPDX-License-Identifier: Apache-2.0
"""Ollama's `/api/embed`, and `/api/embeddings` as it was before. Pure."""

from __future__ import annotations

from syntrop.common.http import chat, ollama, openai
from syntrop.common.http.fields import parse_object
from syntrop.common.http.openai_embeddings import INPUTS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.fields import Fields


def parse_embed(body: bytes) -> chat.EmbedRequest:
    """The body of `POST /api/embed`. Raises BadRequest."""
    fields = parse_object(body)
    model = ollama.model_name(fields)
    inputs = fields.strings("input", most=INPUTS_MAX)
    if not inputs:
        raise fields.fail("input", "must be a string, or an array of at least one.", "missing_required_parameter")
    if "" in inputs:
        raise fields.fail("input", "may not hold an empty string.", "invalid_value")
    request = chat.EmbedRequest(model, inputs, fields.integer("dimensions", 1))
    fields.only("truncate", False)  # a text that is too long is an error here
    _common(fields, request)
    return request


def parse_embeddings(body: bytes) -> chat.EmbedRequest:
    """The body of `POST /api/embeddings`. Raises BadRequest."""
    fields = parse_object(body)
    model = ollama.model_name(fields)
    prompt = fields.string("prompt")
    if not prompt:
        raise fields.fail("prompt", "must be given, and not empty.", "missing_required_parameter")
    request = chat.EmbedRequest(model, [prompt])
    _common(fields, request)
    return request


def _common(fields: Fields, request: chat.EmbedRequest) -> None:
    options = fields.object("options")
    if options is not None:
        ollama.take_placing(options, request)
        for name in ollama.SAMPLING:
            options.take(name)  # how tokens are chosen, of which there are none here
        options.done()
    ollama.take_keep_alive(fields, request)
    openai.take_routing(fields, request)
    fields.done()


def embed(found: chat.Embeddings, nanoseconds: int) -> dict[str, Any]:
    """The reply of `/api/embed`, which took so long."""
    return {
        "model": found.model,
        "embeddings": found.vectors,
        "total_duration": nanoseconds,
        "load_duration": 0,  # not told apart
        "prompt_eval_count": found.prompt_tokens,
    }


def embeddings(found: chat.Embeddings) -> dict[str, Any]:
    """The reply of `/api/embeddings`."""
    return {"embedding": found.vectors[0]}
