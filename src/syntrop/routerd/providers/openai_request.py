# SPDX-License-Identifier: Apache-2.0
"""Requests as OpenAI's API and the servers that are compatible to it take them. Pure.

`official` is OpenAI's own service. It differs from the others in names, and it refuses what it does not know:
thoughts that are handed back, and the samplers that local engines have besides.
"""

from __future__ import annotations

from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_official(host: str) -> bool:
    return host == "api.openai.com" or host.endswith((".api.openai.com", ".openai.azure.com"))


def generate_path(request: chat.GenerateRequest) -> str:
    return "/completions" if request.messages is None else "/chat/completions"


def generate_body(request: chat.GenerateRequest, *, official: bool) -> dict[str, Any]:
    """What the client left open stays open. Raises Unhonoured."""
    body: dict[str, Any] = {"model": request.model}
    if request.messages is None:
        body["prompt"] = request.prompt
        if request.top_logprobs is not None:
            body["logprobs"] = request.top_logprobs
        length = "max_tokens"
    else:
        body["messages"] = [_message(message, official=official) for message in request.messages]
        if request.top_logprobs is not None:
            body["logprobs"] = True
            body["top_logprobs"] = request.top_logprobs
        _tools(request, body)
        length = "max_completion_tokens" if official else "max_tokens"
    given = {
        length: request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in request.logit_bias.items()} or None,
        "seed": request.seed,
        "stop": request.stop or None,
        "reasoning_effort": request.reasoning_effort,
        "n": request.n if request.n > 1 else None,
    }
    beyond = {
        "top_k": request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "repeat_penalty": request.repetition_penalty,  # the same to llama.cpp
    }
    if official:
        for name, value in beyond.items():
            if value:
                raise chat.Unhonoured(name, "OpenAI's API has no such parameter")
    else:
        given |= beyond
    body |= {name: value for name, value in given.items() if value is not None}
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    return body


def _tools(request: chat.GenerateRequest, body: dict[str, Any]) -> None:
    if not request.tools:
        return
    body["tools"] = [{"type": "function", "function": _function(tool)} for tool in request.tools]
    if request.tool_choice != "auto":
        body["tool_choice"] = request.tool_choice
    if not request.parallel_tool_calls:
        body["parallel_tool_calls"] = False


def _function(tool: chat.Tool) -> dict[str, Any]:
    given = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {name: value for name, value in given.items() if value is not None}


def _message(message: chat.Message, *, official: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        told["name"] = message.name
    if message.reasoning and not official:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        told["content"] = message.content or None
        told["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in message.tool_calls
        ]
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    return told


def embed_body(request: chat.EmbedRequest) -> dict[str, Any]:
    # As numbers: fewer servers know base64, and some of them answer wrongly with it.
    body: dict[str, Any] = {"model": request.model, "input": request.inputs, "encoding_format": "float"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    return body
