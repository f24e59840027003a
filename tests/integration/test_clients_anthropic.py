# SPDX-License-Identifier: Apache-2.0
"""Anthropic's own client in front of the router."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

_spec = importlib.util.spec_from_file_location("clients_double", Path(__file__).with_name("clients_double.py"))
assert _spec and _spec.loader
double: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(double)
script, wait_for = double.script, double.wait_for
ALPHA, FAR, CLAUDE, THOUGHT, FAILURE = double.ALPHA, double.FAR, double.CLAUDE, double.THOUGHT, double.FAILURE

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    with double.routing() as router:
        yield router


@pytest.fixture
def client(router: Any) -> Iterator[anthropic.Anthropic]:
    url = f"http://127.0.0.1:{router.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def ask(*steps: Any, model: str = ALPHA, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": script(*steps)}]
    return {"model": model, "max_tokens": 64, "messages": messages, **fields}


def test_whole_answers(router: Any, client: anthropic.Anthropic) -> None:
    # This client has parameters of its newest models alone; older ones are still in its service's documents.
    older = {"temperature": 0.5, "top_p": 0.5, "top_k": 5}
    message = client.messages.create(**ask(*THOUGHT, system="s", stop_sequences=["."], extra_body=older))
    assert [(block.type, getattr(block, block.type)) for block in message.content] == [
        ("thinking", "so it is"),
        ("text", "Hello ü!"),
    ]
    assert (message.role, message.model, message.stop_reason) == ("assistant", ALPHA, "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 5)
    assert message.usage.cache_read_input_tokens == 3
    assert message.id.startswith("msg_") and message._request_id == "req_" + message.id[4:]
    given = router.events("call")[-1]["parameters"]
    assert (given["max_tokens"], given["temperature"], given["top_p"], given["top_k"]) == (64, 0.5, 0.5, 5)
    assert given["stop"] == ["."] and given["messages"][0] == {"role": "system", "content": "s"}
    assert client.messages.create(**ask(["say", "x"], ["finish", "length"])).stop_reason == "max_tokens"


def test_streams(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ask(*THOUGHT)) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert texts == "Hello ü!" and final.stop_reason == "end_turn"
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert (final.usage.input_tokens, final.usage.output_tokens) == (4, 5)
    events = [event.type for event in client.messages.create(**ask(["say", "a"], ["say", "b"]), stream=True)]
    assert (events[:2], events[-3:]) == (
        ["message_start", "content_block_start"],
        ["content_block_stop", "message_delta", "message_stop"],
    )


def test_a_slow_stream_is_kept_alive(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ask(["wait", 0.5], ["say", "a"], ["wait", 0.5], ["say", "b"])) as stream:
        assert stream.get_final_text() == "ab"


def test_tools(router: Any, client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": FAR, "max_tokens": 64, "tools": [WEATHER]}
    question: Any = {"role": "user", "content": "Where is it warm?"}
    with client.messages.stream(**asked, messages=[question]) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.id, call.name, call.input) for call in calls] == [
        ("c0", "weather", {"city": "Köln"}),
        ("c1", "weather", {"city": "Rom"}),
    ]
    whole = client.messages.create(**asked, messages=[question])
    assert [block.model_dump() for block in whole.content] == [block.model_dump() for block in message.content]
    function = router.upstream[-1]["tools"][0]["function"]
    assert (function["name"], function["parameters"]) == ("weather", WEATHER["input_schema"])
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"{call.input['city']}: {20 + i}°"}  # type: ignore[index]
        for i, call in enumerate(calls)
    ]
    history: Any = [question, message.to_param(), {"role": "user", "content": results}]
    final = client.messages.create(**asked, messages=history)
    assert final.content[0].text == "Köln: 20° and Rom: 21°"  # type: ignore[union-attr]
    told = router.upstream[-1]["messages"]
    assert [call["id"] for call in told[1]["tool_calls"]] == ["c0", "c1"]
    assert [one["tool_call_id"] for one in told[2:]] == ["c0", "c1"]


def test_counts(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    count = client.messages.with_raw_response.count_tokens(model=CLAUDE, messages=messages, system="s")
    assert count.parse().input_tokens == 1001
    assert count.headers["request-id"].startswith("req_")


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ask(["say", "x"], tool_choice={"type": "any"}, tools=[WEATHER]))
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert "'tool_choice.type'" in refused.value.body["error"]["message"]  # type: ignore[index]
    assert refused.value.body["request_id"] == refused.value.request_id  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask(["say", "x"], model="nobody's"))
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    exceeded = ["error", "io.syntrop.Runtime1.ContextExceeded", {"requested": 9000, "max": 8192}]
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**ask(exceeded))
    with pytest.raises(anthropic.NotFoundError) as nowhere:
        client.post("/v1/messages/batches", cast_to=object, body={})
    assert nowhere.value.body["type"] == "error"  # type: ignore[index]


def test_a_stream_that_fails_raises(client: anthropic.Anthropic) -> None:
    seen = ""
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(**ask(["say", "a"], ["wait", 0.3], FAILURE)) as stream,
    ):
        for text in stream.text_stream:
            seen += text
    assert seen == "a"
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]


def test_a_hang_up_reaches_the_engine(router: Any, client: anthropic.Anthropic) -> None:
    before = len(router.events("hang-up"))
    with client.messages.stream(**ask(["repeat", "x", 0.01])) as stream:
        assert next(stream.text_stream) == "x"
    wait_for(lambda: len(router.events("hang-up")) == before + 1)
