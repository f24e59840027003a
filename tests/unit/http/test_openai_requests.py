# SPDX-License-Identifier: Apache-2.0
"""Requests to OpenAI's routes besides chats: what is honoured, what is refused, and by which name."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

from syntrop.common.http import chat
from syntrop.common.http.errors import BadRequest
from syntrop.common.http.openai_chat import parse_chat
from syntrop.common.http.openai_completions import parse_completions
from syntrop.common.http.openai_embeddings import embeddings, parse_embeddings
from syntrop.common.http.openai_models import model, models
from syntrop.common.http.openai_responses import ResponseRequest, parse_responses

LEAST: dict[Callable[[bytes], Any], dict[str, Any]] = {
    parse_chat: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    parse_completions: {"model": "m", "prompt": "x"},
    parse_embeddings: {"model": "m", "input": "x"},
    parse_responses: {"model": "m", "input": "x"},
}
DOCUMENTED = {
    parse_chat: ChatParams,
    parse_completions: CompletionParams,
    parse_embeddings: EmbeddingCreateParams,
    parse_responses: ResponseParams,
}


def blamed(parse: Callable[[bytes], Any], **fields: Any) -> str | None:
    with pytest.raises(BadRequest) as caught:
        parse(json.dumps({**LEAST[parse], **fields}).encode())
    param = caught.value.param
    assert param is None or param in caught.value.message
    return param


@pytest.mark.parametrize("parse", DOCUMENTED, ids=lambda parse: parse.__name__)
def test_every_documented_parameter_is_known_by_name(parse: Callable[[bytes], Any]) -> None:
    """A value of no sense is refused as such, and never as a parameter that we have not heard of."""
    for name in DOCUMENTED[parse].__annotations__:
        with pytest.raises(BadRequest) as caught:
            parse(json.dumps({**LEAST[parse], name: {"odd": [object.__name__]}}).encode())
        assert caught.value.code != "unknown_parameter" or caught.value.param == f"{name}.odd", name
        assert (caught.value.param or "").startswith(name)
        if name not in LEAST[parse]:
            parse(json.dumps({**LEAST[parse], name: None}).encode())


NAMES = sorted({name for params in DOCUMENTED.values() for name in params.__annotations__})
INNER = ["role", "content", "type", "text", "name", "id", "call_id", "output", "summary", "function", "arguments",
         "include_usage", "effort", "tool_calls", "1"]  # fmt: skip
WORDS = ["m", "user", "assistant", "tool", "message", "function_call", "function_call_output", "reasoning", "text",
         "function", "input_text", "output_text", "auto", "none", "float", "base64"]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
names = st.sampled_from(INNER) | st.text(max_size=3)
anything = st.recursive(
    scalars | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner),
    max_leaves=12,
)


@pytest.mark.parametrize("parse", LEAST, ids=lambda parse: parse.__name__)
@given(st.dictionaries(st.sampled_from(NAMES), anything, max_size=6), st.booleans())
def test_any_json_is_a_request_or_an_error_that_names_a_field(
    parse: Callable[[bytes], Any], fields: dict[str, Any], whole: bool
) -> None:
    try:
        parse(json.dumps({**LEAST[parse], **fields} if whole else fields).encode())
    except BadRequest as error:
        json.loads(error.encode())
        assert error.param is not None and error.param in error.message


# --- completions -----------------------------------------------------------------------------------------


def completions(**fields: Any) -> list[chat.GenerateRequest]:
    return parse_completions(json.dumps({**LEAST[parse_completions], **fields}).encode())


def test_prompts_in_every_form() -> None:
    for given_, prompts in [
        ("x", ["x"]),
        (["x", "y"], ["x", "y"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ]:
        requests = completions(prompt=given_)
        assert [one.prompt for one in requests] == prompts
        assert all(one.messages is None for one in requests)


def test_what_completions_honour() -> None:
    (one,) = completions()
    assert (one.max_tokens, one.temperature, one.top_logprobs, one.n) == (16, 1.0, None, 1)
    two = completions(
        prompt=["a", "b"],
        n=2,
        best_of=2,
        max_tokens=3,
        logprobs=0,
        stop="x",
        seed=4,
        echo=False,
        suffix="",
        logit_bias={"1": 2},
        stream=True,
        stream_options={"include_usage": True},
    )
    for request in two:
        assert (request.n, request.max_tokens, request.top_logprobs, request.stop) == (2, 3, 0, ["x"])
        assert (request.seed, request.logit_bias, request.include_usage) == (4, {1: 2.0}, True)
    assert completions(suffix=None, echo=None, user="u")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
    ],
)
def test_what_completions_refuse(fields: dict[str, Any], param: str) -> None:
    assert blamed(parse_completions, **fields) == param


# --- embeddings ------------------------------------------------------------------------------------------


def test_inputs_in_every_form() -> None:
    for given_, inputs in [("x", ["x"]), (["x", "y"], ["x", "y"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])]:
        request = parse_embeddings(json.dumps({"model": "m", "input": given_, "dimensions": 3}).encode())
        assert (request.inputs, request.dimensions, request.base64) == (inputs, 3, False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"n": 1}, "n"),
    ],
)
def test_what_embeddings_refuse(fields: dict[str, Any], param: str) -> None:
    assert blamed(parse_embeddings, **fields) == param


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1), min_size=1))
def test_vectors_as_numbers_and_as_base64(vectors: list[list[float]]) -> None:
    for form in ("float", "base64"):
        request = parse_embeddings(json.dumps({"model": "m", "input": "x", "encoding_format": form}).encode())
        told = embeddings(request, chat.Embeddings("m", vectors, 5))
        assert told["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        assert [one["index"] for one in told["data"]] == list(range(len(vectors)))
        found = [one["embedding"] for one in told["data"]]
        if form == "base64":
            raw = [base64.b64decode(one) for one in found]
            found = [list(struct.unpack(f"<{len(one) // 4}f", one)) for one in raw]
        else:
            CreateEmbeddingResponse.model_validate(told)
        assert found == vectors


def test_models() -> None:
    assert models(["a", "b"])["data"] == [model("a"), model("b")]
    assert set(model("a")) == {"id", "object", "created", "owned_by"}


# --- responses -------------------------------------------------------------------------------------------


def responses(**fields: Any) -> ResponseRequest:
    return parse_responses(json.dumps({**LEAST[parse_responses], **fields}).encode())


def shape(request: ResponseRequest) -> list[tuple[Any, ...]]:
    assert request.messages is not None
    return [
        (m.role, m.content, m.reasoning, [(c.id, c.name, c.arguments) for c in m.tool_calls], m.tool_call_id)
        for m in request.messages
    ]


def test_items_become_messages() -> None:
    request = responses(
        instructions="be brief",
        input=[
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": '{"a":1}', "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "so"}]},
            {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c3", "output": ""},
        ],
    )
    assert shape(request) == [
        ("system", "be brief", None, [], None),
        ("system", "d", None, [], None),
        ("user", "a\nb", None, [], None),
        ("assistant", "I look", "hm", [("c1", "f", "{}"), ("c2", "g", '{"a":1}')], None),
        ("tool", "one", None, [], "c1"),
        ("tool", "two", None, [], "c2"),
        ("assistant", "", "so", [("c3", "f", "{}")], None),
        ("tool", "", None, [], "c3"),
    ]


def test_our_own_output_may_be_handed_back() -> None:
    from syntrop.common.http.openai_responses_reply import ResponseReply

    events: list[chat.Event] = [
        chat.Reasoning("hm"),
        chat.Delta("I look"),
        chat.CallStarted(0, "c1", "f"),
        chat.CallArguments(0, "{}"),
        chat.Finished("tool_calls", 1, 1),
    ]
    output = ResponseReply("resp_1", 5, responses()).whole(events)["output"]
    answered = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    assert shape(responses(input=[{"role": "user", "content": "?"}, *output, answered])) == [
        ("user", "?", None, [], None),
        ("assistant", "I look", "hm", [("c1", "f", "{}")], None),
        ("tool", "x", None, [], "c1"),
    ]


def test_what_responses_honour() -> None:
    request = responses(
        stream=True,
        stream_options={"include_obfuscation": False},
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=3,
        include=["message.output_text.logprobs"],
        tools=[{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": False}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "high", "summary": "auto"},
        metadata={"a": "b"},
        text={"format": {"type": "text"}, "verbosity": "medium"},
        max_tool_calls=3,
        store=False,
        truncation="disabled",
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        background=False,
    )
    assert (request.stream, request.max_tokens, request.temperature, request.top_p) == (True, 9, 0.5, 0.9)
    assert (request.top_logprobs, request.reasoning_effort, request.parallel_tool_calls) == (3, "high", False)
    assert [(tool.name, tool.description, tool.parameters) for tool in request.tools] == [("f", "d", {})]
    assert request.shown["metadata"] == {"a": "b"} and request.shown["user"] == "u"
    assert responses(include=["message.output_text.logprobs"]).top_logprobs == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": []}], "instructions": "s"}, "input"),
        ({"input": [{"type": "message", "role": "robot", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        (
            {
                "input": [
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}
                ]
            },
            "input[0]",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "strict": True}]}, "tools[0].strict"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"stream_options": {}}, "stream_options"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"n": 2}, "n"),
        ({"stop": "x"}, "stop"),
    ],
)
def test_what_responses_refuse(fields: dict[str, Any], param: str) -> None:
    assert blamed(parse_responses, **fields) == param
