# SPDX-License-Identifier: Apache-2.0
"""What the routes of OpenAI's dialect have in common: parameters in, usage, frames and errors out. Pure."""

from __future__ import annotations

import json

from syntrop.common.http import chat, sse
from syntrop.common.http.errors import BadRequest, HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.answers import Usage
    from syntrop.common.http.fields import Fields

STOPS_MAX = 4
CHOICES_MAX = 128
TOP_LOGPROBS_MAX = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_INT64 = 2**63


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


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def frame(value: dict[str, Any], event: str | None = None) -> bytes:
    return sse.encode(_encode(value), event)


def failure(error: chat.EngineError, *, started: bool, prompt: str = "messages") -> HttpError:
    """How an engine's error is answered. Where work had `started`, clients are told not to repeat it. `prompt` is
    the field that a route has its prompt in."""
    message = error.message
    match error:
        case chat.ModelNotFound():
            return HttpError(404, message, code="model_not_found", param="model", type="invalid_request_error")
        case chat.ContextExceeded():
            return BadRequest(message, param=prompt, code="context_length_exceeded")
        case chat.Refused():
            return BadRequest(message, param=error.parameter, code=error.code or "invalid_value")
        case chat.Unhonoured():
            parameter = error.parameter
            if parameter is not None and parameter.startswith("messages"):
                parameter = prompt + parameter.removeprefix("messages")
                message = message.replace("'messages", f"'{prompt}", 1)
            return BadRequest(message, param=parameter, code="unsupported_value")
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
