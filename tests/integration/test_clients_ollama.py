# SPDX-License-Identifier: Apache-2.0
"""Ollama's own client in front of the router."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

_spec = importlib.util.spec_from_file_location("clients_double", Path(__file__).with_name("clients_double.py"))
assert _spec and _spec.loader
double: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(double)
script, wait_for = double.script, double.wait_for
ALPHA, FAR, THOUGHT, FAILURE = double.ALPHA, double.FAR, double.THOUGHT, double.FAILURE


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    with double.routing() as router:
        yield router


@pytest.fixture
def client(router: Any) -> Iterator[ollama.Client]:
    client = ollama.Client(f"http://127.0.0.1:{router.port}", timeout=30)
    yield client
    client._client.close()


def ask(*steps: Any, model: str = ALPHA, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": script(*steps)}], **fields}


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Name of the city.
    """
    return city


def test_whole_answers(router: Any, client: ollama.Client) -> None:
    options = {"temperature": 0.5, "num_predict": 64, "top_k": 5, "seed": 3, "stop": ["."]}
    answer = client.chat(**ask(*THOUGHT, options=options, keep_alive="5m"))
    assert (answer.message.role, answer.message.content, answer.message.thinking) == (
        "assistant",
        "Hello ü!",
        "so it is",
    )
    assert (answer.model, answer.done, answer.done_reason) == (ALPHA, True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (7, 5)
    assert answer.total_duration and answer.prompt_eval_duration is not None and answer.eval_duration is not None
    assert answer.total_duration == answer.prompt_eval_duration + answer.eval_duration
    given = router.events("call")[-1]["parameters"]
    assert (given["max_tokens"], given["temperature"], given["top_k"]) == (64, 0.5, 5)
    assert given["stop"] == ["."] and given["seed"]


def test_streams(client: ollama.Client) -> None:
    parts = list(client.chat(**ask(*THOUGHT, stream=True)))
    assert "".join(part.message.content or "" for part in parts) == "Hello ü!"
    assert "".join(part.message.thinking or "" for part in parts) == "so it is"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 5 and parts[-1].created_at


def test_a_slow_stream_is_kept_alive(client: ollama.Client) -> None:
    parts = client.chat(**ask(["wait", 0.5], ["say", "a"], ["wait", 0.5], ["say", "b"], stream=True))
    assert "".join(part.message.content or "" for part in parts) == "ab"


def test_streams_are_what_is_meant_without_a_word(router: Any) -> None:
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=30)
    connection.request("POST", "/api/chat", json.dumps(ask(["say", "a"])))
    response = connection.getresponse()
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = response.read().splitlines()
    connection.close()
    assert [json.loads(line)["done"] for line in lines] == [False, True]


def test_prompts(client: ollama.Client) -> None:
    whole = client.generate(ALPHA, script(*THOUGHT), system="s")
    assert (whole.response, whole.thinking) == ("Hello ü!", "so it is")
    parts = list(client.generate(ALPHA, script(["say", "<think>"], ["say", "a"]), raw=True, stream=True))
    assert "".join(part.response or "" for part in parts) == "<think>a"


def test_tools(router: Any, client: ollama.Client) -> None:
    messages: list[Any] = [{"role": "user", "content": "Where is it warm?"}]
    answer = client.chat(FAR, messages, tools=[weather])
    calls = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or ()]
    assert calls == [("weather", {"city": "Köln"}), ("weather", {"city": "Rom"})]
    streamed = [part.message.tool_calls for part in client.chat(FAR, messages, tools=[weather], stream=True)]
    assert [c.function.arguments for told in streamed for c in told or ()] == [{"city": "Köln"}, {"city": "Rom"}]
    function = router.upstream[-1]["tools"][0]["function"]
    assert function["name"] == "weather" and function["parameters"]["required"] == ["city"]
    # This client forgets the calls' identifiers, and names the tool instead.
    messages.append(answer.message)
    messages += [{"role": "tool", "content": text, "tool_name": "weather"} for text in ("20°", "21°")]
    final = client.chat(FAR, messages, tools=[weather])
    assert final.message.content == "20° and 21°"
    told = router.upstream[-1]["messages"]
    assert [call["id"] for call in told[1]["tool_calls"]] == [one["tool_call_id"] for one in told[2:]]


def test_a_model_is_loaded_and_kept(router: Any, client: ollama.Client) -> None:
    """What the command line does: look whether anybody is there, load, and have it stay or go."""
    assert client._client.head("/").status_code == 200
    assert "running" in client._client.get("/").text

    def loads() -> list[Any]:
        return [event["parameters"] for event in router.events("load")]

    seen = len(loads())
    loaded = client.generate(ALPHA)
    assert (loaded.model, loaded.response, loaded.done, loaded.done_reason) == (ALPHA, "", True, "load")
    talk = client.chat(ALPHA, [], keep_alive="5m")
    assert (talk.message.content, talk.done_reason) == ("", "load")
    assert client.generate(ALPHA, keep_alive=0).done_reason == "unload"
    assert [one.done_reason for one in client.generate(ALPHA, stream=True)] == ["load"]
    assert loads()[seen:] == [
        {"model": ALPHA},
        {"model": ALPHA, "keep_sec": 300},
        {"model": ALPHA, "keep_sec": 0},
        {"model": ALPHA},
    ]
    seen = len(loads())
    client.chat(**ask(["say", "x"], keep_alive=-1))
    assert [one.done for one in client.chat(**ask(["say", "x"], stream=True, keep_alive="10s"))][-1]
    client.embed(ALPHA, "x", keep_alive=7)
    assert [one.get("keep_sec") for one in loads()[seen:]] == [-1, 10, 7]
    assert client.generate(FAR).done_reason == "load", "elsewhere that is not our affair"
    with pytest.raises(ollama.ResponseError) as missing:
        client.generate("nobody's")
    assert missing.value.status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_that_is_asked_for(client: ollama.Client, stream: bool) -> None:
    fits = client.chat(**ask(["say", "x"], options={"num_ctx": 4096}, stream=stream))
    assert (list(fits)[-1] if stream else fits).done
    asked = (
        lambda: client.chat(**ask(["say", "x"], options={"num_ctx": 4097}, stream=stream)),
        lambda: client.generate(ALPHA, options={"num_ctx": 4097}, stream=stream),
        lambda: client.generate(FAR, "x", options={"num_ctx": 1}, stream=stream),  # nobody said what it has
        lambda: client.embed(ALPHA, "x", options={"num_ctx": 4097}),
    )
    for ask_for_it in asked:
        with pytest.raises(ollama.ResponseError) as refused:
            list(ask_for_it())
        assert refused.value.status_code == 400 and "'options.num_ctx'" in refused.value.error


def test_vectors(client: ollama.Client) -> None:
    found = client.embed(FAR, ["a", "bcd"])
    assert ([list(one) for one in found.embeddings], found.prompt_eval_count) == ([[0.5, 1.0], [0.5, 3.0]], 3)
    assert list(client.embeddings(FAR, "ab").embedding) == [0.5, 2.0]
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed(FAR, "x", truncate=True)
    assert caught.value.status_code == 400 and "'truncate'" in caught.value.error


def test_models(client: ollama.Client) -> None:
    listed = {model.model: model for model in client.list().models}
    assert listed[ALPHA].details is not None and listed[ALPHA].details.format == "gguf"
    assert FAR in listed
    assert client.show("beta").details is not None
    assert client.ps().models[0].model == ALPHA
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("nobody's")
    assert caught.value.status_code == 404


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat(**ask(["say", "x"], format="json"))
    assert refused.value.status_code == 400 and "'format'" in refused.value.error
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat(**ask(["say", "x"], model="nobody's"))
    assert missing.value.status_code == 404 and "nobody's" in missing.value.error
    with pytest.raises(ollama.ResponseError) as nowhere:
        client.pull("m")
    assert nowhere.value.status_code == 404 and "/api/pull" in nowhere.value.error


def test_a_stream_that_fails_raises(client: ollama.Client) -> None:
    seen = ""
    with pytest.raises(ollama.ResponseError) as caught:
        for part in client.chat(**ask(["say", "a"], ["wait", 0.3], FAILURE, stream=True)):
            seen += part.message.content or ""
    assert seen == "a" and "engine failed" in caught.value.error


def test_a_hang_up_reaches_the_engine(router: Any, client: ollama.Client) -> None:
    before = len(router.events("hang-up"))
    parts: Any = client.chat(**ask(["repeat", "x", 0.01], stream=True))
    assert next(parts).message.content == "x"
    parts.close()
    wait_for(lambda: len(router.events("hang-up")) == before + 1)
