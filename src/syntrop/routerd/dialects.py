# SPDX-License-Identifier: Apache-2.0
"""The dialects by the names of their routes: one line each, imported when the first request speaks it."""

from __future__ import annotations

from functools import partial

from syntrop.common.http import chat, dialects
from syntrop.common.http.dialects import Dialect
from syntrop.common.http.dialects import Embedding as Embedding
from syntrop.common.http.errors import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from syntrop.common.http.dialect import Reply


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
    **dialects.OPENAI,
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
