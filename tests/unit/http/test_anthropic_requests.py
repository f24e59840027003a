# SPDX-License-Identifier: Apache-2.0
"""What of Anthropic's parameters is honoured, and that all else is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import anthropic, chat
from syntrop.common.http.anthropic_messages import parse_count_tokens, parse_messages
from syntrop.common.http.errors import BadRequest, HttpError

MINIMAL: dict[str, Any] = {"model": "m:1", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def parse(**fields: Any) -> chat.GenerateRequest:
    return parse_messages(json.dumps({**MINIMAL, **fields}).encode())


def refusal(**fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    error = caught.value
    assert error.status == 400
    assert error.param is not None and f"'{error.param}'" in error.message
    return error.param


def said(*messages: dict[str, Any], **fields: Any) -> list[tuple[Any, ...]]:
    return [
        (m.role, m.content, m.reasoning, [(c.id, c.name, c.arguments) for c in m.tool_calls], m.tool_call_id)
        for m in parse(messages=list(messages), **fields).messages or ()
    ]


def test_the_least_that_can_be_asked() -> None:
    request = parse()
    assert (request.model, request.stream, request.max_tokens, request.n) == ("m:1", False, 9, 1)
    assert (request.temperature, request.top_p, request.top_k) == (1.0, None, None)
    assert said(MINIMAL["messages"][0]) == [("user", "hi", None, [], None)]


def test_everything_that_is_honoured() -> None:
    request = parse(
        stream=True,
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        stop_sequences=["a", "b"],
        tools=[{**TOOL, "description": "d", "type": "custom"}, {**TOOL, "name": "g"}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        metadata={"user_id": "u"},
        tier="fast",
        local=True,
    )
    assert (request.stream, request.temperature, request.top_p, request.top_k) == (True, 0.5, 0.25, 7)
    assert (request.stop, request.parallel_tool_calls, request.tool_choice) == (["a", "b"], False, "auto")
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [
        ("f", "d", {"type": "object"}),
        ("g", None, {"type": "object"}),
    ]
    assert (request.routing.tier, request.routing.local) == ("fast", True)
    assert parse(tool_choice={"type": "none"}).tool_choice == "none"


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}}, "max"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8192}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 16384}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "xhigh"}}, "xhigh"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none"),
        ({"output_config": {"effort": "low"}}, "low"),
    ],
)
def test_how_hard_to_think(fields: dict[str, Any], effort: str | None) -> None:
    assert parse(max_tokens=100_000, **fields).reasoning_effort == effort


def test_messages() -> None:
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "citations": None}
    assert said({"role": "user", "content": [text, {"type": "text", "text": "b"}]}, system="s") == [
        ("system", "s", None, [], None),
        ("user", "a\nb", None, [], None),
    ]
    assert said({"role": "user", "content": "x"}, system=[text, text])[0] == ("system", "a\na", None, [], None)
    assert said({"role": "user", "content": "x"}, {"role": "system", "content": [text]})[1][:2] == ("system", "a")


def test_calls_and_their_results() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "ü", "y": [1.5, None]}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "21°", "is_error": False}
    history = (
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "so"}, call, {**call, "id": "t2"}]},
        {
            "role": "user",
            "content": [
                result,
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                {"type": "text", "text": "well?"},
            ],
        },
    )
    arguments = '{"x": "ü", "y": [1.5, null]}'
    assert said(*history) == [
        ("user", "x", None, [], None),
        ("assistant", "so", "hm", [("t1", "f", arguments), ("t2", "f", arguments)], None),
        ("tool", "21°", None, [], "t1"),
        ("tool", "", None, [], "t2"),
        ("user", "well?", None, [], None),
    ]
    assert [m.failed for m in parse(messages=list(history)).messages or ()] == [False, False, False, True, False]


def test_blocks_keep_their_order() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    text = {"type": "text", "text": "a"}
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    told = said(
        {"role": "assistant", "content": [text, thought, thought, call, text, text]},
        {"role": "user", "content": "x"},
    )
    assert told[:3] == [
        ("assistant", "a", None, [], None),
        ("assistant", "", "hm\nhm", [("t", "f", "{}")], None),
        ("assistant", "a\na", None, [], None),
    ]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "begin"}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
        "messages[0].content[0].type",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                }
            ]
        },
        "messages[0].content[0].content[0].type",
    ),
    (
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}]}
            ]
        },
        "messages[0].content[0].input",
    ),
    ({"system": 1}, "system"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.type"),
    ({"tools": [TOOL, TOOL]}, "tools[1]"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "strict": True}]}, "tools[0].strict"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"tools": [{**TOOL, "eager_input_streaming": False}]}, "tools[0].eager_input_streaming"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "output_config.effort"),
    ({"output_config": {"effort": "little"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
    ({"cache_control": {"type": "forever"}}, "cache_control.type"),
    ({"cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control.ttl"),
    ({"metadata": {"user_id": "u", "x": 1}}, "metadata.x"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"speed": "fast"}, "speed"),
    ({"container": "c"}, "container"),
    ({"context_management": {}}, "context_management"),
    ({"diagnostics": {}}, "diagnostics"),
    ({"inference_geo": "eu"}, "inference_geo"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"user_profile_id": "u"}, "user_profile_id"),
    ({"workspace_id": "w"}, "workspace_id"),
    ({"seed": 1}, "seed"),
]


@pytest.mark.parametrize(("fields", "name"), REFUSED)
def test_what_is_refused_is_named(fields: dict[str, Any], name: str) -> None:
    assert refusal(**fields) == name


def test_numbers_that_are_none_in_arguments() -> None:
    block = b'{"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1e999}}'
    body = b'{"model": "m", "max_tokens": 1, "messages": [{"role": "assistant", "content": [%s]}]}' % block
    with pytest.raises(BadRequest) as caught:
        parse_messages(body)
    assert caught.value.param == "messages[0].content[0].input"


@pytest.mark.parametrize(
    ("read", "params"), [(parse_messages, MessageCreateParamsBase), (parse_count_tokens, MessageCountTokensParams)]
)
def test_every_parameter_that_the_client_knows_is_known(read: Any, params: Any) -> None:
    """A value of no sensible type is refused by the parameter's name, and not as a stranger."""
    least = dict(MINIMAL) if read is parse_messages else {k: v for k, v in MINIMAL.items() if k != "max_tokens"}
    for name in params.__annotations__:
        with pytest.raises(BadRequest) as caught:
            read(json.dumps({**least, name: -1.5}).encode())
        assert caught.value.param == name
        assert caught.value.code != "unknown_parameter", name


def test_counting_reads_the_prompt_alone() -> None:
    least = {"model": "m", "messages": MINIMAL["messages"], "tools": [TOOL], "system": "s"}
    request = parse_count_tokens(json.dumps(least).encode())
    assert [m.role for m in request.messages or ()] == ["system", "user"] and request.tools[0].name == "f"
    with pytest.raises(BadRequest) as caught:
        parse_count_tokens(json.dumps({**least, "max_tokens": 1}).encode())
    assert caught.value.param == "max_tokens"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = (*MessageCreateParamsBase.__annotations__, "stream", "role", "type", "mcp_servers")


@given(st.dictionaries(st.sampled_from(NAMES), json_values))
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    for least in ({}, MINIMAL):
        try:
            parse_messages(json.dumps({**least, **fields}).encode("utf-8", "surrogatepass"))
        except BadRequest:
            pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_shape(status: int, kind: str) -> None:
    error = HttpError(status, "why", headers=(("retry-after", "1"),))
    shaped = anthropic.shape(error, "req_1")
    assert json.loads(shaped.encode()) == {
        "type": "error",
        "error": {"type": kind, "message": "why"},
        "request_id": "req_1",
    }
    assert shaped.status == status and shaped.headers == (*error.headers, ("request-id", "req_1"))


@pytest.mark.parametrize(
    ("error", "status", "blamed"),
    [
        (chat.Unhonoured("stop[1]"), 400, "stop_sequences[1]"),
        (chat.Unhonoured("reasoning_effort"), 400, "thinking"),
        (chat.Unhonoured("messages[3].content"), 400, "messages"),
        (chat.Unhonoured("top_k"), 400, "top_k"),
        (chat.Refused("their words", "stop"), 400, "stop"),
        (chat.ContextExceeded(9, 8), 400, "messages"),
        (chat.ModelNotFound("m"), 404, "model"),
        (chat.Overloaded("full"), 529, None),
        (chat.Unavailable("gone"), 503, None),
        (chat.EngineTimeout("slow"), 504, None),
        (chat.GenerationFailed("broke"), 502, None),
    ],
)
def test_what_an_engine_cannot_is_told_in_the_clients_terms(
    error: chat.EngineError, status: int, blamed: str | None
) -> None:
    answer = anthropic.failure(error, started=False)
    assert (answer.status, answer.param) == (status, blamed)
    if isinstance(error, chat.Unhonoured) and not isinstance(error, chat.Refused):
        assert f"'{blamed}'" in answer.message
