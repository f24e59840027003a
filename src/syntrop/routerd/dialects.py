# SPDX-License-Identifier: Apache-2.0
"""The dialects by the names of their routes: one line each, imported when the first request speaks it."""

from __future__ import annotations

from functools import partial

from syntrop.common.http import chat
from syntrop.common.http.errors import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from syntrop.common.http.dialect import Reply

    # A body to requests that differ in their prompt alone, nearly always one.
    Parse = Callable[[bytes], Sequence[chat.GenerateRequest]]
    # Identifier, seconds since 1970 and the requests to the reply.
    Begin = Callable[[str, int, Sequence[chat.GenerateRequest]], Reply]
    # An engine's error, and whether work had begun, to how it is told.
    Failure = Callable[..., HttpError]
    ParseEmbed = Callable[[bytes], chat.EmbedRequest]
    # A request, its vectors, and the nanoseconds that it took, to the reply.
    EncodeEmbed = Callable[[chat.EmbedRequest, chat.Embeddings, int], dict[str, Any]]


class Dialect:
    """A route's way to answer turns. `prefix` begins the identifiers of its answers; `id_header` is where its
    clients look for the request's, if not in `x-request-id`."""

    __slots__ = ("begin", "failure", "id_header", "parse", "prefix")

    def __init__(
        self, prefix: str, parse: Parse, begin: Begin, failure: Failure, id_header: str | None = None
    ) -> None:
        self.prefix = prefix
        self.parse = parse
        self.begin = begin
        self.failure = failure
        self.id_header = id_header

    def named(self, id: str) -> tuple[tuple[str, str], ...]:
        """The header that names a request, if there is one besides the usual."""
        return () if self.id_header is None else ((self.id_header, id),)


class Embedding:
    """A route's way to answer with vectors."""

    __slots__ = ("encode", "failure", "parse")

    def __init__(self, parse: ParseEmbed, encode: EncodeEmbed, failure: Failure) -> None:
        self.parse = parse
        self.encode = encode
        self.failure = failure


def _chat() -> Dialect:
    from syntrop.common.http import openai
    from syntrop.common.http.openai_chat import ChatReply, parse_chat

    return Dialect("chatcmpl-", lambda b: [parse_chat(b)], lambda i, t, r: ChatReply(i, t, r[0]), openai.failure)


def _completions() -> Dialect:
    from syntrop.common.http import openai
    from syntrop.common.http.openai_completions import CompletionReply, parse_completions

    failure = partial(openai.failure, prompt="prompt")
    return Dialect("cmpl-", parse_completions, lambda i, t, r: CompletionReply(i, t, list(r)), failure)


def _responses() -> Dialect:
    from syntrop.common.http import openai
    from syntrop.common.http.openai_responses import ResponseRequest, parse_responses
    from syntrop.common.http.openai_responses_reply import ResponseReply

    def begin(id: str, created: int, requests: Sequence[chat.GenerateRequest]) -> Reply:
        (request,) = requests
        assert isinstance(request, ResponseRequest)
        return ResponseReply(id, created, request)

    return Dialect("resp_", lambda b: [parse_responses(b)], begin, partial(openai.failure, prompt="input"))


def _embeddings() -> Embedding:
    from syntrop.common.http import openai, openai_embeddings

    failure = partial(openai.failure, prompt="input")
    encode = openai_embeddings.embeddings
    return Embedding(openai_embeddings.parse_embeddings, lambda r, f, ns: encode(r, f), failure)


def _messages() -> Dialect:
    from syntrop.common.http import anthropic
    from syntrop.common.http.anthropic_messages import parse_messages
    from syntrop.common.http.anthropic_reply import MessageReply

    def begin(id: str, created: int, requests: Sequence[chat.GenerateRequest]) -> Reply:
        return MessageReply(id, created, requests[0])

    return Dialect("msg_", lambda b: [parse_messages(b)], begin, anthropic.failure, anthropic.ID_HEADER)


def _ollama_chat() -> Dialect:
    from syntrop.common.http import ollama
    from syntrop.common.http.ollama_chat import parse_chat
    from syntrop.common.http.ollama_reply import ChatReply

    def begin(id: str, created: int, requests: Sequence[chat.GenerateRequest]) -> Reply:
        return ChatReply(id, created, requests[0])

    return Dialect("", lambda b: [parse_chat(b)], begin, ollama.failure)


def _ollama_generate() -> Dialect:
    from syntrop.common.http import ollama
    from syntrop.common.http.ollama_chat import parse_generate
    from syntrop.common.http.ollama_reply import GenerateReply

    def begin(id: str, created: int, requests: Sequence[chat.GenerateRequest]) -> Reply:
        return GenerateReply(id, created, requests[0])

    failure = partial(ollama.failure, prompt="prompt")
    return Dialect("", lambda b: [parse_generate(b)], begin, failure)


def _ollama_embed() -> Embedding:
    from syntrop.common.http import ollama, ollama_embeddings

    failure = partial(ollama.failure, prompt="input")
    encode = ollama_embeddings.embed
    return Embedding(ollama_embeddings.parse_embed, lambda r, f, ns: encode(f, ns), failure)


def _ollama_embeddings() -> Embedding:
    from syntrop.common.http import ollama, ollama_embeddings

    failure = partial(ollama.failure, prompt="prompt")
    encode = ollama_embeddings.embeddings
    return Embedding(ollama_embeddings.parse_embeddings, lambda r, f, ns: encode(f), failure)


_MAKERS: dict[str, Callable[[], Dialect | Embedding]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "embeddings": _embeddings,
    "messages": _messages,
    "ollama-chat": _ollama_chat,
    "ollama-generate": _ollama_generate,
    "ollama-embed": _ollama_embed,
    "ollama-embeddings": _ollama_embeddings,
}
_made: dict[str, Dialect | Embedding] = {}


def find(route: str) -> Dialect | Embedding:
    """The dialect of a route."""
    found = _made.get(route)
    if found is None:
        found = _made[route] = _MAKERS[route]()
    return found


def shape(route: str, error: HttpError, id: str) -> HttpError:
    """An error as the clients of a route read it; `id` is the request's."""
    if route.startswith("ollama-"):
        from syntrop.common.http import ollama

        return ollama.shape(error, id)
    if route in ("messages", "count-tokens"):
        from syntrop.common.http import anthropic

        return anthropic.shape(error, id)
    return error


def neighbour(path: str) -> str:
    """A route by whose clients a path is asked for that has none itself."""
    if path.startswith("/api/"):
        return "ollama-version"
    return "messages" if path.startswith("/v1/messages") else "chat"
