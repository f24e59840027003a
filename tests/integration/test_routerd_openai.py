# SPDX-License-Identifier: Apache-2.0
"""All of OpenAI's routes through the process, by OpenAI's own client."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

_spec = importlib.util.spec_from_file_location("routerd_process", Path(__file__).with_name("test_routerd.py"))
assert _spec and _spec.loader
process: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(process)
ask, wait_for = process.ask, process.wait_for

MODEL = "alpha:1"
THOUGHT = (["say", "<thi"], ["say", "nk>so "], ["say", "it is</thi"], ["say", "nk>\n\nHel"], ["say", "lo ü!"])


def script(*steps: Any) -> str:
    return json.dumps(steps)


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    router = process.Router("--ping-sec=0.2", "--headers-after-sec=0.2")
    try:
        router.start_double()
        yield router
    finally:
        router.close()


def test_thoughts_are_told_apart(router: Any) -> None:
    with router.client() as client:
        message = client.chat.completions.create(**ask(*THOUGHT)).choices[0].message
        assert (message.content, message.reasoning_content, message.reasoning) == (
            "Hello ü!",
            "so it is",
            "so it is",
        )
        with client.chat.completions.stream(**ask(*THOUGHT)) as stream:
            deltas = [event.chunk.choices[0].delta for event in stream if event.type == "chunk"]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "so it is"
        assert "".join(delta.content or "" for delta in deltas) == "Hello ü!"


def test_choices(router: Any) -> None:
    before = len(router.events("call"))
    with router.client() as client:
        whole = client.chat.completions.create(**ask(["say", "a"], ["say", "b"], n=6, seed=1))
        assert [(c.index, c.message.content, c.finish_reason) for c in whole.choices] == [
            (i, "ab", "stop") for i in range(6)
        ]
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 12)
        asked = ask(["say", "a"], ["say", "b"], n=3, stream_options={"include_usage": True})
        with client.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        assert [choice.message.content for choice in final.choices] == ["ab"] * 3
        assert final.usage.completion_tokens == 6
    seeds = [call["parameters"]["seed"] for call in router.events("call")[before : before + 6]]
    assert len(set(seeds)) == 6, "or all choices would be the same"


def test_completions_in_their_own_shape(router: Any) -> None:
    prompts = [script(["say", "<think>"], ["say", "a"]), script(["say", "b"], ["finish", "length"])]
    with router.client() as client:
        whole = client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=9)
        assert [(c.index, c.text, c.finish_reason) for c in whole.choices] == [
            (0, "<think>a", "stop"),
            (1, "<think>a", "stop"),
            (2, "b", "length"),
            (3, "b", "length"),
        ]
        assert whole.object == "text_completion" and whole.usage.prompt_tokens == 14
        assert router.events("call")[-1]["parameters"]["max_tokens"] == 9
        stream = client.completions.create(
            model=MODEL, prompt=prompts[0], stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "<think>a"
        assert chunks[-1].usage.completion_tokens == 2 and not chunks[-1].choices
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=MODEL, prompt="x", suffix="y")
        assert caught.value.param == "suffix"


def test_responses(router: Any) -> None:
    with router.client() as client:
        response = client.responses.create(model=MODEL, input=script(*THOUGHT), metadata={"a": "b"})
        assert (response.status, response.output_text, response.metadata) == ("completed", "Hello ü!", {"a": "b"})
        assert [item.type for item in response.output] == ["reasoning", "message"]
        with client.responses.stream(model=MODEL, input=script(*THOUGHT)) as stream:
            told = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert "".join(told) == final.output_text == "Hello ü!"
        # The whole conversation comes back, since nothing is kept here.
        items = [{"role": "user", "content": "x"}, *(item.model_dump(exclude_none=True) for item in final.output)]
        again = client.responses.create(
            model=MODEL, input=[*items, {"role": "user", "content": script(["say", "ok"])}], store=False
        )
        assert again.output_text == "ok"
        messages = router.events("call")[-1]["parameters"]["messages"]
        assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("Hello ü!", "so it is")
        cut = client.responses.create(model=MODEL, input=script(["say", "x"], ["finish", "length"]))
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=MODEL, input="x", previous_response_id=final.id)
        assert caught.value.param == "previous_response_id"


FAILURE = ["error", "io.syntrop.Runtime1.GenerationFailed", {"reason": "r"}]


def test_a_stream_that_fails_raises_in_every_route(router: Any) -> None:
    with router.client() as client:
        for create, asked in (
            (client.chat.completions.create, ask(["say", "a"], FAILURE)),
            (client.completions.create, {"model": MODEL, "prompt": script(["say", "a"], FAILURE)}),
            (client.responses.create, {"model": MODEL, "input": script(["say", "a"], FAILURE)}),
        ):
            with pytest.raises(openai.APIError) as caught:
                list(create(**asked, stream=True))
            assert caught.value.code == "provider_unavailable"


def test_errors_name_the_field_of_the_route(router: Any) -> None:
    exceeded = ["error", "io.syntrop.Runtime1.ContextExceeded", {"requested": 9000, "max": 8192}]
    with router.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=script(exceeded))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def test_a_hang_up_reaches_every_choice(router: Any) -> None:
    before, calls = len(router.events("hang-up")), len(router.events("call"))
    with router.client() as client:
        stream = client.chat.completions.create(**ask(["repeat", "x", 0.01], n=3, stream=True))
        seen = {chunk.choices[0].index for chunk, _ in zip(stream, range(20), strict=False)}
        assert seen == {0, 1, 2}
        wait_for(lambda: len(router.events("call")) == calls + 3)
        stream.close()
        wait_for(lambda: len(router.events("hang-up")) == before + 3)


CALLS = (
    ["say", "I look. <tool"],
    ["say", '_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'],
    ["say", '<tool_call>{"name": "time", "arguments": {}}</tool_call>'],
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]


def test_calls_of_tools(router: Any) -> None:
    with router.client() as client:
        with client.chat.completions.stream(**ask(*CALLS, tools=TOOLS)) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0]
        whole = client.chat.completions.create(**ask(*CALLS, tools=TOOLS)).choices[0]
        for choice in (streamed, whole):
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
            calls = [
                (call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls
            ]
            assert calls == [("weather", {"city": "Bern"}), ("time", {})]
            assert len({call.id for call in choice.message.tool_calls}) == 2
        assert router.events("call")[-1]["parameters"]["tools"][0] == {
            "name": "weather",
            "parameters": '{"type": "object"}',
        }
        one = client.chat.completions.create(**ask(*CALLS, tools=TOOLS, parallel_tool_calls=False)).choices[0]
        assert [call.function.name for call in one.message.tool_calls] == ["weather"]
        none = client.chat.completions.create(**ask(*CALLS, tools=TOOLS, tool_choice="none")).choices[0]
        assert none.finish_reason == "stop" and "<tool_call>" in none.message.content
        answered = [
            {"role": "user", "content": "x"},
            whole.message.model_dump(exclude_none=True),
            *({"role": "tool", "tool_call_id": call.id, "content": "42"} for call in whole.message.tool_calls),
            {"role": "user", "content": script(["say", "ok"])},
        ]
        client.chat.completions.create(model=MODEL, messages=answered, tools=TOOLS)
        told = router.events("call")[-1]["parameters"]["messages"]
        assert [one["role"] for one in told] == ["user", "assistant", "tool", "tool", "user"]
        assert told[1]["tool_calls"][0]["name"] == "weather" and told[2]["content"] == "42"


def test_a_thought_that_the_template_opened_and_how_much_was_thought(router: Any) -> None:
    with router.client() as client:
        answer = client.chat.completions.create(
            **ask(["opened"], ["say", "hm"], ["say", "</think>"], ["say", "yes"], reasoning_effort="low")
        )
    message, usage = answer.choices[0].message, answer.usage
    assert (message.content, message.reasoning_content) == ("yes", "hm")
    assert (usage.completion_tokens_details.reasoning_tokens, usage.completion_tokens) == (2, 3)
    assert usage.prompt_tokens_details.cached_tokens == 3
    variables = json.loads(router.events("call")[-1]["parameters"]["template_variables"])
    assert variables == {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}


def test_logprobs(router: Any) -> None:
    steps = (["say", "<think>"], ["say", "hm</think>"], ["say", "a"], ["say", "ü"])
    with router.client() as client:
        content = (
            client.chat.completions.create(**ask(*steps, logprobs=True, top_logprobs=1))
            .choices[0]
            .logprobs.content
        )
        assert [(one.token, bytes(one.bytes).decode()) for one in content] == [("a", "a"), ("ü", "ü")]
        assert [one.top_logprobs[0].token for one in content] == ["a", "ü"]
        stream = client.chat.completions.create(**ask(*steps, logprobs=True, stream=True))
        streamed = [chunk.choices[0].logprobs for chunk in stream if chunk.choices[0].logprobs]
        assert "".join(one.token for told in streamed for one in told.content) == "aü"
        old = client.completions.create(model=MODEL, prompt=script(["say", "a"], ["say", "ü"]), logprobs=1)
        assert old.choices[0].logprobs.tokens == ["a", "ü"] and old.choices[0].logprobs.text_offset == [0, 1]
        response = client.responses.create(
            model=MODEL, input=script(["say", "a"]), include=["message.output_text.logprobs"], top_logprobs=1
        )
        assert response.output[0].content[0].logprobs[0].token == "a"


def test_what_is_sampled_reaches_the_engine(router: Any) -> None:
    with router.client() as client:
        client.chat.completions.create(
            **ask(["say", "x"], logit_bias={"5": -100}, presence_penalty=0.5, frequency_penalty=-0.5)
        )
    given = router.events("call")[-1]["parameters"]
    assert given["logit_bias"] == [{"token": 5, "bias": -100.0}]
    assert (given["presence_penalty"], given["frequency_penalty"]) == (0.5, -0.5)


def test_embeddings(router: Any) -> None:
    with router.client() as client:
        for encoding in ("float", "base64", None):
            options = {} if encoding is None else {"encoding_format": encoding}
            made = client.embeddings.create(model=MODEL, input=["a", "bcd"], **options)
            assert made.usage.prompt_tokens == 4
        assert [one.embedding for one in client.embeddings.create(model=MODEL, input=["a", "bcd"]).data] == [
            [1.0, 0.25],
            [3.0, 0.25],
        ]
        assert client.embeddings.create(model=MODEL, input=[[1, 2], [3]]).data[0].embedding == [2.0, 0.25]
        assert client.embeddings.create(model=MODEL, input="abcde", dimensions=2).data[0].embedding[0] == 5.0
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=MODEL, input="a", dimensions=3)
        assert caught.value.param == "dimensions"
