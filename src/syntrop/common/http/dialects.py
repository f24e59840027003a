# SPDX-License-Identifier: Apache-2.0
"""What the routes of a dialect are to those who serve them, and OpenAI's, which every endpoint speaks.

Each is imported when the first request speaks it.
"""

from __future__ import annotations

from functools import cache, partial

from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from syntrop.common.http.dialect import Reply
    from syntrop.common.http.errors import HttpError

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


@cache
def chats() -> Dialect:
    from syntrop.common.http import openai
    from syntrop.common.http.openai_chat import ChatReply, parse_chat

    return Dialect("chatcmpl-", lambda b: [parse_chat(b)], lambda i, t, r: ChatReply(i, t, r[0]), openai.failure)


@cache
def completions() -> Dialect:
    from syntrop.common.http import openai
    from syntrop.common.http.openai_completions import CompletionReply, parse_completions

    failure = partial(openai.failure, prompt="prompt")
    return Dialect("cmpl-", parse_completions, lambda i, t, r: CompletionReply(i, t, list(r)), failure)


@cache
def responses() -> Dialect:
    from syntrop.common.http import openai
    from syntrop.common.http.openai_responses import ResponseRequest, parse_responses
    from syntrop.common.http.openai_responses_reply import ResponseReply

    def begin(id: str, created: int, requests: Sequence[chat.GenerateRequest]) -> Reply:
        (request,) = requests
        assert isinstance(request, ResponseRequest)
        return ResponseReply(id, created, request)

    return Dialect("resp_", lambda b: [parse_responses(b)], begin, partial(openai.failure, prompt="input"))


@cache
def embeddings() -> Embedding:
    from syntrop.common.http import openai, openai_embeddings

    failure = partial(openai.failure, prompt="input")
    encode = openai_embeddings.embeddings
    return Embedding(openai_embeddings.parse_embeddings, lambda r, f, ns: encode(r, f), failure)


OPENAI: dict[str, Callable[[], Dialect | Embedding]] = {
    "chat": chats,
    "completions": completions,
    "responses": responses,
    "embeddings": embeddings,
}
