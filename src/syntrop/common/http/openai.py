# SPDX-License-Identifier: Apache-2.0
"""OpenAI's dialect of chat, as pure functions: request JSON in, reply objects out.

Every documented parameter is honoured or refused with a 400 that names it. What is not built yet passes only
with values that ask for nothing, since clients send those unasked.
"""

from __future__ import annotations

import json

from syntrop.common.http import chat, sse
from syntrop.common.http.errors import BadRequest, HttpError
from syntrop.common.http.fields import INTEGER_MAX, Fields, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from syntrop.common.http.answers import Usage

STOPS_MAX = 4
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_INT64 = 2**63


def parse_chat(body: bytes) -> chat.GenerateRequest:
    """The body of `POST /v1/chat/completions`. Raises BadRequest."""
    fields = parse_object(body)
    model = fields.string("model")
    if not model:
        raise fields.fail("model", "must name a model.", "missing_required_parameter")
    request = chat.GenerateRequest(model, _messages(fields))

    request.stream = fields.boolean("stream") or False
    options = fields.object("stream_options")
    if options is not None:
        if not request.stream:
            raise fields.fail("stream_options", "is only allowed when 'stream' is true.", "invalid_value")
        request.include_usage = options.boolean("include_usage") or False
        options.only("include_obfuscation", False)
        options.done()

    short = fields.integer("max_tokens", 1)
    request.max_tokens = fields.integer("max_completion_tokens", 1) or short
    # OpenAI's own defaults: an engine's may differ.
    temperature = fields.number("temperature", 0, 2)
    request.temperature = 1.0 if temperature is None else temperature
    request.top_p = fields.number("top_p", 0, 1)
    # Not OpenAI's, but sent by many clients of local engines.
    request.top_k = fields.integer("top_k", 0)
    request.min_p = fields.number("min_p", 0, 1)
    request.repetition_penalty = fields.number("repetition_penalty", 0.01, 100)
    request.seed = fields.integer("seed", -_INT64, _INT64 - 1)
    request.stop = fields.strings("stop", most=STOPS_MAX)
    if "" in request.stop:
        raise fields.fail("stop", "may not hold an empty string.", "invalid_value")

    _unbuilt(fields)
    fields.done()
    return request


def _unbuilt(fields: Fields) -> None:
    fields.only("n", 1)
    fields.only("logprobs", False)
    fields.only("top_logprobs", 0)
    fields.only("logit_bias", {})
    for name in ("presence_penalty", "frequency_penalty"):
        fields.only(name, 0, 0.0)
    fields.only("response_format", {"type": "text"})
    for name in ("tools", "functions"):
        fields.only(name, [])
    for name in ("tool_choice", "function_call"):
        fields.only(name, "none", "auto")  # without tools both mean none
    fields.boolean("parallel_tool_calls")  # says nothing without tools
    fields.only("modalities", ["text"])
    fields.only("audio")
    fields.only("prediction")
    fields.only("web_search_options")
    fields.only("reasoning_effort", "none")
    fields.only("verbosity", "medium")
    fields.only("service_tier", "auto", "default")
    fields.only("store", False)
    fields.only("metadata", {})
    fields.only("prompt_cache_retention")
    fields.only("moderation")
    for name in ("tier", "reasoning_budget", "max_thinking_tokens", "reasoning_content"):
        fields.only(name)
    # Names that a service gives its own users and caches; no answer depends on them.
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.string(name)


def _messages(fields: Fields) -> list[chat.Message]:
    items = fields.array("messages")
    if not items:
        raise fields.fail("messages", "must hold at least one message.", "missing_required_parameter")
    return [_message(fields.inside(f"messages[{i}]", item)) for i, item in enumerate(items)]


def _message(fields: Fields) -> chat.Message:
    role = fields.string("role")
    if role is None:
        raise fields.fail("role", "must be given.", "missing_required_parameter")
    if role not in _ROLES:
        known = role in ("tool", "function")
        what = "is not supported yet." if known else f"must be one of {', '.join(_ROLES)}, not {role!r}."
        raise fields.fail("role", what, "unsupported_value" if known else "invalid_value")
    content = _content(fields)
    name = fields.string("name")
    reasoning = None
    if role == "assistant":
        # Clients are split over the name, and some send both.
        reasoning = fields.string("reasoning_content")
        reasoning = fields.string("reasoning") or reasoning
        fields.only("tool_calls", [])
        for unbuilt in ("function_call", "refusal", "audio"):
            fields.only(unbuilt)
        fields.only("annotations", [])
    fields.done()
    return chat.Message(_ROLES[role], content, name=name, reasoning=reasoning)


def _content(fields: Fields) -> str:
    value = fields.take("content")
    if isinstance(value, str):
        return fields.checked("content", value)
    if not isinstance(value, list):
        raise fields.fail("content", "must be a string or an array of text parts.", "invalid_type")
    texts = []
    for i, item in enumerate(value):
        part = fields.inside(f"content[{i}]", item)
        sort = part.string("type")
        if sort != "text":
            raise part.fail("type", f"may only be 'text' so far, not {sort!r}.", "unsupported_value")
        text = part.string("text")
        if text is None:
            raise part.fail("text", "must be given.", "missing_required_parameter")
        part.only("prompt_cache_breakpoint")
        part.done()
        texts.append(text)
    return "\n".join(texts)


def engine_seed(seed: int | None) -> int:
    """A client's seed as an engine takes it: 53 bits, where 0 would mean that any will do."""
    return 0 if seed is None else seed % INTEGER_MAX + 1


# --- what the routes share -------------------------------------------------------------------------------

CHOICES_MAX = 128
TOP_LOGPROBS_MAX = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def model_name(fields: Fields) -> str:
    """Empty leaves the choice to the router, as `auto` does."""
    name = fields.string("model")
    if name is None:
        raise fields.fail("model", "must name a model.", "missing_required_parameter")
    return name


def take_stream(fields: Fields, request: chat.GenerateRequest) -> None:
    """`stream` and `stream_options`."""
    request.stream = fields.boolean("stream") or False
    options = fields.object("stream_options")
    if options is not None:
        if not request.stream:
            raise fields.fail("stream_options", "is only allowed when 'stream' is true.", "invalid_value")
        request.include_usage = options.boolean("include_usage") or False
        options.only("include_obfuscation", False)
        options.done()


def take_temperature(fields: Fields, request: chat.GenerateRequest) -> None:
    """`temperature` and `top_p`, with OpenAI's own default: an engine's may differ."""
    temperature = fields.number("temperature", 0, 2)
    request.temperature = 1.0 if temperature is None else temperature
    request.top_p = fields.number("top_p", 0, 1)


def take_sampling(fields: Fields, request: chat.GenerateRequest) -> None:
    """What chats and completions know in common of how tokens are chosen."""
    take_temperature(fields, request)
    # Not OpenAI's, but sent by many clients of local engines.
    request.top_k = fields.integer("top_k", 0)
    request.min_p = fields.number("min_p", 0, 1)
    request.repetition_penalty = fields.number("repetition_penalty", 0.01, 100)
    request.presence_penalty = fields.number("presence_penalty", -2, 2)
    request.frequency_penalty = fields.number("frequency_penalty", -2, 2)
    request.logit_bias = _logit_bias(fields)
    request.seed = fields.integer("seed", -_INT64, _INT64 - 1)
    request.stop = fields.strings("stop", most=STOPS_MAX)
    if "" in request.stop:
        raise fields.fail("stop", "may not hold an empty string.", "invalid_value")
    request.n = fields.integer("n", 1, CHOICES_MAX) or 1


def _logit_bias(fields: Fields) -> dict[int, float]:
    value = fields.take("logit_bias")
    if value is None:
        return {}
    biases = {}
    inside = fields.inside("logit_bias", value)
    for name in value:
        # The ids of tokens, as JSON writes them in the names of fields.
        if not (name.isascii() and name.isdecimal() and len(name) < 16):
            raise inside.fail(name, "must be named by the id of a token.", "invalid_value")
        bias = inside.number(name, -100, 100)
        if bias is None:
            raise inside.fail(name, "must be a number, not null.", "invalid_type")
        biases[int(name)] = bias
    return biases


def take_routing(fields: Fields, request: chat.GenerateRequest | chat.EmbedRequest) -> None:
    """Ours, not OpenAI's: `tier`, and `local` for what must not leave this machine."""
    tier = fields.string("tier")
    if tier not in (None, "auto", "fast", "hard"):
        raise fields.fail("tier", f"must be auto, fast or hard, not {tier!r}.", "invalid_value")
    request.routing.tier = None if tier == "auto" else tier
    request.routing.local = fields.boolean("local") or False


def take_effort(fields: Fields, name: str) -> str | None:
    effort = fields.string(name)
    if effort is not None and effort not in EFFORTS:
        raise fields.fail(name, f"must be one of {', '.join(EFFORTS)}, not {effort!r}.", "invalid_value")
    return effort


def take_labels(fields: Fields) -> None:
    """Names that a service gives its own users and caches; no answer depends on them."""
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.string(name)


def usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def frame(value: dict[str, Any], event: str | None = None) -> bytes:
    return sse.encode(_encode(value), event)


# --- replies ---------------------------------------------------------------------------------------------


class ChatReply:
    """The objects of one answer: the same id, time and model in all of them."""

    __slots__ = ("_include_usage", "created", "id", "model")

    def __init__(self, id: str, created: int, model: str, *, include_usage: bool = False) -> None:
        self.id = id
        self.created = created
        self.model = model
        self._include_usage = include_usage

    def completion(self, text: str, end: chat.Finished) -> dict[str, Any]:
        """The whole answer at once."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": end.reason,
                }
            ],
            "usage": _usage(end),
        }

    def first(self) -> dict[str, Any]:
        """Says who speaks, and nothing yet."""
        return self._chunk({"role": "assistant", "content": None}, None)

    def delta(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text}, None)

    def last(self, end: chat.Finished) -> list[dict[str, Any]]:
        """The empty delta with the reason, and the usage where it was asked for."""
        chunks = [self._chunk({}, end.reason)]
        if self._include_usage:
            chunks.append({**self._frame([]), "usage": _usage(end)})
        return chunks

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = self._frame([choice])
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _usage(end: chat.Finished) -> dict[str, Any]:
    return {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(value: dict[str, Any]) -> str:
    return _encode(value)


def model(id: str) -> dict[str, Any]:
    """One entry of `GET /v1/models`. The store keeps no time of creation, and 0 says so."""
    return {"id": id, "object": "model", "created": 0, "owned_by": "syntrop"}


def models(ids: Iterable[str]) -> dict[str, Any]:
    return {"object": "list", "data": [model(id) for id in ids]}


def failure(error: chat.EngineError, *, started: bool) -> HttpError:
    """How an engine's error is answered. Where work had `started`, clients are told not to repeat it."""
    message = error.message
    match error:
        case chat.ModelNotFound():
            return HttpError(404, message, code="model_not_found", param="model", type="invalid_request_error")
        case chat.ContextExceeded():
            return BadRequest(message, param="messages", code="context_length_exceeded")
        case chat.Refused():
            return BadRequest(message, param=error.parameter, code=error.code or "invalid_value")
        case chat.Unhonoured():
            return BadRequest(message, param=error.parameter, code="unsupported_value")
        case chat.Overloaded():
            retry = (("retry-after", "1"),)
            return HttpError(429, message, code="overloaded", headers=retry, type="overloaded_error")
        case chat.Unavailable():
            retry = (("retry-after", "1"),)
            return HttpError(
                503, message, code="no_healthy_provider", headers=() if started else retry, final=started
            )
        case chat.EngineTimeout():
            return HttpError(504, message, code="timeout", final=True)
        case chat.Unfit():
            return HttpError(503, message, code="hardware_incompatible", final=True)
        case _:
            return HttpError(502, message, code="provider_unavailable", final=True)
