# SPDX-License-Identifier: Apache-2.0
"""How much memory a call of the engine needs beside the model's own: the cache of its sequences. Pure."""

from __future__ import annotations

from syntrop.common.http.together import AT_ONCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final

    from syntrop.common.http.chat import EmbedRequest, GenerateRequest

LEAST: Final = 1 << 20
"""Bytes of any call's lease: what is not known of it is not nothing."""
ANSWER: Final = 2048
"""Tokens of an answer whose length its caller leaves open."""
STEP: Final = 512
"""Tokens that the engine reads in one step."""


def of_generation(model: Mapping[str, Any], requests: Sequence[GenerateRequest], prompt: int | None) -> int:
    """Bytes for requests that differ in their prompt alone, of which the longest has `prompt` tokens (None: nobody
    can tell, so it may fill the context). `model` is Runtime1's LoadedModel.

    A sequence is at most as long as the context. Choices of one request, and prompts of one, run a few at a time.
    """
    first = requests[0]
    context: int = model["context_window"]
    length = context if prompt is None else min(context, prompt + (first.max_tokens or ANSWER))
    each: int = model.get("cache_token_bytes") or 0
    return max(LEAST, sequences(requests) * length * each)


def sequences(requests: Sequence[GenerateRequest]) -> int:
    """How many of them run at once at most."""
    return min(requests[0].n, AT_ONCE) * min(len(requests), AT_ONCE)


def of_embedding(model: Mapping[str, Any], request: EmbedRequest) -> int:
    """Bytes for texts, of which short ones share a step and a long one is alone. A token is a byte of text at
    least. An encoder keeps no cache."""
    context: int = model["context_window"]
    each: int = model.get("cache_token_bytes") or 0
    lengths = [len(one.encode()) if isinstance(one, str) else len(one) for one in request.inputs]
    return max(LEAST, min(context, max(*lengths, min(sum(lengths), STEP))) * each)
