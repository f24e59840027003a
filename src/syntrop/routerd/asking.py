# SPDX-License-Identifier: Apache-2.0
"""What a request asks of whoever answers it: the model or any, its size, its needs. Pure."""

from __future__ import annotations

from syntrop.common.http import chat
from syntrop.routerd import scoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX = "router:"
TIERS = (scoring.FAST, scoring.HARD, scoring.AUTO)
CHARACTERS = 3.8  # of a token, on average
PER_MESSAGE = 4  # tokens that frame a message
OUTPUT_USUAL = 2048  # tokens of an answer whose length is left open, for its price

# Abilities that a parameter asks for.
PARAMETERS = {"tools": "tools", "logprobs": "logprobs", "embeddings": "input", "reasoning": "reasoning_effort"}


def alias(model: str) -> str | None:
    """The tier that a name leaves the choice to; None for the name of a model."""
    word = model.removeprefix(PREFIX) or scoring.AUTO
    return word if word in TIERS else None


def of(request: chat.GenerateRequest) -> scoring.Ask:
    """The tier of an alias outranks the one that the request gives besides."""
    tier = alias(request.model)
    named = tier is None
    if tier is None or tier == scoring.AUTO:
        tier = request.routing.tier or scoring.AUTO
    # A named model is asked however long its answer may become: it ends where the context does.
    room = 1 if named or request.max_tokens is None else request.max_tokens
    return scoring.Ask(
        request.model if named else None,
        tier,
        prompt_tokens=estimate(request),
        output_tokens=(request.max_tokens or OUTPUT_USUAL) * request.n,
        room=room,
        context=request.context or 0,
        needs=_needs(request),
        local=request.routing.local,
    )


def of_embedding(request: chat.EmbedRequest) -> scoring.Ask:
    tier = alias(request.model)
    named = tier is None
    if tier is None or tier == scoring.AUTO:
        tier = request.routing.tier or scoring.AUTO
    sizes = [_tokens(one) for one in request.inputs]
    return scoring.Ask(
        request.model if named else None,
        tier,
        prompt_tokens=max(sizes, default=0),  # each must fit by itself
        room=0,
        context=request.context or 0,
        needs=("embeddings",),
        local=request.routing.local,
    )


def _needs(request: chat.GenerateRequest) -> Iterator[str]:
    if request.tools and request.tool_choice != "none":
        yield "tools"
    if request.top_logprobs is not None:
        yield "logprobs"
    # Of a model that is named, its provider knows best whether it thinks.
    if request.reasoning_effort not in (None, "none", "minimal") and alias(request.model) is not None:
        yield "reasoning"


def estimate(request: chat.GenerateRequest) -> int:
    """About how many tokens the prompt has."""
    if request.messages is None:
        return _tokens(request.prompt or "")
    total = 0
    for message in request.messages:
        size = len(message.content) + len(message.role) + len(message.reasoning or "")
        size += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
        total += _of_characters(size) + PER_MESSAGE
    for tool in request.tools:
        total += _of_characters(len(tool.name) + len(tool.description or "") + len(repr(tool.parameters)))
    return total


def _tokens(text: str | list[int]) -> int:
    return _of_characters(len(text)) if isinstance(text, str) else len(text)


def _of_characters(count: int) -> int:
    return -int(-count // CHARACTERS)


def parts(request: chat.GenerateRequest) -> Callable[[], Iterator[str]]:
    """The prompt as the chain of parts by which caches are found; what comes first changes least."""

    def walk() -> Iterator[str]:
        for tool in request.tools:
            yield tool.name
        for message in request.messages or ():
            yield f"{message.role}\0{message.content}"
        if isinstance(request.prompt, str):
            yield request.prompt

    return walk


def renamed(request: chat.GenerateRequest, model: str) -> chat.GenerateRequest:
    """The same request under the name that its model has with a provider."""
    if request.model == model:
        return request
    twin = object.__new__(chat.GenerateRequest)
    for name in chat.GenerateRequest.__slots__:
        setattr(twin, name, getattr(request, name))
    twin.model = model
    return twin
