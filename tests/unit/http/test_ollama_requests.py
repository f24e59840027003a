# SPDX-License-Identifier: Apache-2.0
"""What of Ollama's parameters is honoured, and that all else is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import ollama as client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat, ollama
from syntrop.common.http.errors import BadRequest, HttpError
from syntrop.common.http.ollama_chat import parse_chat, parse_generate
from syntrop.common.http.ollama_embeddings import parse_embed, parse_embeddings
from syntrop.common.http.ollama_models import parse_show

USER = {"role": "user", "content": "hi"}
LEAST: dict[Any, dict[str, Any]] = {
    parse_chat: {"model": "m:1", "messages": [USER]},
    parse_generate: {"model": "m:1", "prompt": "hi"},
    parse_embed: {"model": "m:1", "input": "hi"},
    parse_embeddings: {"model": "m:1", "prompt": "hi"},
    parse_show: {"model": "m:1"},
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def read(parse: Any, **fields: Any) -> Any:
    return parse(json.dumps({**LEAST[parse], **fields}).encode())


def refusal(parse: Any, **fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(BadRequest) as caught:
        read(parse, **fields)
    error = caught.value
    assert error.status == 400
    assert error.param is not None and f"'{error.param}'" in error.message
    return error.param


def said(*messages: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (m.role, m.content, m.reasoning, [(c.id, c.name, c.arguments) for c in m.tool_calls], m.tool_call_id)
        for m in read(parse_chat, messages=list(messages)).messages
    ]


def test_the_least_that_can_be_asked() -> None:
    request = read(parse_chat)
    assert (request.model, request.stream, request.max_tokens) == ("m:1", True, None)
    assert (request.temperature, request.top_p, request.top_k, request.seed) == (0.8, None, None, None)
    assert [(m.role, m.content) for m in request.messages] == [("user", "hi")]
    assert read(parse_chat, stream=False).stream is False
    assert read(parse_chat, model=None, name="old").model == "old"


def test_every_option_that_is_honoured() -> None:
    request = read(
        parse_chat,
        options={
            "temperature": 0,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.05,
            "repeat_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "seed": 42,
            "num_predict": 100,
            "stop": ["\n", "user:"],
        },
        tools=[TOOL],
        logprobs=True,
        top_logprobs=3,
        tier="hard",
        local=True,
    )
    assert (request.temperature, request.top_k, request.top_p, request.min_p) == (0.0, 40, 0.9, 0.05)
    assert (request.repetition_penalty, request.presence_penalty, request.frequency_penalty) == (1.1, 0.5, -0.5)
    assert (request.seed, request.max_tokens, request.stop) == (42, 100, ["\n", "user:"])
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [("f", "d", {"type": "object"})]
    assert request.top_logprobs == 3 and read(parse_chat, logprobs=True).top_logprobs == 0
    assert (request.routing.tier, request.routing.local) == ("hard", True)


def test_options_that_ask_for_nothing_pass() -> None:
    request = read(
        parse_chat,
        options={
            "num_predict": -1,
            "seed": -1,
            "num_keep": 5,
            "repeat_last_n": -1,
            "typical_p": 1.0,
            "tfs_z": 1,
            "mirostat": 0,
            "mirostat_tau": 5.0,
            "mirostat_eta": 0.1,
            "penalize_newline": True,
            "num_gpu": -1,
            "num_thread": 0,
            "main_gpu": 0,
            "numa": False,
            "low_vram": False,
            "f16_kv": True,
            "logits_all": False,
            "vocab_only": False,
            "embedding_only": False,
            "use_mmap": True,
            "use_mlock": False,
            "num_ctx": None,
        },
    )
    assert (request.max_tokens, request.seed) == (None, None)


@pytest.mark.parametrize(
    ("think", "effort"),
    [(None, None), (True, "medium"), (False, "none"), ("low", "low"), ("high", "high"), ("max", "max")],
)
def test_how_hard_to_think(think: Any, effort: str | None) -> None:
    assert read(parse_chat, think=think).reasoning_effort == effort
    assert read(parse_generate, think=think).reasoning_effort == effort


@pytest.mark.parametrize(
    ("keep", "seconds"),
    [(0, 0), (-1, -1), (-7.5, -1), (300, 300), (1.5, 1.5), ("5m", 300), ("1h30m", 5400), ("-1s", -1), ("0", 0),
     ("+2s", 2), ("100ms", 0.1), ("1.5h", 5400), ("1h.5m1s", 3631), ("2000us", 0.002), ("168h", 604_800),
     (None, None)],
)  # fmt: skip
def test_times_to_keep_a_model(keep: Any, seconds: float | None) -> None:
    for parse in (parse_chat, parse_generate, parse_embed, parse_embeddings):
        assert read(parse, keep_alive=keep).keep == (None if seconds is None else pytest.approx(seconds))


def test_a_model_is_loaded_where_there_is_no_prompt() -> None:
    for fields in ({}, {"prompt": ""}, {"prompt": None}, {"system": "s"}):
        assert parse_generate(json.dumps({"model": "m", **fields}).encode()).load
    assert not read(parse_generate).load and not read(parse_chat).load
    for fields in ({}, {"messages": []}, {"messages": None}):
        assert parse_chat(json.dumps({"model": "m", **fields}).encode()).load


@pytest.mark.parametrize("parse", [parse_chat, parse_generate, parse_embed, parse_embeddings])
def test_a_context_that_is_asked_for(parse: Any) -> None:
    assert read(parse, options={"num_ctx": 4096}).context == 4096
    assert read(parse).context is None
    for wrong in (0, -1, 1.5, "4096", True):
        assert refusal(parse, options={"num_ctx": wrong}) == "options.num_ctx"


@pytest.mark.parametrize("keep", ["", "5", "5 m", "forever", "5x", "m", True, [], {}, 10**400, 604_801, "169h"])
def test_times_that_are_none(keep: Any) -> None:
    for parse in (parse_chat, parse_generate, parse_embed, parse_embeddings):
        assert refusal(parse, keep_alive=keep) == "keep_alive"


def test_prompts() -> None:
    request = read(parse_generate, system="s")
    assert [(m.role, m.content) for m in request.messages] == [("system", "s"), ("user", "hi")]
    raw = read(parse_generate, raw=True, system="", think=False)
    assert (raw.messages, raw.prompt) == (None, "hi")


def test_calls_and_their_results() -> None:
    def call(name: str, **rest: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {"x": "ü"}}, **rest}

    arguments = '{"x": "ü"}'
    told = said(
        USER,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call("f"), call("g"), call("f")]},
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2", "tool_name": "f"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "tool_calls": [call("h", id="call_4", type="function"), call("f")]},
        {"role": "tool", "content": "5", "tool_call_id": "call_5"},
        {"role": "tool", "content": "4", "tool_call_id": "call_4", "tool_name": "h"},
    )
    assert told[1] == (
        "assistant",
        "",
        "hm",
        [("call_1", "f", arguments), ("call_2", "g", arguments), ("call_3", "f", arguments)],
        None,
    )
    assert [one[4] for one in told[2:5]] == ["call_2", "call_1", "call_3"]
    assert told[5][3] == [("call_4", "h", arguments), ("call_5", "f", arguments)]
    assert [one[4] for one in told[6:]] == ["call_5", "call_4"]


def test_numbered_calls_keep_clear_of_named_ones() -> None:
    named = {"id": "call_1", "function": {"name": "f", "arguments": {}}}
    told = said(USER, {"role": "assistant", "tool_calls": [named, {"function": {"name": "f"}}]})
    assert [one[0] for one in told[1][3]] == ["call_1", "call_2"]


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (parse_chat, {"model": None}, "model"),
    (parse_chat, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    (parse_chat, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (parse_chat, {"messages": [{**USER, "images": ["aGk="]}]}, "messages[0].images"),
    (parse_chat, {"messages": [{**USER, "thinking": "x"}]}, "messages[0].thinking"),
    (parse_chat, {"messages": [{**USER, "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (parse_chat, {"messages": [{**USER, "name": "x"}]}, "messages[0].name"),
    (parse_chat, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_name"),
    (parse_chat, {"messages": [{"role": "tool", "content": "x", "tool_name": "f"}]}, "messages[0].tool_name"),
    (parse_chat, {"messages": [{"role": "tool", "content": "", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    (
        parse_chat,
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (parse_chat, {"tools": [{"type": "web"}]}, "tools[0].type"),
    (parse_chat, {"tools": [TOOL, TOOL]}, "tools[1]"),
    (parse_chat, {"format": "json"}, "format"),
    (parse_chat, {"format": {"type": "object"}}, "format"),
    (parse_chat, {"truncate": True}, "truncate"),
    (parse_chat, {"shift": True}, "shift"),
    (parse_chat, {"think": "hard"}, "think"),
    (parse_chat, {"think": 1}, "think"),
    (parse_chat, {"top_logprobs": 2}, "top_logprobs"),
    (parse_chat, {"stream": 1}, "stream"),
    (parse_chat, {"tool_choice": "auto"}, "tool_choice"),
    (parse_chat, {"options": []}, "options"),
    (parse_generate, {"prompt": 1}, "prompt"),
    (parse_generate, {"suffix": "x"}, "suffix"),
    (parse_generate, {"template": "x"}, "template"),
    (parse_generate, {"images": ["aGk="]}, "images"),
    (parse_generate, {"context": [1]}, "context"),
    (parse_generate, {"format": "json"}, "format"),
    (parse_generate, {"raw": True, "system": "s"}, "system"),
    (parse_generate, {"raw": True, "think": True}, "think"),
    (parse_generate, {"width": 1}, "width"),
    (parse_generate, {"tools": []}, "tools"),
    (parse_embed, {"input": []}, "input"),
    (parse_embed, {"input": ["a", ""]}, "input"),
    (parse_embed, {"input": ["a", 1]}, "input[1]"),
    (parse_embed, {"truncate": True}, "truncate"),
    (parse_embed, {"dimensions": 0}, "dimensions"),
    (parse_embed, {"options": {"num_ctx": 0}}, "options.num_ctx"),
    (parse_embed, {"options": {"nonsense": 1}}, "options.nonsense"),
    (parse_embeddings, {"prompt": ""}, "prompt"),
    (parse_embeddings, {"input": "x"}, "input"),
    (parse_show, {"model": ""}, "model"),
    (parse_show, {"system": "x"}, "system"),
    (parse_show, {"verbose": "x"}, "verbose"),
    *(
        (parse_chat, {"options": {name: value}}, f"options.{name}")
        for name, value in {
            "num_ctx": 0,
            "num_batch": 2,
            "num_gpu": 1,
            "num_thread": 8,
            "main_gpu": 1,
            "numa": True,
            "low_vram": True,
            "f16_kv": False,
            "logits_all": True,
            "vocab_only": True,
            "embedding_only": True,
            "use_mmap": False,
            "use_mlock": True,
            "num_predict": 0,
            "num_keep": "x",
            "repeat_last_n": 64,
            "typical_p": 0.7,
            "tfs_z": 0.5,
            "mirostat": 1,
            "penalize_newline": False,
            "temperature": 3,
            "top_p": 2,
            "stop": [""],
            "seed": 1.5,
            "nonsense": 0,
        }.items()
    ),
]


@pytest.mark.parametrize(("parse", "fields", "name"), REFUSED)
def test_what_is_refused_is_named(parse: Any, fields: dict[str, Any], name: str) -> None:
    assert refusal(parse, **fields) == name


@pytest.mark.parametrize(
    ("parse", "model"),
    [
        (parse_chat, client._types.ChatRequest),
        (parse_generate, client._types.GenerateRequest),
        (parse_embed, client._types.EmbedRequest),
        (parse_embeddings, client._types.EmbeddingsRequest),
        (parse_show, client._types.ShowRequest),
    ],
)
def test_every_parameter_that_the_client_knows_is_known(parse: Any, model: Any) -> None:
    """A value of no sensible type is refused by the parameter's name, and not as a stranger."""
    for name in model.model_fields:
        with pytest.raises(BadRequest) as caught:
            read(parse, **{name: [{}]})
        assert caught.value.param is not None and caught.value.param.partition("[")[0] == name
        assert caught.value.code != "unknown_parameter", name


def test_every_option_that_the_client_knows_is_known() -> None:
    for name in client.Options.model_fields:
        with pytest.raises(BadRequest) as caught:
            read(parse_chat, options={name: {}})
        assert caught.value.param is not None and caught.value.param.partition("[")[0] == f"options.{name}"
        assert caught.value.code != "unknown_parameter", name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted({*client._types.ChatRequest.model_fields, *client._types.GenerateRequest.model_fields, "input"})


@given(st.sampled_from(list(LEAST)), st.dictionaries(st.sampled_from(NAMES), json_values))
def test_any_json_is_read_or_refused(parse: Any, fields: dict[str, Any]) -> None:
    for least in ({}, LEAST[parse]):
        try:
            parse(json.dumps({**least, **fields}).encode())
        except BadRequest:
            pass


def test_errors_have_ollamas_shape() -> None:
    error = HttpError(429, "why", headers=(("retry-after", "1"),))
    shaped = ollama.shape(error, "req_1")
    assert json.loads(shaped.encode()) == {"error": "why"}
    assert (shaped.status, shaped.headers) == (429, error.headers)


@pytest.mark.parametrize(
    ("error", "status", "blamed"),
    [
        (chat.Unhonoured("stop[1]"), 400, "options.stop[1]"),
        (chat.Unhonoured("max_tokens"), 400, "options.num_predict"),
        (chat.Unhonoured("repetition_penalty"), 400, "options.repeat_penalty"),
        (chat.Unhonoured("reasoning_effort"), 400, "think"),
        (chat.Unhonoured("context"), 400, "options.num_ctx"),
        (chat.Unhonoured("messages[3].content"), 400, "prompt"),
        (chat.Refused("their words", "stop"), 400, "stop"),
        (chat.ContextExceeded(9, 8), 400, "prompt"),
        (chat.ModelNotFound("m"), 404, "model"),
        (chat.Overloaded("full"), 429, None),
        (chat.GenerationFailed("broke"), 502, None),
    ],
)
def test_what_an_engine_cannot_is_told_in_the_clients_terms(
    error: chat.EngineError, status: int, blamed: str | None
) -> None:
    answer = ollama.failure(error, started=False, prompt="prompt")
    assert (answer.status, answer.param) == (status, blamed)
    if isinstance(error, chat.Unhonoured) and not isinstance(error, chat.Refused):
        assert f"'{blamed}'" in answer.message
