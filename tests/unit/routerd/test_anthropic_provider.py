# SPDX-License-Identifier: Apache-2.0
"""The pure half of providers that speak Anthropic's Messages API: requests out, answers in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.anthropic_messages import parse_messages
from syntrop.common.http.anthropic_reply import MessageReply
from syntrop.common.http.sse import Parser, ServerEvent
from syntrop.routerd.providers.anthropic_answer import Answer
from syntrop.routerd.providers.anthropic_request import LONGEST, count_body, generate_body
from syntrop.routerd.providers.failures import Teller

Told = list[tuple[Any, ...]]


def ask(*messages: chat.Message, **given: Any) -> chat.GenerateRequest:
    request = chat.GenerateRequest("m", list(messages) or [chat.Message("user", "hi")])
    for name, value in given.items():
        setattr(request, name, value)
    return request


def answer() -> Answer:
    return Answer(ask(), Teller("up", "the-key"))


def plain(events: list[chat.Event]) -> Told:
    return [(type(event).__name__, *(getattr(event, name) for name in event.__slots__)) for event in events]


def read(*values: Any) -> list[chat.Event]:
    reading = answer()
    events: list[chat.Event] = []
    for value in values:
        events += reading.take(ServerEvent(json.dumps(value), value["type"]))
    return events + reading.end()


# --- requests --------------------------------------------------------------------------------------------


def test_a_plain_request() -> None:
    assert generate_body(ask(temperature=1.0)) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": LONGEST,
        "stream": True,
    }


def test_what_is_honoured() -> None:
    tools = [chat.Tool("f", "does", {"type": "object"}), chat.Tool("g", None, None)]
    asked = ask(
        chat.Message("system", "one"), chat.Message("user", "hi"), chat.Message("system", "two"),
        max_tokens=9, temperature=0.5, top_p=0.9, top_k=5, stop=["x"], tools=tools, parallel_tool_calls=False,
        seed=None, presence_penalty=0.0, repetition_penalty=1.0, min_p=0.0,
    )  # fmt: skip
    body = generate_body(asked)
    assert body["system"] == "one\n\ntwo"
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    given = [body[key] for key in ("max_tokens", "temperature", "top_p", "top_k", "stop_sequences")]
    assert given == [9, 0.5, 0.9, 5, ["x"]]
    assert body["tools"] == [
        {"name": "f", "description": "does", "input_schema": {"type": "object"}},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
    ]
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert generate_body(ask(tools=tools, tool_choice="none"))["tool_choice"] == {"type": "none"}
    assert set(count_body(asked)) == {"model", "system", "messages", "tools", "tool_choice"}


def test_turns_with_calls() -> None:
    calls = [chat.ToolCall("a", "f", '{"x": 1}'), chat.ToolCall("b", "g", "")]
    body = generate_body(
        ask(
            chat.Message("user", "q"),
            chat.Message("assistant", "", reasoning="r", tool_calls=calls),
            chat.Message("tool", "1", tool_call_id="a"),
            chat.Message("tool", "", tool_call_id="b"),
            chat.Message("user", "go on"),
        )
    )
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                {"type": "tool_result", "tool_use_id": "b", "content": ""},
                {"type": "text", "text": "go on"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("request_", "parameter"),
    [
        (ask(seed=1), "seed"),
        (ask(top_logprobs=0), "logprobs"),
        (ask(logit_bias={1: 1.0}), "logit_bias"),
        (ask(presence_penalty=1.0), "presence_penalty"),
        (ask(frequency_penalty=-1.0), "frequency_penalty"),
        (ask(repetition_penalty=1.1), "repetition_penalty"),
        (ask(min_p=0.1), "min_p"),
        (ask(temperature=1.5), "temperature"),
        (ask(reasoning_effort="high", max_tokens=1024), "reasoning_effort"),
        (ask(chat.Message("user", "x", name="n")), "messages[0].name"),
        (ask(chat.Message("user", "q"), chat.Message("assistant", "x")), "messages"),
        (ask(chat.Message("assistant", "", tool_calls=[chat.ToolCall("a", "f", "[]")])),
         "messages[0].tool_calls[0].function.arguments"),
        (ask(chat.Message("assistant", "", tool_calls=[chat.ToolCall("a", "f", "{")])),
         "messages[0].tool_calls[0].function.arguments"),
        (chat.GenerateRequest("m", None, "p"), "prompt"),
    ],
)  # fmt: skip
def test_what_it_has_no_word_for_is_refused(request_: chat.GenerateRequest, parameter: str) -> None:
    with pytest.raises(chat.Unhonoured) as caught:
        generate_body(request_)
    assert caught.value.parameter == parameter


def test_effort_is_a_budget() -> None:
    assert "thinking" not in generate_body(ask(reasoning_effort="none"))
    body = generate_body(ask(reasoning_effort="high"))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 16_384}
    assert generate_body(ask(reasoning_effort="max", max_tokens=2000))["thinking"]["budget_tokens"] == 1999
    assert generate_body(ask(reasoning_effort="max"), 4096)["max_tokens"] == 4096


# --- answers ---------------------------------------------------------------------------------------------

START = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_creation_input_tokens": 2,
         "cache_read_input_tokens": 4, "output_tokens": 1}}}  # fmt: skip
STOP = {"type": "message_stop"}


def block(index: int, sort: str, *deltas: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": sort, **given}},
        *({"type": "content_block_delta", "index": index, "delta": one} for one in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def ended(reason: str) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}}


def test_a_whole_stream() -> None:
    found = read(
        START,
        {"type": "ping"},
        *block(0, "thinking", {"type": "thinking_delta", "thinking": "hm"},
               {"type": "signature_delta", "signature": "s"}, thinking=""),
        *block(1, "redacted_thinking", data="x"),
        *block(2, "text", {"type": "text_delta", "text": "Hé"}, {"type": "text_delta", "text": "llo"}, text=""),
        {"type": "something_new", "x": 1},
        *block(3, "tool_use", {"type": "input_json_delta", "partial_json": ""},
               {"type": "input_json_delta", "partial_json": '{"x":'},
               {"type": "input_json_delta", "partial_json": "1}"}, id="a", name="f", input={}),
        *block(4, "tool_use", id="b", name="g", input={}),
        *block(5, "tool_use", id="c", name="h", input={"y": 2}),
        ended("tool_use"),
        STOP,
    )  # fmt: skip
    assert plain(found) == plain(
        [
            chat.Reasoning("hm"),
            chat.Delta("Hé"),
            chat.Delta("llo"),
            chat.CallStarted(0, "a", "f"),
            chat.CallArguments(0, '{"x":'),
            chat.CallArguments(0, "1}"),
            chat.CallStarted(1, "b", "g"),
            chat.CallArguments(1, "{}"),
            chat.CallStarted(2, "c", "h"),
            chat.CallArguments(2, '{"y": 2}'),
            chat.Finished("tool_calls", 9, 9, cached_tokens=4),
        ]
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls"),
     ("refusal", "content_filter"), ("model_context_window_exceeded", "length")],
)  # fmt: skip
def test_reasons(said: str, reason: str) -> None:
    (end,) = read(START, ended(said), STOP)
    assert isinstance(end, chat.Finished) and end.reason == reason


@pytest.mark.parametrize(
    ("told", "count"),
    [(5, 5), (0, 0), (50, 9), (-1, 0), ("5", 0), (None, 0), (True, 0)],  # a part of nine can be no more
)
def test_tokens_that_were_thought(told: Any, count: int) -> None:
    usage = {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": told}}
    (end,) = read(START, {**ended("end_turn"), "usage": usage}, STOP)
    assert isinstance(end, chat.Finished)
    assert (end.completion_tokens, end.reasoning_tokens) == (9, count)


@pytest.mark.parametrize("values", [(), (START,), (START, ended("end_turn")), (START, STOP)])
def test_an_answer_that_is_not_complete_is_no_answer(values: tuple[Any, ...]) -> None:
    with pytest.raises(chat.GenerationFailed, match="before it was complete"):
        read(*values)


def test_halves_of_characters_are_put_together() -> None:
    halves = [{"type": "text_delta", "text": text} for text in ("a\ud83d", "\ude00b", "c\ud83d")]
    found = read(START, *block(0, "text", *halves, text=""), ended("end_turn"), STOP)
    assert "".join(one.text for one in found if isinstance(one, chat.Delta)) == "a\U0001f600bc\ufffd"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, chat.Overloaded),
        ({"type": "rate_limit_error", "message": "slow"}, chat.Overloaded),
        ({"type": "api_error", "message": "boom"}, chat.GenerationFailed),
        ({"type": "authentication_error", "message": "the-key"}, chat.Denied),
        ({"type": "invalid_request_error", "message": "no"}, chat.Refused),
        ({"type": "timeout_error", "message": "slow"}, chat.EngineTimeout),
        ("boom", chat.GenerationFailed),
        (None, chat.GenerationFailed),
    ],
)
def test_errors_within_a_stream(error: Any, kind: type[chat.EngineError]) -> None:
    with pytest.raises(kind) as caught:
        answer().take(ServerEvent(json.dumps({"type": "error", "error": error}), "error"))
    assert "the-key" not in caught.value.message


def test_an_answer_at_once() -> None:
    reading = answer()
    value = {
        "type": "message",
        "content": [
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    assert plain(reading.whole(value) + reading.end()) == plain(
        [
            chat.Delta("x"),
            chat.CallStarted(0, "a", "f"),
            chat.CallArguments(0, '{"x": 1}'),
            chat.Finished("tool_calls", 1, 2),
        ]
    )


@pytest.mark.parametrize(
    "value",
    [
        7, [], {"type": "content_block_delta", "index": 0, "delta": {}}, {"type": "content_block_start"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "image"}},
        {"type": "content_block_start", "index": 0, "content_block": 7},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": 7}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": 7, "name": "f"}},
        {"type": "message_start", "message": 7}, ended("pause_turn"), {"type": "message_delta", "delta": []},
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_typed_failure(value: Any) -> None:
    with pytest.raises(chat.GenerationFailed, match="broke its protocol"):
        answer().take(ServerEvent(json.dumps(value)))


names = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
         "error", "text", "thinking", "tool_use", "text_delta", "input_json_delta", "message"]  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.floats() | st.sampled_from(names),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "index", "content_block", "delta", "message", "usage", "text", "thinking", "id",
                         "partial_json", "name", "input", "stop_reason", "error", "content", "input_tokens"]),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(values=st.lists(anything, max_size=4), sorts=st.lists(st.sampled_from(names), min_size=4, max_size=4))
def test_no_answer_breaks_the_reading(values: list[Any], sorts: list[str]) -> None:
    reading = answer()
    try:
        for value, sort in zip(values, sorts, strict=False):
            reading.take(ServerEvent(json.dumps({"type": sort, **value} if isinstance(value, dict) else value)))
        reading.whole(values[0] if values else None)
        reading.end()
    except chat.EngineError:
        pass


# --- there and back --------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
words = st.text("abcdefgh_", min_size=1, max_size=8)


@given(
    said=st.lists(st.one_of(st.builds(chat.Delta, texts), st.builds(chat.Reasoning, texts)), max_size=5),
    calls=st.lists(st.tuples(words, st.lists(texts, min_size=1, max_size=3)), max_size=3),
    cut=st.integers(1, 40),
)
def test_what_our_dialect_writes_is_read_as_it_was(
    said: list[chat.Event], calls: list[tuple[str, list[str]]], cut: int
) -> None:
    events = list(said)
    for index, (name, pieces) in enumerate(calls):
        events.append(chat.CallStarted(index, f"id{index}", name))
        events += [chat.CallArguments(index, piece) for piece in pieces]
    events.append(chat.Finished("tool_calls" if calls else "stop", 7, 5, cached_tokens=3))
    reply = MessageReply("msg_1", 0, ask())
    wire = reply.frames(events) + reply.end()
    parser, reading = Parser(), answer()
    found: list[chat.Event] = []
    for i in range(0, len(wire), cut):
        for event in parser.feed(wire[i : i + cut]):
            found += reading.take(event)
    assert reading.done
    assert plain(found + reading.end()) == plain(events)


requests = st.builds(
    lambda given, messages: ask(*messages, **given),
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 10**6)},
        optional={
            "temperature": st.floats(0, 1, exclude_max=True),
            "top_p": st.floats(0, 1, exclude_max=True),
            "top_k": st.integers(1, 100),
            "stop": st.lists(words, min_size=1, max_size=3),
            "tools": st.lists(
                st.builds(chat.Tool, words, texts, st.just({"type": "object"})),
                max_size=2,
                unique_by=lambda t: t.name,
            ),
        },
    ),
    st.lists(
        st.one_of(
            st.builds(chat.Message, st.just("user"), texts),
            st.builds(
                lambda text, name: chat.Message(
                    "assistant", text, tool_calls=[chat.ToolCall("a", name, '{"x":1}')]
                ),
                texts,
                words,
            ),
        ),
        min_size=1,
        max_size=3,
    ).map(
        lambda all: (
            [one for i, one in enumerate(all) if i == 0 or one.role != all[i - 1].role]
            + [chat.Message("user", "q")] * (all[-1].role == "assistant")
        )
    ),
)


@given(requests)
def test_a_request_goes_round(asked: chat.GenerateRequest) -> None:
    again = parse_messages(json.dumps(generate_body(asked)).encode())
    for name in ("model", "max_tokens", "top_p", "top_k", "stop", "tool_choice"):
        assert getattr(again, name) == getattr(asked, name)
    assert again.temperature == (1.0 if asked.temperature is None else asked.temperature)
    assert [(t.name, t.description, t.parameters) for t in again.tools] == [
        (t.name, t.description, t.parameters) for t in asked.tools
    ]
    assert spoken(again) == spoken(asked)


def spoken(request: chat.GenerateRequest) -> Told:
    return [
        (one.role, one.content, [(call.id, call.name, json.loads(call.arguments)) for call in one.tool_calls])
        for one in request.messages or ()
    ]
