# SPDX-License-Identifier: Apache-2.0
"""Replies in OpenAI's dialect, read by OpenAI's own client: any answer arrives whole, in one piece or in many.

The client's stream decoder, its types (checked strictly) and its accumulators are the oracle; no socket is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from syntrop.common.http import chat
from syntrop.common.http import openai as dialect
from syntrop.common.http.answers import gather
from syntrop.common.http.openai_chat import ChatReply
from syntrop.common.http.openai_completions import CompletionReply
from syntrop.common.http.openai_responses import parse_responses
from syntrop.common.http.openai_responses_reply import ResponseReply

RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
REASONS = ("stop", "length", "content_filter")

texts = st.text(min_size=1, max_size=12)


@st.composite
def token(draw: st.DrawFn, text: str) -> chat.TokenLogprob:
    top = [(one, one.encode(), -1.0) for one in draw(st.lists(texts, max_size=2))]
    return chat.TokenLogprob(text, text.encode(), draw(st.floats(-100, 0)), top)


@st.composite
def answer(draw: st.DrawFn, choice: int, logprobs: bool, chats: bool) -> list[chat.Event]:
    """What an engine may say for one choice."""
    events: list[chat.Event] = []
    started: list[int] = []
    for kind in draw(st.lists(st.sampled_from("trca" if chats else "t"), max_size=8)):
        text = draw(texts)
        if kind == "t":
            tokens = [draw(token(text))] if logprobs else None
            events.append(chat.Delta(text, logprobs=tokens, choice=choice))
        elif kind == "r":
            events.append(chat.Reasoning(text, choice=choice))
        elif kind == "c":
            index = len(started)
            started.append(index)
            events.append(chat.CallStarted(index, f"call_{choice}_{index}", draw(texts), choice=choice))
        elif started:
            events.append(chat.CallArguments(draw(st.sampled_from(started)), text, choice=choice))
    reason = "tool_calls" if started else draw(st.sampled_from(REASONS))
    tokens_used = draw(st.integers(0, 99))
    events.append(
        chat.Finished(reason, 7, tokens_used, cached_tokens=3, reasoning_tokens=min(2, tokens_used), choice=choice)
    )
    return events


@st.composite
def answers(draw: st.DrawFn, *, most: int = 3, chats: bool = True, logprobs: bool = True) -> list[chat.Event]:
    """The events of several choices, each in its order, mixed in any."""
    told = logprobs and draw(st.booleans())
    queues = [draw(answer(choice, told, chats)) for choice in range(draw(st.integers(1, most)))]
    events: list[chat.Event] = []
    while queues:
        queue = draw(st.sampled_from(queues))
        events.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    return events


@st.composite
def cut(draw: st.DrawFn, events: list[chat.Event]) -> list[list[chat.Event]]:
    batches: list[list[chat.Event]] = [[]]
    for event in events:
        batches[-1].append(event)
        if draw(st.booleans()):
            batches.append([])
    return batches


def received(wire: bytes, cast_to: Any) -> Iterator[Any]:
    """What the client makes of a stream's bytes, as if they had come over the network."""
    client = openai.OpenAI(api_key="x", base_url="http://localhost", max_retries=0)
    response = httpx2.Response(200, content=wire, request=httpx2.Request("POST", "http://localhost"))
    yield from openai.Stream(cast_to=cast_to, response=response, client=client)


def frames(wire: bytes) -> list[Any]:
    return [json.loads(block.partition(b"data: ")[2]) for block in wire.split(b"\n\n") if b"data: {" in block]


def request(n: int, logprobs: bool, usage: bool) -> chat.GenerateRequest:
    asked = chat.GenerateRequest("m", [chat.Message("user", "x")])
    asked.n = n
    asked.include_usage = usage
    asked.top_logprobs = 2 if logprobs else None
    return asked


def told_logprobs(events: list[chat.Event]) -> bool:
    return any(isinstance(event, chat.Delta) and event.logprobs is not None for event in events)


@settings(max_examples=60, deadline=None)
@given(answers(), st.booleans(), st.data())
def test_chats(events: list[chat.Event], usage: bool, data: st.DataObject) -> None:
    n = max(event.choice for event in events) + 1
    asked = request(n, told_logprobs(events), usage)
    whole = ChatReply("chatcmpl-1", 5, asked).whole(events)
    completion = ChatCompletion.model_validate(whole, strict=True)

    reply = ChatReply("chatcmpl-1", 5, asked)
    wire = b"".join(reply.frames(batch) for batch in data.draw(cut(events))) + reply.end()
    assert wire.endswith(b"data: [DONE]\n\n")
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in frames(wire):
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("chatcmpl-1", 5, "m")
        assert ("usage" in chunk) is usage
    reasoning = [""] * n
    finished = [0] * n
    for one in received(wire, ChatCompletionChunk):
        state.handle_chunk(one)
        for piece in one.choices:
            thought = getattr(piece.delta, "reasoning_content", None) or ""
            assert thought == (getattr(piece.delta, "reasoning", None) or "")
            reasoning[piece.index] += thought
            finished[piece.index] += piece.finish_reason is not None
    assert finished == [1] * n
    snapshot = state.current_completion_snapshot
    for i, expected in enumerate(gather(events)):
        streamed, message = snapshot.choices[i], completion.choices[i].message
        assert (streamed.message.content or "") == expected.text == (message.content or "")
        assert reasoning[i] == expected.reasoning == (getattr(message, "reasoning_content", None) or "")
        for calls in (streamed.message.tool_calls or [], message.tool_calls or []):
            functions = [(c.id, c.function.name, c.function.arguments) for c in calls if c.type == "function"]
            assert functions == [(c.id, c.name, c.arguments) for c in expected.calls]
        assert expected.end is not None
        assert streamed.finish_reason == completion.choices[i].finish_reason == expected.end.reason
        if asked.top_logprobs is not None:
            said = completion.choices[i].logprobs
            assert said is not None and said.content is not None
            assert "".join(one.token for one in said.content) == expected.text
            streamed_tokens = streamed.logprobs.content if streamed.logprobs is not None else None
            assert [one.token for one in streamed_tokens or []] == [one.token for one in said.content]
    if usage:
        assert snapshot.usage is not None and completion.usage is not None
        assert snapshot.usage.model_dump() == completion.usage.model_dump()
        assert snapshot.usage.prompt_tokens == 7, "the choices share a prompt"
        assert snapshot.usage.total_tokens == 7 + snapshot.usage.completion_tokens


def test_chunks_come_in_openais_order() -> None:
    reply = ChatReply("c", 5, request(1, False, True))
    events: list[chat.Event] = [
        chat.Reasoning("hm"),
        chat.Delta("a"),
        chat.CallStarted(0, "call_1", "f"),
        chat.CallArguments(0, "{}"),
        chat.Finished("tool_calls", 3, 4, cached_tokens=2, reasoning_tokens=1),
    ]
    chunks = frames(reply.frames(events) + reply.end())
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:-1]] == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "a"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 5 + ["tool_calls"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_a_call_alone_has_no_content_and_thoughts_are_never_the_answer() -> None:
    events: list[chat.Event] = [chat.CallStarted(0, "c", "f"), chat.CallArguments(0, "{}")]
    message = ChatReply("c", 5, request(1, False, False)).whole([*events, chat.Finished("tool_calls", 1, 1)])
    assert message["choices"][0]["message"]["content"] is None
    events = [chat.Reasoning("hm"), chat.Finished("length", 1, 1)]
    message = ChatReply("c", 5, request(1, False, False)).whole(events)["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("", "hm", "hm")


@settings(max_examples=60, deadline=None)
@given(answers(chats=False), st.booleans(), st.integers(1, 2), st.data())
def test_completions(events: list[chat.Event], usage: bool, n: int, data: st.DataObject) -> None:
    requests = [chat.GenerateRequest("m", None, "x") for _ in range(3)]
    for one in requests:
        one.n, one.include_usage = n, usage
    whole = CompletionReply("cmpl-1", 5, requests).whole(events)
    completion = Completion.model_validate(whole, strict=True)
    reply = CompletionReply("cmpl-1", 5, requests)
    wire = b"".join(reply.frames(batch) for batch in data.draw(cut(events))) + reply.end()
    found = [""] * len(completion.choices)
    offsets: list[list[int]] = [[] for _ in found]
    for raw, one in zip(frames(wire), received(wire, Completion), strict=True):
        assert raw["object"] == "text_completion" and ("usage" in raw) is usage
        for piece in one.choices:
            found[piece.index] += piece.text
            if piece.logprobs is not None:
                offsets[piece.index] += piece.logprobs.text_offset or []
    for i, expected in enumerate(gather(events)):
        choice = completion.choices[i]
        assert found[i] == choice.text == expected.text and expected.end is not None
        assert choice.finish_reason == expected.end.reason
        if choice.logprobs is not None:
            tokens = choice.logprobs.tokens or []
            assert "".join(tokens) == expected.text and offsets[i] == choice.logprobs.text_offset
            assert [expected.text[at : at + len(t)] for at, t in zip(offsets[i], tokens, strict=True)] == tokens
            for chosen, top in zip(tokens, choice.logprobs.top_logprobs or [], strict=True):
                assert chosen in top
    assert completion.usage is not None
    prompts = {i // n for i in range(len(found))}
    assert completion.usage.prompt_tokens == 7 * len(prompts), "a prompt counts once for its choices"


def test_pieces_of_characters_in_the_old_shape() -> None:
    asked = chat.GenerateRequest("m", None, "x")
    halves = [chat.TokenLogprob("\ufffd", b"\xc3", -1.0, []), chat.TokenLogprob("\ufffd", b"\xa4b", -2.0, [])]
    events: list[chat.Event] = [chat.Delta("ab"), chat.Delta("äb", logprobs=halves), chat.Finished("stop", 1, 2)]
    logprobs = CompletionReply("c", 5, [asked]).whole(events)["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa4\\x62"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"bytes:\\xc3": -1.0}, {"bytes:\\xa4\\x62": -2.0}],
        "text_offset": [2, 3],
    }


# --- responses -------------------------------------------------------------------------------------------

ASKED = {
    "model": "m",
    "input": "x",
    "instructions": "be brief",
    "metadata": {"a": "b"},
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}],
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
}


def response_reply() -> ResponseReply:
    return ResponseReply("resp_1", 5, parse_responses(json.dumps(ASKED).encode()))


@settings(max_examples=60, deadline=None)
@given(answers(most=1), st.data())
def test_responses(events: list[chat.Event], data: st.DataObject) -> None:
    whole = response_reply().whole(events)
    response = Response.model_validate(whole)
    reply = response_reply()
    wire = b"".join(reply.frames(batch) for batch in data.draw(cut(events))) + reply.end()
    sent = frames(wire)
    assert [one["sequence_number"] for one in sent] == list(range(len(sent)))
    assert [one["type"] for one in sent[:2]] == ["response.created", "response.in_progress"]
    for block in wire.split(b"\n\n")[:-1]:
        head, _, body = block.partition(b"\n")
        assert head.decode() == f"event: {json.loads(body[6:])['type']}"
    for one in sent:
        RESPONSE_EVENT.validate_python(one)
    assert sent[-1]["type"] == f"response.{response.status}"
    assert sent[-1]["response"] == whole, "a stream ends with what would have come at once"
    _check_items(sent, whole["output"])

    (expected,) = gather(events)
    said = {"message": "", "reasoning": "", "function_call": ""}
    for item in response.output:
        if item.type == "message":
            said["message"] += "".join(part.text for part in item.content if part.type == "output_text")
        elif item.type == "reasoning":
            said["reasoning"] += "".join(part.text for part in item.content or [])
    calls = [(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]
    assert (said["message"], said["reasoning"]) == (expected.text, expected.reasoning)
    assert calls == [(call.id, call.name, call.arguments) for call in expected.calls]
    assert response.output_text == expected.text
    assert expected.end is not None and response.usage is not None
    assert (response.status == "incomplete") is (expected.end.reason in ("length", "content_filter"))
    assert response.usage.output_tokens == expected.end.completion_tokens
    assert response.instructions == "be brief" and response.metadata == {"a": "b"} and not whole["store"]


def _check_items(sent: list[Any], output: list[Any]) -> None:
    """Every item is added, told and done in this order, and its pieces are what it is in the end."""
    deltas: dict[int, str] = {}
    done: dict[int, Any] = {}
    opened: list[int] = []
    for one in sent[2:-1]:
        index, sort = one["output_index"], one["type"]
        if sort == "response.output_item.added":
            assert index == len(opened)
            opened.append(index)
            deltas[index] = ""
        assert index in opened and index not in done
        if sort.endswith(".delta"):
            deltas[index] += one["delta"]
        elif sort in ("response.output_text.done", "response.reasoning_text.done"):
            assert one["text"] == deltas[index]
        elif sort == "response.function_call_arguments.done":
            assert one["arguments"] == deltas[index]
        elif sort == "response.output_item.done":
            done[index] = one["item"]
    assert [done[index] for index in opened] == output


def test_the_clients_accumulator_of_responses() -> None:
    from openai._types import omit
    from openai.lib.streaming.responses._responses import ResponseStreamState

    events: list[chat.Event] = [
        chat.Reasoning("hm"),
        chat.Delta("a"),
        chat.Delta("b"),
        chat.CallStarted(0, "call_1", "f"),
        chat.CallArguments(0, '{"x":'),
        chat.CallArguments(0, "1}"),
        chat.Finished("tool_calls", 3, 4),
    ]
    reply = response_reply()
    wire = reply.frames(events) + reply.end()
    assert [one["type"].removeprefix("response.") for one in frames(wire)] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    final = None
    for event in received(wire, ResponseStreamEvent):
        for told in state.handle_event(event):
            if told.type == "response.completed":
                final = told.response
    assert final is not None and final.output_text == "ab"
    assert final.output[2].arguments == '{"x":1}'


@settings(max_examples=30, deadline=None)
@given(answers(most=1), st.data())
def test_a_stream_that_fails_never_ends_cleanly(events: list[chat.Event], data: st.DataObject) -> None:
    told = events[: data.draw(st.integers(0, len(events) - 1))]
    error = dialect.failure(chat.GenerationFailed("broke"), started=True)
    asked = request(1, False, True)
    for reply, cast_to in (
        (ChatReply("c", 5, asked), ChatCompletionChunk),
        (CompletionReply("c", 5, [asked]), Completion),
        (response_reply(), ResponseStreamEvent),
    ):
        kept = [e for e in told if isinstance(e, chat.Delta) or not isinstance(reply, CompletionReply)]
        wire = reply.frames(kept) + reply.broken(error)
        assert b"[DONE]" not in wire and b"response.completed" not in wire
        with pytest.raises(openai.APIError) as caught:
            list(received(wire, cast_to))
        assert (caught.value.code, caught.value.message) == ("provider_unavailable", "broke")
    failed = frames(wire)[-1]
    assert failed["type"] == "response.failed" and failed["response"]["error"]["code"] == "server_error"
    Response.model_validate(failed["response"])
