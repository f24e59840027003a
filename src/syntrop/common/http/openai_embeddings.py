# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/embeddings`. Pure."""

from __future__ import annotations

from syntrop.common.http import chat, openai
from syntrop.common.http.fields import parse_object
from syntrop.common.http.openai_completions import take_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INPUTS_MAX = 2048


def parse_embeddings(body: bytes) -> chat.EmbedRequest:
    """The body of `POST /v1/embeddings`. Raises BadRequest."""
    fields = parse_object(body)
    model = openai.model_name(fields)
    texts, tokens = take_texts(fields, "input", fields.take("input"), most=INPUTS_MAX)
    if "" in texts:
        raise fields.fail("input", "may not hold an empty string.", "invalid_value")
    request = chat.EmbedRequest(model, texts or tokens, fields.integer("dimensions", 1))
    form = fields.string("encoding_format")
    if form not in (None, "float", "base64"):
        raise fields.fail("encoding_format", f"must be float or base64, not {form!r}.", "invalid_value")
    request.base64 = form == "base64"
    openai.take_routing(fields, request)
    openai.take_labels(fields)
    fields.done()
    return request


def embeddings(request: chat.EmbedRequest, found: chat.Embeddings) -> dict[str, Any]:
    """The reply to a request. Numbers are those of float32; as base64 they are little-endian."""
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": base64(vector) if request.base64 else vector}
            for i, vector in enumerate(found.vectors)
        ],
        "model": found.model,
        "usage": {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens},
    }


def base64(vector: list[float]) -> str:
    from binascii import b2a_base64
    from struct import pack

    return b2a_base64(pack(f"<{len(vector)}f", *vector), newline=False).decode()
