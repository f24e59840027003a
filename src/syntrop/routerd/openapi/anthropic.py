# SPDX-License-Identifier: Apache-2.0
"""Anthropic's dialect as JSON schemas: what its parsers take, and what its replies are. Pure."""

from __future__ import annotations

from syntrop.common.http import anthropic_messages
from syntrop.routerd.openapi.openai import MODEL, ROUTING
from syntrop.routerd.openapi.shapes import (
    array,
    choice,
    either,
    flag,
    free,
    nullable,
    number,
    only,
    refused,
    reply,
    text,
    thing,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.routerd.openapi.shapes import Schema

_CACHE = {"cache_control": thing({"type": choice("ephemeral")}, ttl=choice("5m", "1h"))}
_TEXT = thing({"type": choice("text"), "text": text()}, citations=only([]), **_CACHE)
_TEXTS = either(text(), array(_TEXT))
_RESULT = thing(
    {"type": choice("tool_result"), "tool_use_id": text(1)},
    content=_TEXTS,
    is_error=flag(),
    toolset_name=refused(),
    **_CACHE,
)
_THOUGHT = thing({"type": choice("thinking"), "thinking": text()}, signature=text())
_CALL = thing(
    {"type": choice("tool_use"), "id": text(1), "name": text(1), "input": free()},
    caller=only({"type": "direct"}),
    toolset_name=refused(),
    **_CACHE,
)


def _message(role: str, *blocks: Schema) -> Schema:
    return thing({"role": choice(role), "content": either(text(), array(either(*blocks), 1))})


_MESSAGE = either(
    _message("user", _TEXT, _RESULT), _message("assistant", _THOUGHT, _TEXT, _CALL), _message("system", _TEXT)
)
_TOOL = thing(
    {"name": text(1), "input_schema": free("A JSON schema.")},
    type=choice("custom"),
    description=text(),
    strict=only(False),
    defer_loading=only(False),
    eager_input_streaming=only(True),
    allowed_callers=only(["direct"]),
    input_examples=only([]),
    **_CACHE,
)
_DISPLAY = {"display": only("summarized")}
_PROMPT: dict[str, Schema] = {
    "system": _TEXTS,
    "tools": array(_TOOL),
    "tool_choice": either(
        thing({"type": choice("auto")}, disable_parallel_tool_use=flag()), thing({"type": choice("none")})
    ),
    "speed": only("standard"),
    "thinking": either(
        thing(
            {
                "type": choice("enabled"),
                "budget_tokens": whole(anthropic_messages.BUDGET_MIN, about="Less than `max_tokens`."),
            },
            **_DISPLAY,
        ),
        thing({"type": choice("adaptive")}, **_DISPLAY),
        thing({"type": choice("disabled")}),
    ),
    "output_config": thing({}, effort=choice(*anthropic_messages._EFFORTS), format=refused()),
    "context_management": refused(),
    "user_profile_id": refused(),
    "workspace_id": refused(),
    "mcp_servers": only([]),
    **_CACHE,
    **ROUTING,
}
_MESSAGES = array(_MESSAGE, 1, about="The last one is not an assistant's.")

MESSAGES = thing(
    {"model": MODEL, "messages": _MESSAGES, "max_tokens": whole(1)},
    **_PROMPT,
    stream=flag(),
    temperature=number(0, 1, "1 unless given."),
    top_p=number(0, 1),
    top_k=whole(0),
    stop_sequences=either(text(1), array(text(1), most=anthropic_messages.STOPS_MAX)),
    metadata=thing({}, user_id=text()),
    service_tier=only("auto", "standard_only"),
    container=refused(),
    diagnostics=refused(),
    inference_geo=refused(),
)
COUNT = thing({"model": MODEL, "messages": _MESSAGES}, **_PROMPT)

# --- replies -------------------------------------------------------------------------------------------------

_COUNT = whole(0)
_BLOCK = either(
    reply({"type": choice("thinking"), "thinking": text(), "signature": text()}),
    reply({"type": choice("text"), "text": text()}),
    reply({"type": choice("tool_use"), "id": text(), "name": text(), "input": free()}),
)
MESSAGE = reply(
    {
        "id": text(1),
        "type": choice("message"),
        "role": choice("assistant"),
        "model": text(),
        "content": array(_BLOCK),
        "stop_reason": choice("end_turn", "max_tokens", "tool_use", "refusal", "stop_sequence"),
        "stop_sequence": nullable(text()),
        "usage": reply(
            {
                "input_tokens": _COUNT,
                "cache_creation_input_tokens": _COUNT,
                "cache_read_input_tokens": _COUNT,
                "output_tokens": _COUNT,
                "output_tokens_details": reply({"thinking_tokens": _COUNT}),
            }
        ),
    }
)
COUNTED = reply({"input_tokens": _COUNT})
ERROR = reply(
    {
        "type": choice("error"),
        "error": reply({"type": text(1), "message": text(1)}),
        "request_id": text(1),
    }
)

_ASKED: dict[str, Any] = {
    "model": "auto",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]},
                {"type": "text", "text": "x"},
            ],
        },
    ],
    "system": [{"type": "text", "text": "s"}],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "MessageRequest": {**_ASKED, "max_tokens": 2048, "metadata": {"user_id": "u"}},
    "TokenCountRequest": _ASKED,
}
