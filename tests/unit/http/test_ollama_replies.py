# SPDX-License-Identifier: Apache-2.0
"""Replies in Ollama's dialect, read by the types of its client: any answer arrives whole, however it is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import ollama as client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common.http import chat, ollama, ollama_embeddings, ollama_models
from syntrop.common.http.ollama_reply import ChatReply, GenerateReply

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")

texts = st.text(min_size=1, max_size=12)
objects = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-9, 9) | texts, max_size=3)


class Clock:
    """Nanoseconds that pass with every look."""

    def __init__(self, step: int = 1_000) -> None:
        self.now = 0
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def request(**fields: Any) -> chat.GenerateRequest:
    asked = chat.GenerateRequest("m", [chat.Message("user", "x")])
    for name, value in fields.items():
        setattr(asked, name, value)
    return asked


def chat_reply(**fields: Any) -> ChatReply:
    return ChatReply("", 1_700_000_000, request(**fields), Clock())


def stream(told: ChatReply, batches: list[list[chat.Event]]) -> list[Any]:
    """The objects of a stream as the clients find them: by lines, each JSON."""
    wire = told.ping
    for batch in batches:
        wire += told.frames(batch) + told.ping
    wire += told.end()
    assert wire.endswith(b"\n")
    return [json.loads(line) for line in wire.decode().split("\n")[:-1]]


@st.composite
def answers(draw: st.DrawFn, *, chats: bool = True) -> list[chat.Event]:
    events: list[chat.Event] = []
    calls: list[str] = []
    for sort in draw(st.lists(st.sampled_from("trc" if chats else "tr"), max_size=6)):
        if sort == "t":
            events.append(chat.Delta(draw(texts)))
        elif sort == "r":
            events.append(chat.Reasoning(draw(texts)))
        else:
            events.append(chat.CallStarted(len(calls), f"call_{len(calls)}", draw(texts)))
            calls.append(json.dumps(draw(objects)))
    # Arguments in pieces that may come mixed.
    queues = {index: list(text) for index, text in enumerate(calls)}
    while queues:
        index = draw(st.sampled_from(sorted(queues)))
        size = draw(st.integers(1, len(queues[index])))
        events.append(chat.CallArguments(index, "".join(queues[index][:size])))
        del queues[index][:size]
        if not queues[index]:
            del queues[index]
    reason = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter"]))
    return [*events, chat.Finished(reason, 7, draw(st.integers(0, 99)))]


@st.composite
def cut(draw: st.DrawFn, events: list[chat.Event]) -> list[list[chat.Event]]:
    batches: list[list[chat.Event]] = [[]]
    for event in events:
        batches[-1].append(event)
        if draw(st.booleans()):
            batches.append([])
    return [batch for batch in batches if batch]


def test_the_lines_of_a_stream() -> None:
    lines = stream(
        chat_reply(),
        [
            [chat.Reasoning("hm")],
            [chat.Delta("a"), chat.Delta("ü")],
            [chat.CallStarted(0, "c0", "f"), chat.CallArguments(0, '{"x"'), chat.CallArguments(0, ": 1}")],
            [chat.CallStarted(1, "c1", "g"), chat.Finished("tool_calls", 10, 5)],
        ],
    )
    for line in lines:
        assert line["model"] == "m" and RFC3339.fullmatch(line["created_at"])
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "ü"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c0", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
                {"id": "c1", "function": {"index": 1, "name": "g", "arguments": {}}},
            ],
        },
        {"role": "assistant", "content": ""},
    ]
    # The clock was looked at when the reply was made, at each of four batches, and at the end.
    assert {k: v for k, v in lines[-1].items() if k not in ("model", "created_at", "message", "done")} == {
        "done_reason": "stop",
        "total_duration": 5_000,
        "load_duration": 0,
        "prompt_eval_count": 10,
        "prompt_eval_duration": 1_000,
        "eval_count": 5,
        "eval_duration": 4_000,
    }
    assert lines[0]["created_at"] == "2023-11-14T22:13:20.000001000Z"
    assert lines[-1]["created_at"] == "2023-11-14T22:13:20.000005000Z"


def test_a_whole_answer() -> None:
    told = chat_reply()
    told.arrived()
    value = told.whole([chat.Reasoning("hm"), chat.Delta("a"), chat.Delta("b"), chat.Finished("length", 3, 2)])
    assert value["message"] == {"role": "assistant", "content": "ab", "thinking": "hm"}
    assert (value["done"], value["done_reason"]) == (True, "length")
    assert (value["prompt_eval_duration"], value["eval_duration"], value["total_duration"]) == (
        1_000,
        1_000,
        2_000,
    )


def test_generated_texts() -> None:
    events: list[chat.Event] = [chat.Reasoning("hm"), chat.Delta("a"), chat.Finished("stop", 3, 2)]
    lines = stream(GenerateReply("", 0, request(), Clock()), [events])
    assert [(line["response"], line.get("thinking"), line["done"]) for line in lines] == [
        ("", "hm", False),
        ("a", None, False),
        ("", None, True),
    ]
    whole = GenerateReply("", 0, request(), Clock()).whole(events)
    assert (whole["response"], whole["thinking"]) == ("a", "hm")
    assert client.GenerateResponse(**whole).response == "a"


def test_log_probabilities() -> None:
    token = chat.TokenLogprob("ü", "ü".encode(), -0.5, [("u", b"u", -1.0)])
    events: list[chat.Event] = [chat.Delta("ü", logprobs=[token]), chat.Finished("stop", 1, 1)]
    told = {
        "token": "ü",
        "logprob": -0.5,
        "bytes": [195, 188],
        "top_logprobs": [{"token": "u", "logprob": -1.0, "bytes": [117]}],
    }
    lines = stream(chat_reply(top_logprobs=1), [events])
    assert lines[0]["logprobs"] == [told] and "logprobs" not in lines[1]
    whole = chat_reply(top_logprobs=1).whole(events)
    assert whole["logprobs"] == [told]
    assert client.ChatResponse(**whole).logprobs[0].top_logprobs[0].token == "u"  # type: ignore[index]


@settings(max_examples=60, deadline=None)
@given(answers(), st.data())
def test_any_answer_in_any_cut(events: list[chat.Event], data: st.DataObject) -> None:
    parts = [client.ChatResponse(**line) for line in stream(chat_reply(), data.draw(cut(events)))]
    whole = client.ChatResponse(**chat_reply().whole(events))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert "".join(part.message.thinking or "" for part in parts) == (whole.message.thinking or "")

    def calls(messages: Iterator[client.Message]) -> list[tuple[str, Any]]:
        return [(c.function.name, c.function.arguments) for m in messages for c in m.tool_calls or ()]

    assert calls(part.message for part in parts) == calls(iter([whole.message]))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].done_reason, parts[-1].eval_count) == (whole.done_reason, whole.eval_count)


def test_a_failure_in_the_middle_is_a_line_of_its_own() -> None:
    told = chat_reply()
    wire = told.frames([chat.Delta("a")])
    wire += told.broken(ollama.failure(chat.GenerationFailed("It broke."), started=True))
    assert [json.loads(line).get("error") for line in wire.splitlines()] == [None, "It broke."]


@pytest.mark.parametrize("given_arguments", ["[1]", "{", '"x"'])
def test_arguments_that_are_no_object_fail(given_arguments: str) -> None:
    events: list[chat.Event] = [
        chat.CallStarted(0, "c", "f"),
        chat.CallArguments(0, given_arguments),
        chat.Finished("tool_calls", 1, 1),
    ]
    with pytest.raises(chat.GenerationFailed):
        chat_reply().whole(events)
    with pytest.raises(chat.GenerationFailed):
        chat_reply().frames(events)


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_times(nanoseconds: int) -> None:
    from datetime import UTC, datetime, timedelta

    told = ollama.timestamp(nanoseconds)
    assert RFC3339.fullmatch(told)
    parsed = datetime.fromisoformat(told[:26] + "+00:00")
    assert parsed == datetime.fromtimestamp(0, UTC) + timedelta(microseconds=nanoseconds // 1000)


def test_embeddings() -> None:
    found = chat.Embeddings("m", [[0.5, 1.0], [0.25, 0.0]], 4)
    told = client.EmbedResponse(**ollama_embeddings.embed(found, 1_000))
    assert (told.embeddings, told.prompt_eval_count, told.total_duration) == ([[0.5, 1.0], [0.25, 0.0]], 4, 1_000)
    assert client.EmbeddingsResponse(**ollama_embeddings.embeddings(found)).embedding == [0.5, 1.0]


STORED = {"id": "a:1", "digest": "sha256:" + "0f" * 32, "size_bytes": 42, "format": "gguf"}


def test_models() -> None:
    listed = client.ListResponse(**ollama_models.tags([STORED, {"id": "elsewhere"}])).models
    assert [(m.model, m.size, m.digest) for m in listed] == [("a:1", 42, "0f" * 32), ("elsewhere", 0, "")]
    assert listed[0].details is not None and listed[0].details.format == "gguf"


def test_what_a_model_is() -> None:
    metadata = {
        "architecture": "llama",
        "parameter_count": 8_030_261_248,
        "quantization": "Q4_0",
        "context_length": 8192,
        "license": None,
        "chat_template": True,
        "chat_abilities": ["tools", "thinking"],
    }
    told = client.ShowResponse(**ollama_models.show(STORED, metadata))
    assert told.modelinfo == {
        "general.architecture": "llama",
        "general.parameter_count": 8_030_261_248,
        "llama.context_length": 8192,
    }
    assert told.capabilities == ["completion", "tools", "thinking"]
    assert told.details is not None
    assert (told.details.parameter_size, told.details.quantization_level) == ("8.0B", "Q4_0")
    bare = client.ShowResponse(**ollama_models.show({"id": "elsewhere"}, {}))
    assert (bare.modelinfo, bare.template, bare.capabilities) == ({}, "", ["completion"])
    encoder = client.ShowResponse(**ollama_models.show(STORED, {"architecture": "bert", "chat_template": False}))
    assert encoder.capabilities == ["embedding"]


def test_models_in_memory() -> None:
    loaded = {
        "name": "a:1",
        "architecture": "llama",
        "parameter_count": 134_515_008,
        "memory_bytes": 77,
        "context_window": 2048,
        "compute_backend": "avx2",
    }
    first, second = client.ProcessResponse(
        **ollama_models.ps([loaded, {**loaded, "compute_backend": "cuda:0"}])
    ).models
    assert (first.model, first.size, first.size_vram, first.context_length) == ("a:1", 77, 0, 2048)
    assert first.details is not None and first.details.parameter_size == "134.5M"
    assert second.size_vram == 77
    assert ollama_models.version("1.2") == {"version": "1.2"}
