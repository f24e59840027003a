# SPDX-License-Identifier: Apache-2.0
"""Every pair of dialects: a chat that each of them can express is read as the same request, whoever wrote it; and
an answer is the same in all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.anthropic_messages import parse_messages
from syntrop.common.http.anthropic_reply import MessageReply
from syntrop.common.http.ollama_chat import parse_chat as parse_ollama
from syntrop.common.http.ollama_reply import ChatReply as OllamaReply
from syntrop.common.http.openai_chat import ChatReply as OpenaiReply
from syntrop.common.http.openai_chat import parse_chat as parse_openai
from syntrop.common.http.openai_responses import ResponseRequest, parse_responses
from syntrop.common.http.openai_responses_reply import ResponseReply

# --- what all can say ------------------------------------------------------------------------------------

texts = st.text(max_size=12)
words = st.text(min_size=1, max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, values, max_size=3)
tools = st.builds(chat.Tool, words, st.none() | texts, objects)


@st.composite
def chats(draw: st.DrawFn) -> list[chat.Message]:
    """Turns of which the last is not an assistant's; every call is answered, in any order."""
    messages = [chat.Message("system", draw(words))] if draw(st.booleans()) else []
    messages.append(chat.Message("user", draw(texts)))
    calls = 0
    for _ in range(draw(st.integers(0, 3))):
        made = [
            chat.ToolCall(f"id_{calls + i}", draw(words), json.dumps(draw(objects), ensure_ascii=False))
            for i in range(draw(st.integers(0, 2)))
        ]
        calls += len(made)
        # An answer that said nothing at all is nobody's.
        text = draw(texts if made else words)
        messages.append(chat.Message("assistant", text, reasoning=draw(st.none() | words), tool_calls=made))
        results = draw(st.permutations(made))
        messages += [chat.Message("tool", draw(texts), tool_call_id=call.id) for call in results]
        if not made or draw(st.booleans()):
            messages.append(chat.Message("user", draw(texts)))
    return messages


@st.composite
def requests(draw: st.DrawFn) -> chat.GenerateRequest:
    request = chat.GenerateRequest(draw(words), draw(chats()))
    request.stream = draw(st.booleans())
    request.max_tokens = draw(st.integers(1, 2**31))
    request.temperature = draw(st.floats(0, 1))
    request.top_p = draw(st.none() | st.floats(0, 1))
    request.reasoning_effort = draw(st.sampled_from([None, "none", "low", "medium", "high", "max"]))
    request.tools = draw(st.lists(tools, max_size=2, unique_by=lambda tool: tool.name))
    request.routing.tier = draw(st.sampled_from([None, "fast", "hard"]))
    request.routing.local = draw(st.booleans())
    return request


def seen(request: chat.GenerateRequest) -> dict[str, Any]:
    """All of a request, to be compared."""
    value = {name: getattr(request, name) for name in chat.GenerateRequest.__slots__}
    value["messages"] = [
        {name: getattr(message, name) for name in chat.Message.__slots__ if name != "tool_calls"}
        | {"calls": [(call.id, call.name, call.arguments) for call in message.tool_calls]}
        for message in request.messages or ()
    ]
    value["tools"] = [(tool.name, tool.description, tool.parameters) for tool in request.tools]
    value["routing"] = (request.routing.tier, request.routing.local)
    return value


# --- how each says it ------------------------------------------------------------------------------------


def common(request: chat.GenerateRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "stream": request.stream,
        "tier": request.routing.tier,
        "local": request.routing.local,
    }


def function(tool: chat.Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def as_openai(request: chat.GenerateRequest) -> dict[str, Any]:
    messages = []
    for one in request.messages or ():
        message: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.reasoning is not None:
            message["reasoning_content"] = one.reasoning
        if one.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in one.tool_calls
            ]
        if one.tool_call_id is not None:
            message["tool_call_id"] = one.tool_call_id
        messages.append(message)
    return {
        **common(request),
        "messages": messages,
        "max_completion_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop or None,
        "reasoning_effort": request.reasoning_effort,
        "tools": [{"type": "function", "function": function(tool)} for tool in request.tools],
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
    }


def as_responses(request: chat.GenerateRequest) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for one in request.messages or ():
        if one.reasoning is not None:
            items.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": one.reasoning}]})
        if one.role == "tool":
            items.append({"type": "function_call_output", "call_id": one.tool_call_id, "output": one.content})
            continue
        if one.content or not one.tool_calls:
            items.append({"role": one.role, "content": one.content})
        items += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in one.tool_calls
        ]
    return {
        **common(request),
        "input": items,
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "reasoning": {"effort": request.reasoning_effort},
        "tools": [{"type": "function", **function(tool)} for tool in request.tools],
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
    }


def as_anthropic(request: chat.GenerateRequest) -> dict[str, Any]:
    system, turns = None, []
    for one in request.messages or ():
        if one.role == "system":
            system = one.content
            continue
        role = "assistant" if one.role == "assistant" else "user"
        blocks: list[dict[str, Any]] = []
        if one.role == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": one.tool_call_id, "content": one.content})
        else:
            if one.reasoning is not None:
                blocks.append({"type": "thinking", "thinking": one.reasoning, "signature": ""})
            if one.content or not one.tool_calls:
                blocks.append({"type": "text", "text": one.content})
            blocks += [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
                for call in one.tool_calls
            ]
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    choice: dict[str, Any] = {"type": request.tool_choice}
    if request.tool_choice == "auto":
        choice["disable_parallel_tool_use"] = not request.parallel_tool_calls
    body = {
        **common(request),
        "system": system,
        "messages": turns,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop_sequences": request.stop,
        "tools": [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ],
        "tool_choice": choice,
    }
    if request.reasoning_effort == "none":
        body["thinking"] = {"type": "disabled"}
    elif request.reasoning_effort is not None:
        body["output_config"] = {"effort": request.reasoning_effort}
    return body


def as_ollama(request: chat.GenerateRequest) -> dict[str, Any]:
    messages = []
    for one in request.messages or ():
        message: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.reasoning is not None:
            message["thinking"] = one.reasoning
        if one.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
                for call in one.tool_calls
            ]
        if one.tool_call_id is not None:
            message["tool_call_id"] = one.tool_call_id
        messages.append(message)
    effort = request.reasoning_effort
    options = {
        "num_predict": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop,
    }
    return {
        **common(request),
        "messages": messages,
        "options": options,
        "think": False if effort == "none" else effort,
        "tools": [{"type": "function", "function": function(tool)} for tool in request.tools],
    }


Say = Callable[[chat.GenerateRequest], dict[str, Any]]
Read = Callable[[bytes], chat.GenerateRequest]
DIALECTS: dict[str, tuple[Say, Read]] = {
    "chat": (as_openai, parse_openai),
    "responses": (as_responses, parse_responses),
    "messages": (as_anthropic, parse_messages),
    "ollama": (as_ollama, parse_ollama),
}
# What only some know; the others say nothing of it.
STOPS = {"chat", "messages", "ollama"}
CHOICES = {"chat", "responses", "messages"}


@pytest.mark.parametrize(("first", "second"), list(permutations(DIALECTS, 2)))
@settings(max_examples=40, deadline=None)
@given(asked=requests(), data=st.data())
def test_what_one_says_another_says_alike(
    first: str, second: str, asked: chat.GenerateRequest, data: st.DataObject
) -> None:
    pair = {first, second}
    if pair <= STOPS:
        asked.stop = data.draw(st.lists(words, max_size=4))
        asked.top_k = data.draw(st.none() | st.integers(0, 99))
    if pair <= CHOICES:
        asked.tool_choice = data.draw(st.sampled_from(["auto", "none"]))
        asked.parallel_tool_calls = asked.tool_choice == "none" or data.draw(st.booleans())
    say, read = DIALECTS[first]
    once = read(json.dumps(say(asked)).encode())
    assert seen(once) == seen(asked)
    say, read = DIALECTS[second]
    assert seen(read(json.dumps(say(once), ensure_ascii=False).encode())) == seen(once)


# --- answers ---------------------------------------------------------------------------------------------

Heard = tuple[str, str, list[tuple[str, Any]], str, int]


def _openai(value: dict[str, Any]) -> Heard:
    (choice,) = value["choices"]
    message = choice["message"]
    calls = [
        (c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ]
    used = value["usage"]["completion_tokens"]
    return message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"], used


def _responses(value: dict[str, Any]) -> Heard:
    text = thought = ""
    calls = []
    for item in value["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
        elif item["type"] == "reasoning":
            thought += "".join(part["text"] for part in item["content"])
        else:
            text += "".join(part["text"] for part in item["content"])
    incomplete = (value["incomplete_details"] or {}).get("reason")
    reason = "length" if incomplete else "tool_calls" if calls else "stop"
    return text, thought, calls, reason, value["usage"]["output_tokens"]


def _anthropic(value: dict[str, Any]) -> Heard:
    blocks = value["content"]
    reason = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}[value["stop_reason"]]
    return (
        "".join(one["text"] for one in blocks if one["type"] == "text"),
        "".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        [(one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"],
        reason,
        value["usage"]["output_tokens"],
    )


def _ollama(value: dict[str, Any]) -> Heard:
    message = value["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
    reason = "tool_calls" if calls else value["done_reason"]
    return message["content"], message.get("thinking", ""), calls, reason, value["eval_count"]


@given(st.text(), st.text(), st.lists(st.tuples(words, objects), max_size=3), st.booleans(), st.integers(0, 99))
def test_an_answer_is_the_same_in_all(
    text: str, thought: str, calls: list[tuple[str, dict[str, Any]]], cut_off: bool, used: int
) -> None:
    events: list[chat.Event] = []
    events += [chat.Reasoning(thought)] if thought else []
    events += [chat.Delta(text)] if text else []
    for i, (name, arguments) in enumerate(calls):
        events += [chat.CallStarted(i, f"c{i}", name), chat.CallArguments(i, json.dumps(arguments))]
    reason = "tool_calls" if calls else "length" if cut_off else "stop"
    events.append(chat.Finished(reason, 7, used))
    asked = chat.GenerateRequest("m", [chat.Message("user", "x")])
    responses = ResponseRequest("m", [chat.Message("user", "x")])
    said = (text, thought, calls, reason, used)
    assert _openai(OpenaiReply("c", 1, asked).whole(events)) == said
    assert _anthropic(MessageReply("msg_1", 1, asked).whole(events)) == said
    assert _ollama(OllamaReply("", 1, asked).whole(events)) == said
    assert _responses(ResponseReply("r", 1, responses).whole(events)) == said
