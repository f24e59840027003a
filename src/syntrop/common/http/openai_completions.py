# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/completions`, in its own shape: prompts are continued as they are. Pure.

One body may hold several prompts. Each becomes a request; the choices of the first come first, as one list.
"""

from __future__ import annotations

from syntrop.common.http import chat, openai, sse
from syntrop.common.http.answers import Usage, gather
from syntrop.common.http.fields import Fields, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from syntrop.common.http.errors import HttpError

_LOGPROBS_MAX = 5
_MAX_TOKENS = 16  # OpenAI's own default for this route
_TOKEN_MAX = 2**31 - 1


def parse_completions(body: bytes) -> list[chat.GenerateRequest]:
    """The body of `POST /v1/completions`: a request for each prompt, alike but for it. Raises BadRequest."""
    fields = parse_object(body)
    model = openai.model_name(fields)
    prompts = _prompts(fields)
    fields.only("suffix", "")
    fields.only("echo", False)
    request = chat.GenerateRequest(model, None)
    openai.take_stream(fields, request)
    request.max_tokens = fields.integer("max_tokens", 1) or _MAX_TOKENS
    openai.take_sampling(fields, request)
    if request.n * len(prompts) > openai.CHOICES_MAX:
        raise fields.fail(
            "n", f"may ask for at most {openai.CHOICES_MAX} choices over all prompts.", "invalid_value"
        )
    request.top_logprobs = fields.integer("logprobs", 0, _LOGPROBS_MAX)
    best = fields.integer("best_of", 1)
    if best is not None and best != request.n:
        raise fields.fail("best_of", "is supported only with the value of 'n' so far.", "unsupported_value")
    openai.take_routing(fields, request)
    openai.take_labels(fields)
    fields.done()
    return [_with_prompt(request, prompt) for prompt in prompts]


def _with_prompt(request: chat.GenerateRequest, prompt: str | list[int]) -> chat.GenerateRequest:
    one = chat.GenerateRequest(request.model, None, prompt)
    for name in chat.GenerateRequest.__slots__:
        if name != "prompt":
            setattr(one, name, getattr(request, name))
    return one


def _prompts(fields: Fields) -> list[str | list[int]]:
    value = fields.take("prompt")
    texts, tokens = take_texts(fields, "prompt", value, most=openai.CHOICES_MAX)
    return [*texts, *tokens]


def take_texts(fields: Fields, name: str, value: Any, *, most: int) -> tuple[list[str], list[list[int]]]:
    """A text, or a list of them, or the tokens of a text, or a list of those: one of the two lists is filled."""
    if isinstance(value, str):
        return [fields.checked(name, value)], []
    if value is None:
        raise fields.fail(name, "must be given.", "missing_required_parameter")
    if not isinstance(value, list):
        raise fields.fail(name, "must be a string, or an array of strings or of tokens.", "invalid_type")
    if not value:
        raise fields.fail(name, "must not be empty.", "invalid_value")
    first = value[0]
    if isinstance(first, int):
        return [], [_tokens(fields, name, value)]
    if len(value) > most:
        raise fields.fail(name, f"may hold at most {most}, not {len(value)}.", "invalid_value")
    if isinstance(first, list):
        return [], [_tokens(fields, f"{name}[{i}]", one) for i, one in enumerate(value)]
    return [fields.checked(f"{name}[{i}]", one) for i, one in enumerate(value)], []


def _tokens(fields: Fields, name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise fields.fail(name, "must be an array of tokens, and not empty.", "invalid_type")
    for i, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= _TOKEN_MAX:
            raise fields.fail(f"{name}[{i}]", "must be the id of a token.", "invalid_type")
    return value


class CompletionReply:
    """The objects of one answer (`dialect.Reply`) to the requests of one body.

    `created` is in seconds since 1970. `model` may be set to the one that answers, before anything is told.
    """

    headers = sse.HEADERS
    ping = sse.PING

    __slots__ = ("_ends", "_include_usage", "_n", "_said", "created", "id", "model")

    def __init__(self, id: str, created: int, requests: list[chat.GenerateRequest]) -> None:
        self.id = id
        self.created = created
        self.model = requests[0].model
        self._include_usage = requests[0].include_usage
        self._n = requests[0].n
        self._ends: list[chat.Finished] = []
        self._said: dict[int, int] = {}  # characters of each choice

    def whole(self, events: Iterable[chat.Event]) -> dict[str, Any]:
        events = list(events)
        parts: dict[int, list[dict[str, list[Any]]]] = {}
        for event in events:
            if isinstance(event, chat.Delta) and (part := self._logprobs(event)) is not None:
                parts.setdefault(event.choice, []).append(part)
        choices = []
        for i, answer in enumerate(gather(events)):
            reason = None if answer.end is None else answer.end.reason
            choices.append(_choice(i, answer.text, _joined(parts.get(i, [])), reason))
            if answer.end is not None:
                self._ends.append(answer.end)
        return {**self._frame(choices), "usage": openai.usage(Usage(self._ends, self._n))}

    def frames(self, events: Iterable[chat.Event]) -> bytes:
        return b"".join(openai.frame(chunk) for event in events for chunk in self._chunks(event))

    def end(self) -> bytes:
        if not self._include_usage:
            return sse.DONE
        return openai.frame({**self._frame([]), "usage": openai.usage(Usage(self._ends, self._n))}) + sse.DONE

    def broken(self, error: HttpError) -> bytes:
        return openai.frame(error.body())

    def _chunks(self, event: chat.Event) -> Iterator[dict[str, Any]]:
        if isinstance(event, chat.Delta):
            choice = _choice(event.choice, event.text, self._logprobs(event), None)
        elif isinstance(event, chat.Finished):
            self._ends.append(event)
            choice = _choice(event.choice, "", None, event.reason)
        else:
            raise ValueError("a prompt that is continued as it is has neither thoughts nor calls")
        chunk = self._frame([choice])
        if self._include_usage:
            chunk["usage"] = None
        yield chunk

    def _logprobs(self, delta: chat.Delta) -> dict[str, list[Any]] | None:
        """In the old shape; offsets count characters of the whole text."""
        offset = self._said.get(delta.choice, 0)
        self._said[delta.choice] = offset + len(delta.text)
        if delta.logprobs is None:
            return None
        offsets = []
        for token in delta.logprobs:
            offsets.append(offset)
            offset += sum(byte & 0xC0 != 0x80 for byte in token.bytes)  # characters that begin in it
        return {
            "tokens": [_name(token.text, token.bytes) for token in delta.logprobs],
            "token_logprobs": [token.logprob for token in delta.logprobs],
            "top_logprobs": [_top(token) for token in delta.logprobs],
            "text_offset": offsets,
        }

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _choice(index: int, text: str, logprobs: dict[str, list[Any]] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _joined(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]] | None:
    if not parts:
        return None
    return {name: [one for part in parts for one in part[name]] for name in parts[0]}


def _top(token: chat.TokenLogprob) -> dict[str, float]:
    """The likeliest tokens, and the chosen one in any case."""
    top: dict[str, float] = {}
    for text, data, logprob in [*token.top, (token.text, token.bytes, token.logprob)]:
        top.setdefault(_name(text, data), logprob)
    return top


def _name(text: str, data: bytes) -> str:
    """How a token is called: by its text, or by its bytes where they are a piece of a character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return text
