# SPDX-License-Identifier: Apache-2.0
"""Requests in the terms of `io.syntrop.Runtime1`, and its errors in ours. Pure."""

from __future__ import annotations

from syntrop.common.http import chat
from syntrop.common.http.fields import INTEGER_MAX
from syntrop.common.varlink.errors import InvalidParameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.varlink.errors import VarlinkError

RUNTIME = "io.syntrop.Runtime1"
_UNBOUNDED = 2**31 - 1  # tokens: until the model stops, or its context is full

# What a parameter of the engine's is called in a request, where the names differ.
_NAMES = {"prompt_ids": "prompt", "template_variables": "reasoning_effort", "top_logprobs": "logprobs"}


def parameters(request: chat.GenerateRequest, choice: int = 0) -> dict[str, Any]:
    """A request as `Generate` takes it, for one of its choices. What the client left open is left to the engine,
    but for two: the engine's default of 256 tokens would cut answers short, and its seed 0 means that any will do.
    """
    given = {
        **prompt(request),
        "max_tokens": request.max_tokens or _UNBOUNDED,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in request.logit_bias.items()] or None,
        "top_logprobs": request.top_logprobs,
        "seed": engine_seed(request.seed, choice),
        "stop": request.stop or None,
        "priority": request.routing.priority,
        "leased_bytes": request.routing.leased,
        "announce": request.stream or None,
    }
    return _without_nulls(given)


def prompt(request: chat.GenerateRequest) -> dict[str, Any]:
    """The model and what it is to read, as `Generate` and `CountTokens` take them."""
    if request.messages is None:
        name = "prompt" if isinstance(request.prompt, str) else "prompt_ids"
        return {"model": request.model, name: request.prompt}
    return _without_nulls(
        {
            "model": request.model,
            "messages": [_message(message) for message in request.messages],
            "tools": [_tool(tool) for tool in callable_tools(request)] or None,
            "template_variables": _variables(request.reasoning_effort),
        }
    )


def callable_tools(request: chat.GenerateRequest) -> list[chat.Tool]:
    """The tools that the model may call: those that it may not are not shown to it."""
    return [] if request.tool_choice == "none" else request.tools


def engine_seed(seed: int | None, choice: int = 0) -> int:
    """A client's seed as an engine takes it: 53 bits, where 0 would mean that any will do. Choices differ."""
    return 0 if seed is None else (seed + choice) % INTEGER_MAX + 1


def _variables(effort: str | None) -> str | None:
    """How hard to think, under the names that templates know it by: a switch, or a word."""
    if effort is None:
        return None
    if effort == "none":
        return '{"enable_thinking":false,"thinking":false}'
    return f'{{"enable_thinking":true,"thinking":true,"reasoning_effort":"{effort}"}}'


def _message(message: chat.Message) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return _without_nulls(
        {
            "role": message.role,
            "content": None if calls and not message.content else message.content,
            "name": message.name,
            "reasoning_content": message.reasoning,
            "tool_calls": calls or None,
            "tool_call_id": message.tool_call_id,
        }
    )


def _tool(tool: chat.Tool) -> dict[str, Any]:
    import json

    schema = None if tool.parameters is None else json.dumps(tool.parameters, ensure_ascii=False)
    return _without_nulls({"name": tool.name, "description": tool.description, "parameters": schema})


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def engine_error(error: VarlinkError) -> chat.EngineError:
    """What an error reply of the engine means to a client. Detail that is the engine's own stays out."""
    given = error.parameters
    if isinstance(error, InvalidParameter) or error.name == "InvalidParameter":
        return _unhonoured(str(given.get("parameter", "")), given.get("reason"))
    if error.error.rpartition(".")[0] != RUNTIME:
        return chat.GenerationFailed("The engine failed; its log has the detail.")
    match error.name:
        case "ModelNotFound":
            return chat.ModelNotFound(given["model"])
        case "ContextExceeded":
            return chat.ContextExceeded(given["requested"], given["max"])
        case "Overloaded":
            return chat.Overloaded(f"The engine is busy: {given['reason']}")
        case "Shutdown":
            return chat.Unavailable(f"The engine is going away: {given['reason']}")
        case "PermissionDenied":
            return chat.GenerationFailed("The engine does not let the router generate.")
        case "HardwareIncompatible":
            return chat.Unfit(f"This machine cannot run the model: {given['deficit']}")
        case _:
            return chat.GenerationFailed(f"The engine failed: {given.get('reason', error.name)}")


def _unhonoured(parameter: str, reason: str | None) -> chat.Unhonoured:
    word = parameter.partition(".")[0].partition("[")[0]
    return chat.Unhonoured(_NAMES.get(word, word) + parameter[len(word) :], reason)
