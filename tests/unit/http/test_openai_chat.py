# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.errors import BadRequest
from syntrop.common.http.openai_chat import parse_chat

MINIMAL: dict[str, Any] = {"model": "m:1", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any) -> chat.GenerateRequest:
    return parse_chat(json.dumps({**MINIMAL, **fields}).encode())


def blamed(body: bytes | None = None, **fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(BadRequest) as caught:
        parse_chat(body if body is not None else json.dumps({**MINIMAL, **fields}).encode())
    error = caught.value.body()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if error["param"] is not None:
        assert error["param"] in error["message"]
    param: str | None = error["param"]
    return param


def test_the_least_that_can_be_asked() -> None:
    request = parse()
    assert (request.model, request.stream, request.include_usage) == ("m:1", False, False)
    assert [(m.role, m.content) for m in request.messages] == [("user", "hi")]
    assert (request.max_tokens, request.temperature, request.top_p, request.seed) == (None, 1.0, None, None)
    assert request.stop == []


def test_every_parameter_that_is_honoured() -> None:
    request = parse(
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        seed=-3,
        stop=["a", "b"],
    )
    assert request.stream and request.include_usage
    assert request.max_tokens == 7, "max_completion_tokens beats max_tokens"
    assert (request.temperature, request.top_p, request.top_k, request.min_p) == (0.0, 0.5, 40, 0.1)
    assert (request.repetition_penalty, request.seed, request.stop) == (1.1, -3, ["a", "b"])
    assert parse(stop="x").stop == ["x"]
    assert parse(max_tokens=5).max_tokens == 5


NOTHING: dict[str, list[Any]] = {
    "n": [1],
    "logprobs": [False],
    "top_logprobs": [0],
    "logit_bias": [{}],
    "presence_penalty": [0, 0.0],
    "frequency_penalty": [0, 0.0],
    "response_format": [{"type": "text"}],
    "tools": [[]],
    "functions": [[]],
    "tool_choice": ["none", "auto"],
    "function_call": ["none"],
    "parallel_tool_calls": [True, False],
    "modalities": [["text"]],
    "verbosity": ["medium"],
    "service_tier": ["auto", "default"],
    "store": [False],
    "metadata": [{}],
    "user": ["u"],
    "safety_identifier": ["s"],
    "prompt_cache_key": ["k"],
    "tier": ["auto"],
    "local": [False],
}


@pytest.mark.parametrize("name", NOTHING)
def test_values_that_ask_for_nothing_pass(name: str) -> None:
    for value in [*NOTHING[name], None]:
        parse(**{name: value})


UNBUILT: dict[str, list[Any]] = {
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, {"type": "text", "x": 1}],
    "functions": [[{"name": "f"}]],
    "function_call": ["f", {"name": "f"}],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}, {"type": "allowed_tools"}],
    "modalities": [["text", "audio"]],
    "audio": [{"voice": "a", "format": "wav"}],
    "prediction": [{"type": "content", "content": "x"}],
    "web_search_options": [{}],
    "verbosity": ["low"],
    "service_tier": ["flex"],
    "store": [True],
    "metadata": [{"a": "b"}],
    "moderation": [{}],
    "prompt_cache_options": [{}],
    "prompt_cache_retention": ["24h"],
    "reasoning_budget": [1],
    "reasoning_content": ["x"],
    "nonsense": [None, 1],
}


@pytest.mark.parametrize("name", UNBUILT)
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    for value in UNBUILT[name]:
        assert blamed(**{name: value}) == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 1}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "odd": 1}]}, "messages[0].odd"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
        ),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages[0].refusal"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools[1]"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": True}, "n"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"1": None}}, "logit_bias.1"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"tier": "slow"}, "tier"),
        ({"local": "yes"}, "local"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": ""}, "stop"),
    ],
)
def test_wrong_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert blamed(**fields) == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"x"', None),
        (b"\xff{}", None),
        (b'{"model": NaN}', None),
        (b'{"model": "a", "model": "b"}', "model"),
        (b"[" * 100_000, None),
        (b'{"seed": ' + b"1" * 5000 + b"}", None),
    ],
)
def test_bodies_that_are_no_json_object(body: bytes, param: str | None) -> None:
    assert blamed(body) == param


def test_roles_and_parts() -> None:
    request = parse(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}]},
            {"role": "user", "name": "n", "content": [{"type": "text", "text": t} for t in ("a", "ü")]},
            {"role": "assistant", "content": "x", "refusal": None, "tool_calls": [], "reasoning": "r"},
            {"role": "assistant", "content": "", "reasoning_content": "rc"},
        ]
    )
    assert [m.role for m in request.messages] == ["system", "system", "user", "assistant", "assistant"]
    assert request.messages[2].content == "a\nü" and request.messages[2].name == "n"
    assert [m.reasoning for m in request.messages[3:]] == ["r", "rc"]


def test_tools_and_their_answers() -> None:
    request = parse(
        messages=[
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a":1}'}}
                ],
                "reasoning": "hm",
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
        ],
        tools=[
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g", "strict": False}},
        ],
        tool_choice="none",
        parallel_tool_calls=False,
    )
    assert request.messages is not None
    called, answered = request.messages[1:]
    assert (called.content, called.reasoning) == ("", "hm")
    assert [(c.id, c.name, c.arguments) for c in called.tool_calls] == [("c1", "f", '{"a":1}')]
    assert (answered.role, answered.tool_call_id, answered.content) == ("tool", "c1", "sunny")
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [
        ("f", "d", {"type": "object"}),
        ("g", None, None),
    ]
    assert (request.tool_choice, request.parallel_tool_calls) == ("none", False)


def test_what_is_sampled_and_told() -> None:
    request = parse(
        n=3,
        logprobs=True,
        top_logprobs=2,
        logit_bias={"7": -100, "50256": 1.5},
        presence_penalty=1,
        frequency_penalty=-0.5,
        reasoning_effort="xhigh",
        tier="hard",
        local=True,
    )
    assert (request.n, request.top_logprobs, request.logit_bias) == (3, 2, {7: -100.0, 50256: 1.5})
    assert (request.presence_penalty, request.frequency_penalty) == (1.0, -0.5)
    assert (request.reasoning_effort, request.routing.tier, request.routing.local) == ("xhigh", "hard", True)
    assert parse(logprobs=True).top_logprobs == 0, "those of the chosen tokens alone"
    assert parse(tier="auto").routing.tier is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from([*UNBUILT, *NOTHING, "model", "messages", "role", "content", "stream", "stop"]), x
            )
        ),
    )
)
def test_no_json_breaks_the_parser(value: object) -> None:
    try:
        parse_chat(json.dumps(value).encode())
    except BadRequest as error:
        json.loads(error.encode())


def test_a_field_given_twice_among_very_many_is_found_in_linear_time() -> None:
    import time

    count = 200_000
    body = "{" + ",".join(f'"k{i}":1' for i in range(count)) + f',"k{count - 1}":1}}'
    started = time.process_time()
    assert blamed(body.encode()) == f"k{count - 1}"
    assert time.process_time() - started < 5, "comparing each with each would take a quarter of an hour"
