# SPDX-License-Identifier: Apache-2.0
"""The dialects by the names of their routes: one line each, imported when the first request speaks it."""

from __future__ import annotations

from functools import partial

from syntrop.common.http import chat
from syntrop.common.http.errors import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from syntrop.common.http.dialect import Reply

    # A body to requests that differ in their prompt alone, nearly always one.
    Parse = Callable[[bytes], Sequence[chat.GenerateRequest]]
    # Identifier, seconds since 1970 and the requests to the reply.
    Begin = Callable[[str, int, Sequence[chat.GenerateRequest]], Reply]
    # An engine's error, and whether work had begun, to how it is told.
    Failure = Callable[..., HttpError]
    # How a refusal is told that was not made by the dialect itself.
    Shape = Callable[[HttpError], HttpError]


class Dialect:
    """A route's way to speak. `prefix` begins the identifiers of its answers."""

    __slots__ = ("begin", "failure", "parse", "prefix", "shape")

    def __init__(
        self, prefix: str, parse: Parse, begin: Begin, failure: Failure, shape: Shape = lambda error: error
    ) -> None:
        self.prefix = prefix
        self.parse = parse
        self.begin = begin
        self.failure = failure
        self.shape = shape


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


_MAKERS: dict[str, Callable[[], Dialect]] = {"chat": _chat, "completions": _completions, "responses": _responses}
_made: dict[str, Dialect] = {}


def find(route: str) -> Dialect | None:
    """The dialect of a route, None where that answers no turns."""
    found = _made.get(route)
    if found is None and route in _MAKERS:
        found = _made[route] = _MAKERS[route]()
    return found
