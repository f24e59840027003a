# SPDX-License-Identifier: Apache-2.0
"""Requests as Anthropic's Messages API takes them. Pure.

What it has no word for is refused by name, unless the value asks for nothing. Thoughts of earlier turns are not
sent: it takes only those that it signed itself. System messages are put together at the front, the only place
that it has for them.
"""

from __future__ import annotations

import json

from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 32_000  # tokens of an answer whose length is left open; the API asks for a number, see `longest`
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 30_976}  # tokens of thought
_LEAST_BUDGET = 1_024


def generate_body(request: chat.GenerateRequest, longest: int = LONGEST) -> dict[str, Any]:
    """`longest`: tokens of an answer whose length is left open. Raises Unhonoured."""
    _refuse(request)
    body = count_body(request)
    body["max_tokens"] = request.max_tokens or longest
    # 1 is its own default, and some models refuse it beside `top_p`.
    if request.temperature is not None and request.temperature != 1:
        if request.temperature > 1:
            raise chat.Unhonoured("temperature", "Anthropic's models take 0 to 1")
        body["temperature"] = request.temperature
    if request.top_p is not None and request.top_p != 1:
        body["top_p"] = request.top_p
    if request.top_k:
        body["top_k"] = request.top_k
    if request.stop:
        body["stop_sequences"] = request.stop
    budget = _BUDGETS.get(request.reasoning_effort or "none")
    if budget is not None:
        budget = min(budget, body["max_tokens"] - 1)
        if budget < _LEAST_BUDGET:
            least = f"thinking takes a 'max_tokens' over {_LEAST_BUDGET}"
            raise chat.Unhonoured("reasoning_effort", least)
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    body["stream"] = True
    return body


def count_body(request: chat.GenerateRequest) -> dict[str, Any]:
    """What makes up the prompt. Raises Unhonoured."""
    if request.messages is None:
        raise chat.Unhonoured("prompt", "Anthropic's models take chats only")
    body: dict[str, Any] = {"model": request.model}
    system = [message.content for message in request.messages if message.role == "system"]
    if any(system):
        body["system"] = "\n\n".join(filter(None, system))
    body["messages"] = _messages(request.messages)
    if request.messages[-1].role == "assistant":
        # It would be taken for the beginning of the answer.
        raise chat.Unhonoured("messages", "with Anthropic's models they may not end with the assistant's")
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        choice: dict[str, Any] = {"type": request.tool_choice}
        if not request.parallel_tool_calls and request.tool_choice != "none":
            choice["disable_parallel_tool_use"] = True
        body["tool_choice"] = choice
    return body


def _refuse(request: chat.GenerateRequest) -> None:
    asked = {
        "seed": request.seed is not None,
        "logprobs": request.top_logprobs is not None,
        "logit_bias": bool(request.logit_bias),
        "presence_penalty": bool(request.presence_penalty),
        "frequency_penalty": bool(request.frequency_penalty),
        "repetition_penalty": request.repetition_penalty not in (None, 1),
        "min_p": bool(request.min_p),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise chat.Unhonoured(name, "Anthropic's API has no such parameter")


def _tool(tool: chat.Tool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": tool.name,
        "input_schema": tool.parameters or {"type": "object", "properties": {}},
    }
    if tool.description:
        told["description"] = tool.description
    return told


def _messages(messages: list[chat.Message]) -> list[dict[str, Any]]:
    """In turns: the results of several calls stand in one message, as they must."""
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        if message.name is not None and message.role != "tool":
            raise chat.Unhonoured(f"messages[{index}].name", "Anthropic's API has no names for speakers")
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, index)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: chat.Message, index: int) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": message.content}] if message.content else []
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        return [result | {"is_error": True} if message.failed else result]
    return text + [_use(call, f"messages[{index}].tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]


def _use(call: chat.ToolCall, place: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise chat.Unhonoured(f"{place}.function.arguments", "Anthropic's API takes a JSON object here")
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
