# SPDX-License-Identifier: Apache-2.0
"""OpenAI's dialect as JSON schemas: what its parsers take, and what its replies are. Pure."""

from __future__ import annotations

from syntrop.common.http import openai, openai_completions, openai_embeddings
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

INT64 = 2**63
TOKENS = array(whole(0, openai_completions._TOKEN_MAX), 1)

MODEL = text(about="A name of /v1/models; auto, fast, hard or an empty name leave the choice to the router.")
ROUTING = {
    "tier": choice("auto", "fast", "hard", about="How difficult the request is."),
    "local": flag("It must not leave this machine."),
}
LABELS = {name: text() for name in ("user", "safety_identifier", "prompt_cache_key")}
_STREAM_OPTIONS = {"include_obfuscation": only(False)}
_HEAT = {"temperature": number(0, 2, "1 unless given."), "top_p": number(0, 1)}
_SAMPLING = {
    **_HEAT,
    "top_k": whole(0),
    "min_p": number(0, 1),
    "repetition_penalty": number(0.01, 100),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": {
        "type": "object",
        "patternProperties": {"^[0-9]{1,15}$": number(-100, 100)},
        "additionalProperties": False,
    },
    "seed": whole(-INT64, INT64 - 1),
    "stop": either(text(1), array(text(1), most=openai.STOPS_MAX)),
    "n": whole(1, openai.CHOICES_MAX),
}
_EFFORT = choice(*openai.EFFORTS)
TOOL_CHOICE = only("none", "auto")


def streamed(**options: Schema) -> dict[str, Schema]:
    about = "Only with `stream`."
    return {"stream": flag(), "stream_options": thing({}, **options, **_STREAM_OPTIONS) | {"description": about}}


# --- requests ------------------------------------------------------------------------------------------------


def parts(*sorts: str) -> Schema:
    """Text, as a string or in parts of these sorts."""
    return either(text(), array(either(*map(_part, sorts))))


def _part(sort: str) -> Schema:
    own = {"annotations": only([]), "logprobs": array({})} if sort == "output_text" else {}
    given = {"type": choice(sort), "text": text()}
    return thing(given, prompt_cache_breakpoint=refused(), **own)


_CALL = thing(
    {"id": text(1), "function": thing({"name": text(1), "arguments": text(about="JSON text")})},
    type=choice("function"),
    index=whole(0),
)
_ASSISTANT: dict[str, Schema] = {
    "name": text(),
    "reasoning_content": text(),
    "reasoning": text(),
    "function_call": refused(),
    "refusal": refused(),
    "audio": refused(),
    "annotations": only([]),
}
_SPOKEN = {"role": choice("assistant"), "content": parts("text")}
_CALLED = {"role": choice("assistant"), "tool_calls": array(_CALL, 1)}
MESSAGE = either(
    thing({"role": choice("system", "developer", "user"), "content": parts("text")}, name=text()),
    thing(_SPOKEN, tool_calls=array(_CALL), **_ASSISTANT),
    thing(_CALLED, content=parts("text"), **_ASSISTANT),
    thing({"role": choice("tool"), "tool_call_id": text(1), "content": parts("text")}, name=text()),
)
FUNCTION: dict[str, Schema] = {
    "description": text(),
    "parameters": free("A JSON schema."),
    "strict": only(False),
}
TOOL = thing({"type": choice("function"), "function": thing({"name": text(1)}, **FUNCTION)})

CHAT = thing(
    {"model": MODEL, "messages": array(MESSAGE, 1)},
    **streamed(include_usage=flag()),
    max_tokens=whole(1),
    max_completion_tokens=whole(1, about="Outranks max_tokens."),
    **_SAMPLING,
    logprobs=flag(),
    top_logprobs=whole(0, openai.TOP_LOGPROBS_MAX, "Only with `logprobs`."),
    tools=array(TOOL),
    tool_choice=TOOL_CHOICE,
    parallel_tool_calls=flag(),
    reasoning_effort=_EFFORT,
    **ROUTING,
    **LABELS,
    response_format=only({"type": "text"}),
    functions=only([]),
    function_call=only("none", "auto"),
    modalities=only(["text"]),
    verbosity=only("medium"),
    service_tier=only("auto", "default"),
    store=only(False),
    metadata=only({}),
    audio=refused(),
    max_thinking_tokens=refused(),
    moderation=refused(),
    prediction=refused(),
    prompt_cache_options=refused(),
    prompt_cache_retention=refused(),
    reasoning_budget=refused(),
    reasoning_content=refused(),
    web_search_options=refused(),
)

COMPLETIONS = thing(
    {
        "model": MODEL,
        "prompt": either(
            text(), TOKENS, array(text(), 1, openai.CHOICES_MAX), array(TOKENS, 1, openai.CHOICES_MAX)
        ),
    },
    **streamed(include_usage=flag()),
    suffix=only(""),
    echo=only(False),
    max_tokens=whole(1, about="16 unless given."),
    **_SAMPLING,
    logprobs=whole(0, openai_completions._LOGPROBS_MAX),
    best_of=whole(1, about="Only as many as `n`."),
    **ROUTING,
    **LABELS,
)

EMBEDDINGS = thing(
    {
        "model": MODEL,
        "input": either(
            text(1),
            TOKENS,
            array(text(1), 1, openai_embeddings.INPUTS_MAX),
            array(TOKENS, 1, openai_embeddings.INPUTS_MAX),
        ),
    },
    dimensions=whole(1, about="Only as many as the model's vectors have."),
    encoding_format=choice("float", "base64"),
    **ROUTING,
    **LABELS,
)

_STATE: dict[str, Schema] = {"id": text(), "status": text()}
_SOURCE: dict[str, Schema] = {"caller": refused(), "namespace": refused()}


def _texts(sort: str) -> Schema:
    return array(thing({"type": choice(sort), "text": text()}))


_ITEM = either(
    thing(
        {"role": choice("system", "developer", "user"), "content": parts("input_text")},
        type=choice("message"),
        phase=refused(),
        **_STATE,
    ),
    thing(
        {"role": choice("assistant"), "content": parts("output_text", "input_text")},
        type=choice("message"),
        phase=refused(),
        **_STATE,
    ),
    thing(
        {"type": choice("reasoning")},
        content=_texts("reasoning_text"),
        summary=_texts("summary_text"),
        encrypted_content=refused(),
        **_STATE,
    ),
    thing(
        {"type": choice("function_call"), "call_id": text(1), "name": text(1), "arguments": text()},
        **{"async": refused()},
        **_SOURCE,
        **_STATE,
    ),
    thing(
        {"type": choice("function_call_output"), "call_id": text(1), "output": parts("input_text")},
        name=text(),
        **_SOURCE,
        **_STATE,
    ),
)
_RESPONSE_TOOL = thing(
    {"type": choice("function"), "name": text(1)},
    **FUNCTION,
    allowed_callers=refused(),
    output_schema=refused(),
    defer_loading=only(False),
)
RESPONSES = thing(
    {"model": MODEL, "input": either(text(), array(_ITEM, 1))},
    instructions=text(),
    **streamed(),
    max_output_tokens=whole(1),
    **_HEAT,
    top_logprobs=whole(0, openai.TOP_LOGPROBS_MAX),
    include=array(choice("message.output_text.logprobs")),
    tools=array(_RESPONSE_TOOL),
    tool_choice=TOOL_CHOICE,
    parallel_tool_calls=flag(),
    reasoning=thing(
        {},
        effort=_EFFORT,
        summary=only("auto"),
        generate_summary=only("auto"),
        context=only("auto"),
        mode=only("standard"),
    ),
    **ROUTING,
    max_tool_calls=whole(1),
    metadata={"type": "object", "additionalProperties": text(), "maxProperties": 16},
    **LABELS,
    background=only(False),
    context_management=only([]),
    service_tier=only("auto", "default"),
    store=only(False),
    truncation=only("disabled"),
    text=thing({}, format=only({"type": "text"}), verbosity=only("medium")),
    access_programs=refused(),
    background_options=refused(),
    conversation=refused(),
    image=refused(),
    moderation=refused(),
    previous_response_id=refused(),
    prompt=refused(),
    prompt_cache_options=refused(),
    prompt_cache_retention=refused(),
)

# --- replies -------------------------------------------------------------------------------------------------

_COUNT = whole(0)
USAGE = reply(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": reply({"cached_tokens": _COUNT}),
        "completion_tokens_details": reply({"reasoning_tokens": _COUNT}),
    }
)
_BYTES = array(whole(0, 255))
_TOKEN: dict[str, Schema] = {"token": text(), "logprob": {"type": "number"}, "bytes": _BYTES}
LOGPROBS = array(reply({**_TOKEN, "top_logprobs": array(reply(_TOKEN))}))
REASON = nullable(choice("stop", "length", "tool_calls", "content_filter"))
_NULL: Schema = {"type": "null"}
_TOLD_CALL = reply(
    {"id": text(), "type": choice("function"), "function": reply({"name": text(), "arguments": text()})}
)


def _whole(sort: str, answer: Schema) -> Schema:
    return reply(
        {
            "id": text(1),
            "object": choice(sort),
            "created": whole(0),
            "model": text(),
            "choices": array(answer, 1),
            "usage": USAGE,
        }
    )


COMPLETED_CHAT = _whole(
    "chat.completion",
    reply(
        {
            "index": whole(0),
            "message": reply(
                {"role": choice("assistant"), "content": nullable(text()), "refusal": _NULL},
                reasoning_content=text(),
                reasoning=text(),
                tool_calls=array(_TOLD_CALL, 1),
            ),
            "logprobs": nullable(reply({"content": LOGPROBS, "refusal": _NULL})),
            "finish_reason": REASON,
        }
    ),
)
_OLD_LOGPROBS = reply(
    {
        "tokens": array(text()),
        "token_logprobs": array({"type": "number"}),
        "top_logprobs": array({"type": "object", "additionalProperties": {"type": "number"}}),
        "text_offset": array(whole(0)),
    }
)
COMPLETED = _whole(
    "text_completion",
    reply({"index": whole(0), "text": text(), "logprobs": nullable(_OLD_LOGPROBS), "finish_reason": REASON}),
)
VECTOR = array({"type": "number"})
EMBEDDED = reply(
    {
        "object": choice("list"),
        "data": array(
            reply(
                {
                    "object": choice("embedding"),
                    "index": whole(0),
                    "embedding": either(VECTOR, text(about="base64 of little-endian float32")),
                }
            )
        ),
        "model": text(),
        "usage": reply({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
    }
)
_OWN = {"id": text(1), "status": choice("in_progress", "completed", "incomplete")}
_OUTPUT = either(
    reply(
        {
            "type": choice("reasoning"),
            "summary": array({}),
            "content": array(reply({"type": choice("reasoning_text"), "text": text()})),
            **_OWN,
        }
    ),
    reply(
        {
            "type": choice("message"),
            "role": choice("assistant"),
            "content": array(
                reply(
                    {"type": choice("output_text"), "annotations": array({}), "logprobs": LOGPROBS, "text": text()}
                )
            ),
            **_OWN,
        }
    ),
    reply({"type": choice("function_call"), "call_id": text(), "name": text(), "arguments": text(), **_OWN}),
)
RESPONSE = reply(
    {
        "id": text(1),
        "object": choice("response"),
        "created_at": whole(0),
        "status": choice("completed", "incomplete"),
        "error": _NULL,
        "incomplete_details": nullable(reply({"reason": choice("max_output_tokens", "content_filter")})),
        "model": text(),
        "output": array(_OUTPUT),
        "usage": reply(
            {
                "input_tokens": _COUNT,
                "input_tokens_details": reply({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
                "output_tokens": _COUNT,
                "output_tokens_details": reply({"reasoning_tokens": _COUNT}),
                "total_tokens": _COUNT,
            }
        ),
        "background": choice(False),
        "instructions": nullable(text()),
        "max_output_tokens": nullable(whole(1)),
        "max_tool_calls": nullable(whole(1)),
        "metadata": {"type": "object", "additionalProperties": text()},
        "parallel_tool_calls": flag(),
        "previous_response_id": _NULL,
        "prompt_cache_key": nullable(text()),
        "reasoning": reply({"effort": nullable(_EFFORT), "summary": _NULL}),
        "safety_identifier": nullable(text()),
        "service_tier": choice("default"),
        "store": choice(False),
        "temperature": number(0, 2),
        "text": reply({"format": choice({"type": "text"}), "verbosity": choice("medium")}),
        "tool_choice": choice("none", "auto"),
        "tools": array(
            reply(
                {
                    "type": choice("function"),
                    "name": text(1),
                    "description": nullable(text()),
                    "parameters": nullable(free()),
                    "strict": choice(False),
                }
            )
        ),
        "top_logprobs": whole(0, openai.TOP_LOGPROBS_MAX),
        "top_p": number(0, 1),
        "truncation": choice("disabled"),
        "user": nullable(text()),
    }
)
_MODEL = reply({"id": text(1), "object": choice("model"), "created": choice(0), "owned_by": text(1)})
MODELS = reply({"object": choice("list"), "data": array(_MODEL)})
ERROR = reply(
    {
        "error": reply(
            {"message": text(1), "type": text(1), "param": nullable(text()), "code": nullable(text())},
        )
    }
)

TOOL_EXAMPLE: dict[str, Any] = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}
EXAMPLES: dict[str, dict[str, Any]] = {
    "ChatRequest": {
        "model": "auto",
        "messages": [
            {"role": "system", "content": "s", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "t"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {"5": 1},
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [{"type": "function", "function": TOOL_EXAMPLE}],
    },
    "CompletionRequest": {"model": "auto", "prompt": ["x"], "stream": True, "stream_options": {}, "n": 1},
    "EmbeddingRequest": {"model": "auto", "input": ["x"]},
    "ResponseRequest": {
        "model": "auto",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {
                "type": "reasoning",
                "content": [{"type": "reasoning_text", "text": "r"}],
                "summary": [{"type": "summary_text", "text": "s"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                    {"type": "input_text", "text": "b"},
                ],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        ],
        "stream": True,
        "stream_options": {},
        "tools": [{"type": "function", **TOOL_EXAMPLE}],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "metadata": {"k": "v"},
    },
}
