# SPDX-License-Identifier: Apache-2.0
"""Replies in Anthropic's dialect, read by Anthropic's own client: any answer arrives whole, however it is cut.

The client's stream decoder, its types (checked strictly) and its accumulator are the oracle; no socket is needed.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic as client
import httpx2
import pytest
from anthropic.lib.streaming import MessageStream
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from syntrop.common.http import anthropic, chat, sse
from syntrop.common.http.anthropic_reply import MessageReply

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
ASKED = chat.GenerateRequest("m", [chat.Message("user", "x")])

texts = st.text(min_size=1, max_size=12)
objects = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-9, 9) | texts, max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> list[chat.Event]:
    """What a provider may say: thoughts and texts in any order, and calls whose arguments come in pieces."""
    events: list[chat.Event] = []
    calls = 0
    for sort in draw(st.lists(st.sampled_from("trc"), max_size=6)):
        if sort == "t":
            events.append(chat.Delta(draw(texts)))
        elif sort == "r":
            events.append(chat.Reasoning(draw(texts)))
        else:
            events.append(chat.CallStarted(calls, f"call_{calls}", draw(texts)))
            given_arguments = json.dumps(draw(objects))
            at = draw(st.integers(0, len(given_arguments)))
            pieces = filter(None, (given_arguments[:at], given_arguments[at:]))
            events += [chat.CallArguments(calls, piece) for piece in pieces]
            calls += 1
    reason = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter"]))
    used = draw(st.integers(0, 99))
    events.append(chat.Finished(reason, 7, used, cached_tokens=3, reasoning_tokens=min(2, used)))
    return events


@st.composite
def cut(draw: st.DrawFn, events: list[chat.Event]) -> list[list[chat.Event]]:
    batches: list[list[chat.Event]] = [[]]
    for event in events:
        batches[-1].append(event)
        if draw(st.booleans()):
            batches.append([])
    return [batch for batch in batches if batch]


def reply() -> MessageReply:
    return MessageReply("msg_1", 1700000000, ASKED)


def stream(batches: list[list[chat.Event]]) -> bytes:
    told = reply()
    wire = told.ping
    for batch in batches:
        wire += told.frames(batch) + told.ping
    return wire + told.end()


def received(wire: bytes) -> Any:
    """What the client makes of a stream's bytes, as if they had come over the network."""
    http = httpx2.Response(200, content=wire, request=httpx2.Request("POST", "http://localhost"))
    whose = client.Anthropic(api_key="x", base_url="http://localhost", max_retries=0)
    return client.Stream(cast_to=RawMessageStreamEvent, response=http, client=whose)  # type: ignore[type-var]


def shown(events: list[Any]) -> list[tuple[Any, ...]]:
    """The events by what a reader would check."""
    told: list[tuple[Any, ...]] = []
    for event in events:
        value = json.loads(event.data)
        assert value["type"] == event.type
        told.append((event.type, *(v for k, v in value.items() if k not in ("type", "message", "usage"))))
    return told


def test_the_events_of_a_stream() -> None:
    wire = stream(
        [
            [chat.Reasoning("hm")],
            [chat.Delta("a"), chat.Delta("b")],
            [chat.CallStarted(0, "c0", "f"), chat.CallArguments(0, '{"x"'), chat.CallArguments(0, ": 1}")],
            [
                chat.CallStarted(1, "c1", "g"),
                chat.Finished("tool_calls", 10, 5, cached_tokens=4, reasoning_tokens=2),
            ],
        ]
    )
    assert wire.startswith(b": ping\n\n"), "what is no event may come before the first one"
    events = sse.Parser().feed(wire)
    assert [one for one in shown(events) if one[0] != "ping"] == [
        ("message_start",),
        ("content_block_start", 0, {"type": "thinking", "thinking": "", "signature": ""}),
        ("content_block_delta", 0, {"type": "thinking_delta", "thinking": "hm"}),
        ("content_block_stop", 0),
        ("content_block_start", 1, {"type": "text", "text": ""}),
        ("content_block_delta", 1, {"type": "text_delta", "text": "a"}),
        ("content_block_delta", 1, {"type": "text_delta", "text": "b"}),
        ("content_block_stop", 1),
        ("content_block_start", 2, {"type": "tool_use", "id": "c0", "name": "f", "input": {}}),
        ("content_block_delta", 2, {"type": "input_json_delta", "partial_json": '{"x"'}),
        ("content_block_delta", 2, {"type": "input_json_delta", "partial_json": ": 1}"}),
        ("content_block_stop", 2),
        ("content_block_start", 3, {"type": "tool_use", "id": "c1", "name": "g", "input": {}}),
        ("content_block_stop", 3),
        ("message_delta", {"stop_reason": "tool_use", "stop_sequence": None}),
        ("message_stop",),
    ]
    assert sum(one.type == "ping" for one in events) == 4
    usage = json.loads(events[-2].data)["usage"]
    assert usage == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_a_whole_message() -> None:
    events: list[chat.Event] = [
        chat.Reasoning("h"),
        chat.Reasoning("m"),
        chat.Delta("text"),
        chat.CallStarted(0, "c0", "f"),
        chat.CallArguments(0, '{"x": 1}'),
        chat.Finished("tool_calls", 10, 5),
    ]
    told = reply().whole(events)
    assert {k: v for k, v in told.items() if k != "usage"} == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "text"},
            {"type": "tool_use", "id": "c0", "name": "f", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
    }


@pytest.mark.parametrize("reason", REASONS)
def test_why_it_ended(reason: str) -> None:
    assert reply().whole([chat.Finished(reason, 1, 1)])["stop_reason"] == REASONS[reason]


def test_the_stop_sequence_where_it_is_known() -> None:
    end = chat.Finished("stop", 1, 1, stop_sequence="END")
    told = reply().whole([end])
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    delta = sse.Parser().feed(stream([[end]]))[-2]
    assert json.loads(delta.data)["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


@settings(max_examples=60, deadline=None)
@given(answers(), st.data())
def test_any_answer_in_any_cut(events: list[chat.Event], data: st.DataObject) -> None:
    wire = stream(data.draw(cut(events)))
    for event in sse.Parser().feed(wire):
        if event.type != "ping":
            EVENT.validate_json(event.data, strict=True)
    message = MessageStream(received(wire), output_format=client.NOT_GIVEN).get_final_message()
    whole = Message.model_validate_json(json.dumps(reply().whole(events)), strict=True)
    for sort, field in (("text", "text"), ("thinking", "thinking")):
        told = "".join(getattr(one, field) for one in message.content if one.type == sort)
        assert told == "".join(getattr(one, field) for one in whole.content if one.type == sort)
    calls = [(one.id, one.name, one.input) for one in message.content if one.type == "tool_use"]
    assert calls == [(one.id, one.name, one.input) for one in whole.content if one.type == "tool_use"]
    assert message.stop_reason == whole.stop_reason == REASONS[events[-1].reason]  # type: ignore[union-attr]
    assert message.usage.model_dump() == whole.usage.model_dump()


def test_a_failure_in_the_middle_is_raised_by_the_client() -> None:
    told = reply()
    wire = told.frames([chat.Delta("a")])
    wire += told.broken(anthropic.failure(chat.GenerationFailed("It broke."), started=True))
    seen = []
    with pytest.raises(client.APIStatusError) as caught:
        for event in received(wire):
            seen.append(event.type)  # noqa: PERF401 - what came before the error
    assert seen == ["message_start", "content_block_start", "content_block_delta"]
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "api_error", "message": "It broke."},
        "request_id": "req_1",
    }


@pytest.mark.parametrize("given_arguments", ["[1]", "{", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_fail_a_whole_message(given_arguments: str) -> None:
    events = [
        chat.CallStarted(0, "c", "f"),
        chat.CallArguments(0, given_arguments),
        chat.Finished("tool_calls", 1, 1),
    ]
    with pytest.raises(chat.GenerationFailed):
        reply().whole(events)


def test_mixed_calls_fail_a_stream() -> None:
    with pytest.raises(chat.GenerationFailed):
        reply().frames([chat.CallStarted(0, "a", "f"), chat.CallStarted(1, "b", "g"), chat.CallArguments(0, "{}")])


def test_what_only_anthropic_can_tell_comes_through() -> None:
    """From Anthropic's client to Anthropic's API and back: that a tool failed, and which stop sequence it was."""
    from syntrop.common.http.anthropic_messages import parse_messages
    from syntrop.routerd.providers.anthropic_answer import Answer
    from syntrop.routerd.providers.anthropic_request import generate_body
    from syntrop.routerd.providers.failures import Teller

    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    asked = parse_messages(json.dumps({"model": "m", "max_tokens": 9, "messages": messages}).encode())
    assert generate_body(asked)["messages"] == messages
    end = chat.Finished("stop", 3, 1, stop_sequence="END")
    reading = Answer(asked, Teller("far", None))
    heard = [one for event in sse.Parser().feed(stream([[chat.Delta("a"), end]])) for one in reading.take(event)]
    assert [one.text for one in heard] == ["a"]  # type: ignore[union-attr]
    (told,) = reading.end()
    assert isinstance(told, chat.Finished)
    assert (told.reason, told.stop_sequence, told.prompt_tokens) == ("stop", "END", 3)
    reading = Answer(asked, Teller("far", None))
    assert reading.whole(reply().whole([end])) == []
    assert [one.stop_sequence for one in reading.end() if isinstance(one, chat.Finished)] == ["END"]
