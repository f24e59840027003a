# SPDX-License-Identifier: Apache-2.0
"""Ollama's dialect as JSON schemas: what its parsers take, and what its replies are. Pure."""

from __future__ import annotations

from syntrop.common.http import ollama, openai, openai_embeddings
from syntrop.routerd.openapi.openai import FUNCTION, INT64, MODEL, ROUTING, TOOL_EXAMPLE, VECTOR
from syntrop.routerd.openapi.shapes import (
    ANY,
    array,
    choice,
    either,
    flag,
    free,
    number,
    only,
    reply,
    text,
    thing,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.routerd.openapi.shapes import Schema

_NAMES: dict[str, Schema] = {"model": MODEL, "name": text(about="The old name of `model`.")}
_PLACING: dict[str, Schema] = {
    "num_ctx": whole(1, about="Refused where the model's context is smaller, or not known."),
    **{name: only(*values) for name, values in ollama._PLACING.items()},
}
_OPTIONS = thing(
    {},
    temperature=number(0, 2, f"{ollama.TEMPERATURE} unless given."),
    top_p=number(0, 1),
    top_k=whole(0),
    min_p=number(0, 1),
    repeat_penalty=number(0.01, 100),
    presence_penalty=number(-2, 2),
    frequency_penalty=number(-2, 2),
    seed=whole(-INT64, INT64 - 1, "-1: any will do."),
    num_predict=either(whole(-2, -1), whole(1)),
    stop=either(text(1), array(text(1), most=ollama.STOPS_MAX)),
    repeat_last_n=only(-1),
    typical_p=only(1),
    tfs_z=only(1),
    mirostat=only(0),
    mirostat_tau=number(0, 1000),
    mirostat_eta=number(0, 1000),
    penalize_newline=only(True),
    num_keep=whole(-1),
    **_PLACING,
)
_KEEP: dict[str, Schema] = {
    "keep_alive": either(
        {"type": "number", "maximum": ollama.KEEP_MAX}, text(about="A duration, as 5m; negative is for ever.")
    )
}
_COMMON: dict[str, Schema] = {
    "stream": flag("On unless it is false."),
    "format": only(""),
    "truncate": only(False),
    "shift": only(False),
    "options": _OPTIONS,
    "logprobs": flag(),
    "top_logprobs": whole(0, openai.TOP_LOGPROBS_MAX, "Only with `logprobs`."),
    "think": choice(True, False, "low", "medium", "high", "max"),
    **_KEEP,
    **ROUTING,
}


def _named(**fields: Schema) -> Schema:
    """With a model, by its name or its old name."""
    ways = [{"required": [name], "properties": {name: {"type": "string"}}} for name in _NAMES]
    return thing({}, **_NAMES, **fields) | {"anyOf": ways}


_CALL = thing(
    {"function": thing({"name": text(1)}, index=whole(0), description=text(), arguments=free())},
    id=text(),
    type=only("function"),
)
_SILENT: dict[str, Schema] = {"thinking": only(""), "tool_calls": only([])}
_UNANSWERING: dict[str, Schema] = {"tool_name": only(""), "tool_call_id": only("")}
_PICTURES: dict[str, Schema] = {"images": only([])}


def _assistant(given: dict[str, Schema], **maybe: Schema) -> Schema:
    return thing({"role": choice("assistant"), **given}, **maybe, **_UNANSWERING, **_PICTURES)


_MESSAGE = either(
    thing({"role": choice("system", "user"), "content": text()}, **_SILENT, **_UNANSWERING, **_PICTURES),
    _assistant({"content": text()}, thinking=text(), tool_calls=array(_CALL)),
    _assistant({"thinking": text(1)}, content=text(), tool_calls=array(_CALL)),
    _assistant({"tool_calls": array(_CALL, 1)}, content=text(), thinking=text()),
    thing(
        {"role": choice("tool"), "content": text()}, tool_name=text(), tool_call_id=text(), **_SILENT, **_PICTURES
    ),
)
_TOOL = thing({"function": thing({"name": text(1)}, **FUNCTION)}, type=choice("function"))

CHAT = _named(
    messages=array(_MESSAGE, about="Without any the model is loaded, or let go with a `keep_alive` of 0."),
    tools=array(_TOOL),
    **_COMMON,
)
GENERATE = _named(
    prompt=text(about="Without one the model is loaded, or let go with a `keep_alive` of 0."),
    raw=flag("The prompt is continued as it is."),
    system=text(about="Not with `raw`."),
    template=only(""),
    suffix=only(""),
    images=only([]),
    context=only([]),
    width=only(0),
    height=only(0),
    steps=only(0),
    **_COMMON,
)
_OF_VECTORS: dict[str, Schema] = {
    # How tokens are chosen says nothing where none are.
    "options": thing({}, **dict.fromkeys(ollama.SAMPLING, ANY), **_PLACING),
    **_KEEP,
    **ROUTING,
}


def _and(schema: Schema, **given: Schema) -> Schema:
    """With these fields as well, which must be there."""
    return schema | {"properties": schema["properties"] | given, "required": list(given)}


EMBED = _and(
    _named(dimensions=whole(1), truncate=only(False), **_OF_VECTORS),
    input=either(text(1), array(text(1), 1, openai_embeddings.INPUTS_MAX)),
)
EMBEDDINGS = _and(_named(**_OF_VECTORS), prompt=text(1))
SHOW = _named(verbose=flag(), system=only(""), template=only(""), options=only({}))

# --- replies -------------------------------------------------------------------------------------------------

_COUNT = whole(0)
_TIMES: dict[str, Schema] = {"model": text(), "created_at": text(1)}
_ENDED = {
    "done": choice(True),
    "done_reason": choice("stop", "length", "content_filter"),
    **dict.fromkeys(("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"), _COUNT),
    **dict.fromkeys(("eval_count", "eval_duration"), _COUNT),
}
_LOADED = {"done": choice(True), "done_reason": choice("load", "unload")}
_TOKEN: dict[str, Schema] = {"token": text(), "logprob": {"type": "number"}, "bytes": array(whole(0, 255))}
_LOGPROBS = {"logprobs": array(reply({**_TOKEN, "top_logprobs": array(reply(_TOKEN))}))}
_TOLD_CALL = reply({"id": text(1), "function": reply({"index": whole(0), "name": text(1), "arguments": free()})})
_SAID = reply({"role": choice("assistant"), "content": text()}, thinking=text(1), tool_calls=array(_TOLD_CALL, 1))


def _answer(said: dict[str, Schema], **maybe: Schema) -> Schema:
    return either(reply(_TIMES | said | _ENDED, **maybe, **_LOGPROBS), reply(_TIMES | said | _LOADED))


CHATTED = _answer({"message": _SAID})
GENERATED = _answer({"response": text()}, thinking=text(1))
EMBEDDED = reply(
    {
        "model": text(),
        "embeddings": array(VECTOR, 1),
        "total_duration": _COUNT,
        "load_duration": _COUNT,
        "prompt_eval_count": _COUNT,
    }
)
EMBEDDED_ONE = reply({"embedding": VECTOR})
_DETAILS = reply(
    {
        **{name: text() for name in ("parent_model", "format", "family", "parameter_size", "quantization_level")},
        "families": array(text()),
    }
)
_NAMED: dict[str, Schema] = {
    "name": text(1),
    "model": text(1),
    "size": _COUNT,
    "digest": text(),
    "details": _DETAILS,
}
TAGS = reply({"models": array(reply(_NAMED))})
SHOWN = reply(
    {
        **{name: text() for name in ("modelfile", "parameters", "template", "license")},
        "details": _DETAILS,
        "model_info": free(),
        "capabilities": array(choice("completion", "tools", "thinking")),
    }
)
PS = reply({"models": array(reply({**_NAMED, "size_vram": _COUNT, "context_length": _COUNT}))})
VERSION = reply({"version": text(1)})
ERROR = reply({"error": text(1)})

_CALLED = {"function": {"name": "f", "arguments": {}, "index": 0, "description": "d"}}
EXAMPLES: dict[str, dict[str, Any]] = {
    "OllamaChatRequest": {
        "model": "auto",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "x"},
            {"role": "assistant", "thinking": "t", "tool_calls": [_CALLED]},
            {"role": "tool", "content": "r", "tool_name": "f"},
        ],
        "tools": [{"type": "function", "function": TOOL_EXAMPLE}],
        "options": {"temperature": 0},
        "logprobs": True,
        "top_logprobs": 1,
        "keep_alive": "5m",
    },
    "OllamaGenerateRequest": {"model": "auto", "prompt": "x", "options": {}},
    "OllamaEmbedRequest": {"model": "auto", "input": ["x"], "options": {}},
    "OllamaEmbeddingsRequest": {"model": "auto", "prompt": "x", "options": {}},
    "OllamaShowRequest": {"model": "alpha:1"},
}
