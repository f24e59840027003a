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
