# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat, openai
from syntrop.common.http.errors import BadRequest, HttpError, InternalFault
from syntrop.common.varlink.errors import InvalidParameter, VarlinkError

MINIMAL: dict[str, Any] = {"model": "m:1", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any) -> chat.GenerateRequest:
    return openai.parse_chat(json.dumps({**MINIMAL, **fields}).encode())


def blamed(body: bytes | None = None, **fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(BadRequest) as caught:
        openai.parse_chat(body if body is not None else json.dumps({**MINIMAL, **fields}).encode())
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
    "reasoning_effort": ["none"],
    "verbosity": ["medium"],
    "service_tier": ["auto", "default"],
    "store": [False],
    "metadata": [{}],
    "user": ["u"],
    "safety_identifier": ["s"],
    "prompt_cache_key": ["k"],
}


@pytest.mark.parametrize("name", NOTHING)
def test_values_that_ask_for_nothing_pass(name: str) -> None:
    for value in [*NOTHING[name], None]:
        parse(**{name: value})


UNBUILT: dict[str, list[Any]] = {
    "n": [2, 1.0, True],
    "logprobs": [True],
    "top_logprobs": [1, False],
    "logit_bias": [{"1": 2}],
    "presence_penalty": [0.5],
    "frequency_penalty": [-1],
    "response_format": [{"type": "json_object"}, {"type": "text", "x": 1}],
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
    "modalities": [["text", "audio"]],
    "audio": [{"voice": "a", "format": "wav"}],
    "prediction": [{"type": "content", "content": "x"}],
    "web_search_options": [{}],
    "reasoning_effort": ["high"],
    "verbosity": ["low"],
    "service_tier": ["flex"],
    "store": [True],
    "metadata": [{"a": "b"}],
    "tier": ["fast"],
    "reasoning_budget": [1],
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
        ({"model": ""}, "model"),
        ({"model": 1}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "odd": 1}]}, "messages[0].odd"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
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
        openai.parse_chat(json.dumps(value).encode())
    except BadRequest as error:
        json.loads(error.encode())


@given(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)))
def test_seeds(seed: int | None) -> None:
    assert 0 <= openai.engine_seed(seed) < 2**53
    assert (openai.engine_seed(seed) == 0) is (seed is None), "0 is the engine's word for any"


def test_a_whole_reply() -> None:
    reply = openai.ChatReply("chatcmpl-1", 5, "m").completion("text", chat.Finished("length", 3, 4))
    assert reply == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "text", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


@pytest.mark.parametrize("usage", [False, True])
def test_chunks(usage: bool) -> None:
    reply = openai.ChatReply("c", 5, "m", include_usage=usage)
    chunks = [reply.first(), reply.delta("a"), *reply.last(chat.Finished("stop", 3, 4))]
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
        ("c", 5, "m", "chat.completion.chunk")
    }
    assert [c["choices"][0]["delta"] for c in chunks[:3]] == [
        {"role": "assistant", "content": None},
        {"content": "a"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:3]] == [None, None, "stop"]
    if usage:
        assert all(c["usage"] is None for c in chunks[:3])
        assert chunks[3]["choices"] == [] and chunks[3]["usage"]["total_tokens"] == 7
    else:
        assert len(chunks) == 3 and not any("usage" in c for c in chunks)


RUNTIME = "io.syntrop.Runtime1."


@pytest.mark.parametrize(
    ("error", "status", "code", "param", "retry"),
    [
        (VarlinkError(RUNTIME + "ModelNotFound", model="x"), 404, "model_not_found", "model", None),
        (
            VarlinkError(RUNTIME + "ContextExceeded", requested=9000, max=8192),
            400,
            "context_length_exceeded",
            "messages",
            None,
        ),
        (VarlinkError(RUNTIME + "InvalidParameter", parameter="top_k"), 400, "unsupported_value", "top_k", None),
        (InvalidParameter("stop"), 400, "unsupported_value", "stop", None),
        (VarlinkError(RUNTIME + "Overloaded", reason="4 of 4"), 429, "overloaded", None, None),
        (VarlinkError(RUNTIME + "Shutdown", reason="stop"), 503, "no_healthy_provider", None, None),
        (VarlinkError(RUNTIME + "GenerationFailed", reason="r"), 502, "provider_unavailable", None, "false"),
        (VarlinkError(RUNTIME + "PermissionDenied"), 502, "provider_unavailable", None, "false"),
        (VarlinkError("io.systemd.System", errno=5), 502, "provider_unavailable", None, "false"),
    ],
)
def test_what_an_engine_says_becomes_a_status(
    error: VarlinkError, status: int, code: str, param: str | None, retry: str | None
) -> None:
    from syntrop.common.http.engine import engine_error

    failure = openai.failure(engine_error(error), started=False)
    assert (failure.status, failure.code, failure.param) == (status, code, param)
    headers = dict(failure.headers)
    assert headers.get("x-should-retry") == retry
    assert ("retry-after" in headers) is (status in (429, 503))


def test_errors_that_are_final() -> None:
    assert dict(openai.failure(chat.Unavailable("x"), started=True).headers) == {"x-should-retry": "false"}
    assert openai.failure(chat.EngineTimeout("x"), started=False).status == 504
    assert openai.failure(chat.Unfit("x"), started=False).status == 503
    fault = InternalFault("req_1")
    assert fault.status == 500 and "req_1" in fault.message
    assert HttpError(429, "x").type == "rate_limit_error"


def test_what_the_engine_is_asked() -> None:
    from syntrop.common.http.engine import parameters
    from syntrop.common.varlink import idl

    plain = parameters(parse())
    assert plain == {
        "model": "m:1",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2**31 - 1,
        "temperature": 1.0,
        "seed": 0,
    }
    full = parameters(parse(max_tokens=3, seed=0, stop="x", top_k=1, top_p=1, min_p=0, repetition_penalty=1))
    assert full["max_tokens"] == 3 and full["seed"] != 0 and full["stop"] == ["x"]
    interface = idl.load("io.syntrop.Runtime1")
    for asked in (plain, full):
        interface.check(interface.methods["Generate"].input, asked)


def test_a_field_given_twice_among_very_many_is_found_in_linear_time() -> None:
    import time

    count = 200_000
    body = "{" + ",".join(f'"k{i}":1' for i in range(count)) + f',"k{count - 1}":1}}'
    started = time.process_time()
    assert blamed(body.encode()) == f"k{count - 1}"
    assert time.process_time() - started < 5, "comparing each with each would take a quarter of an hour"
