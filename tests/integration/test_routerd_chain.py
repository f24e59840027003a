# SPDX-License-Identifier: Apache-2.0
"""The whole chain, asleep at first: HTTP → routerd → runtimed ← modeld, with the starter model."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

MODEL = "smollm2:135m"
QUESTION: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
# Greedy, the answer to this goes on for thousands of tokens.
LONG: list[Any] = [{"role": "user", "content": "Write a long story about a dragon."}]


@pytest.fixture
def client(stocked_suite: Any) -> Iterator[openai.OpenAI]:
    url = stocked_suite.url.rstrip("/").removesuffix("/v1")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, **options: Any) -> Any:
    options = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(**options)


def text_of(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def call(suite: Any, interface: str, method: str, **parameters: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as varlink:
        varlink.settimeout(30)
        varlink.connect(suite.endpoint("syntrop/" + interface))
        request = {"method": f"{interface}.{method}", "parameters": parameters}
        varlink.sendall(json.dumps(request).encode() + b"\0")
        data = b""
        while not data.endswith(b"\0"):
            data += varlink.recv(65536)
    reply: dict[str, Any] = json.loads(data[:-1])
    return reply


def test_an_answer_out_of_a_sleeping_suite(stocked_suite: Any, client: openai.OpenAI) -> None:
    assert not stocked_suite.awake()
    assert [model.id for model in client.models.list()] == [MODEL]
    whole = ask(client)
    text = whole.choices[0].message.content
    assert len(text) > 20 and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24 and whole.usage.prompt_tokens > 10
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == text, "streamed or not, greedy answers are the same"
    for told in (chunks[-1].usage, whole.usage):
        told.prompt_tokens_details = None  # what is cached by now
    assert chunks[-1].usage == whole.usage

    stopped = ask(client, stop=[text[12:16]])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(text[12:16])]

    hot = {"temperature": 1, "seed": 0}
    assert len({text_of(ask(client, stream=True, **hot)) for _ in range(3)}) == 1, "one seed, one text"
    assert len({text_of(ask(client, stream=True, temperature=1)) for _ in range(3)}) > 1

    client.close()
    stocked_suite.wait_asleep()


def test_which_text_ended_an_answer(stocked_suite: Any, client: openai.OpenAI) -> None:
    text = ask(client).choices[0].message.content
    with anthropic.Anthropic(base_url=stocked_suite.url, api_key="none", max_retries=0, timeout=60) as other:
        options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "extra_body": {"temperature": 0}}
        message = other.messages.create(max_tokens=24, stop_sequences=["\0", text[12:16]], **options)
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[12:16])
        with other.messages.stream(max_tokens=24, stop_sequences=[text[12:16]], **options) as stream:
            message = stream.get_final_message()
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[12:16])
        message = other.messages.create(max_tokens=4, stop_sequences=["\0"], **options)
        assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)


def test_what_the_real_store_tells_of_its_models(stocked_suite: Any) -> None:
    other = ollama.Client(stocked_suite.url, timeout=60)
    (listed,) = other.list().models
    assert (listed.model, listed.details.format if listed.details else None) == (MODEL, "gguf")
    shown = other.show(MODEL)
    assert shown.details is not None and shown.details.family == "llama" and shown.details.quantization_level
    assert shown.capabilities == ["completion"] and shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 8192
    other._client.close()


def test_what_the_model_has_no_place_for_is_refused(stocked_suite: Any, client: openai.OpenAI) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tools: list[Any] = [{"type": "function", "function": function}]
    for given in ({"tools": tools}, {"reasoning_effort": "high"}):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, **given, stream=stream)
            assert caught.value.param == next(iter(given))
    assert ask(client, tools=tools, tool_choice="none", reasoning_effort="none").choices[0].message.content
    with anthropic.Anthropic(base_url=stocked_suite.url, api_key="none", max_retries=0, timeout=60) as claude:
        options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 2048}
        for more, name in (
            ({"tools": [{"name": "f", "input_schema": {"type": "object"}}]}, "tools"),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ):
            with pytest.raises(anthropic.BadRequestError, match=name):
                claude.messages.create(**options, **more)
    other = ollama.Client(stocked_suite.url, timeout=60)
    for more, name in (({"tools": tools}, "tools"), ({"think": True}, "think")):
        with pytest.raises(ollama.ResponseError, match=name):
            other.chat(MODEL, QUESTION, **more)  # type: ignore[call-overload]
    other._client.close()


def test_loading_keeping_and_letting_go(stocked_suite: Any) -> None:
    other = ollama.Client(stocked_suite.url, timeout=60)
    assert other.generate(MODEL).done_reason == "load"
    (loaded,) = other.ps().models
    assert loaded.model == MODEL and loaded.context_length
    options = {"num_ctx": loaded.context_length, "num_predict": 2}
    assert other.chat(MODEL, QUESTION, options=options, keep_alive="1h").done
    with pytest.raises(ollama.ResponseError) as refused:
        other.chat(MODEL, QUESTION, options={"num_ctx": loaded.context_length + 1})
    assert refused.value.status_code == 400 and "'options.num_ctx'" in refused.value.error
    time.sleep(2)  # four times what the daemons are idle for in these tests
    assert stocked_suite.pids("runtimed"), "an engine that was asked to stay has gone"
    assert other.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert other.ps().models == []
    other._client.close()
    stocked_suite.wait_asleep()


def test_a_prompt_beyond_the_context(client: openai.OpenAI) -> None:
    ask(client)
    long = [{"role": "user", "content": "word " * 9000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, messages=long, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_breaking_off_frees_the_engine(stocked_suite: Any, client: openai.OpenAI) -> None:
    stream = ask(client, stream=True, max_tokens=4000, messages=LONG)
    pieces = iter(stream)
    next(pieces)
    begun = time.monotonic()
    for _ in range(20):
        next(pieces)
    quarter = 50 * (time.monotonic() - begun)  # of what the 4,000 tokens would take
    load = call(stocked_suite, "io.syntrop.Runtime1", "GetLoad")["parameters"]
    assert load["available_slots"] == load["max_slots"] - 1
    stream.close()
    deadline = time.monotonic() + quarter
    while load["available_slots"] < load["max_slots"]:
        assert time.monotonic() < deadline
        load = call(stocked_suite, "io.syntrop.Runtime1", "GetLoad")["parameters"]
    # The engine is free before the router has it on its books.
    deadline = time.monotonic() + 60
    while call(stocked_suite, "io.syntrop.Router1", "GetStatus")["parameters"]["active_requests"]:
        assert time.monotonic() < deadline


def test_an_engine_killed_in_mid_stream(stocked_suite: Any, client: openai.OpenAI) -> None:
    stream = iter(ask(client, stream=True, max_tokens=4000, messages=LONG))
    for _ in range(5):
        next(stream)
    (engine,) = stocked_suite.pids("runtimed")
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "provider_unavailable"
    assert ask(client).choices[0].message.content


def test_what_the_engine_tells_besides(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True, top_logprobs=2, n=2)
    for choice in whole.choices:
        content = choice.logprobs.content
        assert b"".join(bytes(one.bytes) for one in content).decode() == choice.message.content
        assert all(one.top_logprobs[0].logprob >= one.logprob - 1e-6 for one in content)
    assert whole.choices[0].message.content == whole.choices[1].message.content, "greedy answers are the same"
    stream = ask(client, logprobs=True, stream=True)
    told = [chunk.choices[0].logprobs for chunk in stream if chunk.choices[0].logprobs]
    streamed = b"".join(bytes(one.bytes) for each in told for one in each.content).decode()
    assert streamed == whole.choices[0].message.content

    options: Any = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    by_text = client.completions.create(prompt=["The sky is", "Once upon a time"], logprobs=1, **options)
    assert [choice.index for choice in by_text.choices] == [0, 1]
    assert all("".join(choice.logprobs.tokens) == choice.text for choice in by_text.choices)
    by_tokens = client.completions.create(prompt=[504, 6376, 314], **options)  # The sky is
    assert by_tokens.usage.prompt_tokens == 3
    assert by_tokens.choices[0].text == by_text.choices[0].text
    never = client.completions.create(prompt="The sky is", logit_bias={"260": -100}, **options)
    assert never.choices[0].text
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt=[10**7], **options)
    assert caught.value.param == "prompt[0]"

    made = client.embeddings.create(model=MODEL, input=["a text", "another"])
    assert len(made.data) == 2 and abs(sum(x * x for x in made.data[0].embedding) - 1) < 1e-3
    response = client.responses.create(
        model=MODEL, input="Why is the sky blue?", max_output_tokens=8, temperature=0
    )
    assert response.status == "incomplete" and response.usage.output_tokens == 8
