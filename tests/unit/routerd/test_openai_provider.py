# SPDX-License-Identifier: Apache-2.0
"""The pure half of providers that speak OpenAI's API: requests out, answers in.

What our own dialect parses and writes is the other end of it: what goes round is what it was.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.openai_chat import ChatReply, parse_chat
from syntrop.common.http.openai_completions import CompletionReply, parse_completions
from syntrop.common.http.sse import DONE, Parser, ServerEvent
from syntrop.routerd.providers.failures import Teller
from syntrop.routerd.providers.openai_answer import Answer
from syntrop.routerd.providers.openai_request import embed_body, generate_body, generate_path, is_official

Told = list[tuple[Any, ...]]


def ask(**given: Any) -> chat.GenerateRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **given}
    return parse_chat(json.dumps(body).encode())


def answer(request: chat.GenerateRequest | None = None) -> Answer:
    ids = iter(range(1000))
    return Answer(request or ask(), Teller("up", "the-key"), lambda: f"made_{next(ids)}")


def plain(events: list[chat.Event]) -> Told:
    """Events as tuples, neighbours of a kind joined, so that cuts do not matter."""
    told: Told = []
    for event in events:
        match event:
            case chat.Delta():
                logprobs = [(t.text, t.bytes, t.logprob, t.top) for t in event.logprobs or ()]
                one: tuple[Any, ...] = ("text", event.choice, event.text, logprobs)
                if told and told[-1][:2] == one[:2]:
                    one = (*one[:2], told[-1][2] + event.text, told.pop()[3] + logprobs)
            case chat.Reasoning():
                one = ("thought", event.choice, event.text)
                if told and told[-1][:2] == one[:2]:
                    one = (*one[:2], told.pop()[2] + event.text)
            case chat.CallStarted():
                one = ("call", event.choice, event.index, event.id, event.name)
            case chat.CallArguments():
                one = ("arguments", event.choice, event.index, event.text)
                if told and told[-1][:3] == one[:3]:
                    one = (*one[:3], told.pop()[3] + event.text)
            case _:
                one = ("end", event.choice, event.reason, event.prompt_tokens, event.completion_tokens,
                       event.cached_tokens, event.reasoning_tokens)  # fmt: skip
        told.append(one)
    return told


def read(reading: Answer, *chunks: Any) -> Told:
    """All events of a stream of these objects; texts are taken as they are."""
    events: list[chat.Event] = []
    for chunk in chunks:
        events += reading.take(ServerEvent(chunk if isinstance(chunk, str) else json.dumps(chunk)))
    return plain(events + reading.end())


def delta(reason: str | None = None, index: int = 0, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": said, "finish_reason": reason}]}


def call(arguments: str | None = None, **given: Any) -> dict[str, Any]:
    function = {key: given.pop(key) for key in ("name",) if key in given}
    if arguments is not None:
        function["arguments"] = arguments
    return delta(tool_calls=[{**given, "function": function}])


END = delta("stop")
USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
}


# --- requests --------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
words = st.text("abcdefgh_", min_size=1, max_size=8)
messages = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user"]), "content": texts}, optional={"name": words}
        ),
        st.fixed_dictionaries({"role": st.just("assistant"), "content": texts}, optional={"reasoning": texts}),
        st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "tool_calls": st.lists(
                    st.fixed_dictionaries(
                        {"id": words, "function": st.fixed_dictionaries({"name": words, "arguments": texts})}
                    ),
                    min_size=1,
                    max_size=3,
                ),
            },
            optional={"content": texts},
        ),
        st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "tool_call_id": words}),
    ),
    min_size=1,
    max_size=4,
)
bodies = st.fixed_dictionaries(
    {"model": words, "messages": messages},
    optional={
        "max_tokens": st.integers(1, 10**6),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(0, 100),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 10**6).map(str), st.floats(-100, 100), max_size=3),
        "seed": st.integers(-(2**63), 2**63 - 1).filter(lambda n: abs(n) < 2**53),
        "stop": st.lists(words, min_size=1, max_size=4),
        "n": st.integers(1, 128),
        "logprobs": st.just(True),
        "reasoning_effort": st.sampled_from(["none", "low", "high"]),
        "tools": st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.just("function"),
                    "function": st.fixed_dictionaries(
                        {"name": words}, optional={"description": texts, "parameters": st.just({"type": "object"})}
                    ),
                }
            ),
            min_size=1,
            max_size=2,
            unique_by=lambda tool: tool["function"]["name"],
        ),
    },
)  # fmt: skip


def fields(value: object) -> object:
    if isinstance(value, list):
        return [fields(one) for one in value]
    if isinstance(value, chat.GenerateRequest | chat.Message | chat.Tool | chat.ToolCall | chat.Routing):
        return {name: fields(getattr(value, name)) for name in value.__slots__}
    return value


@given(bodies)
def test_a_request_goes_round(body: dict[str, Any]) -> None:
    asked = parse_chat(json.dumps(body).encode())
    asked.stream = asked.include_usage = True
    sent = generate_body(asked, official=False)
    assert sent.pop("repeat_penalty", None) is None
    assert fields(parse_chat(json.dumps(sent).encode())) == fields(asked)
    assert generate_path(asked) == "/chat/completions"


@given(
    prompt=st.one_of(texts.filter(bool), st.lists(st.integers(0, 10**5), min_size=1, max_size=5)),
    top=st.integers(0, 5),
)
def test_a_prompt_goes_round(prompt: str | list[int], top: int) -> None:
    given = {
        "model": "m",
        "prompt": prompt,
        "logprobs": top,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    (asked,) = parse_completions(json.dumps(given).encode())
    (again,) = parse_completions(json.dumps(generate_body(asked, official=False)).encode())
    assert fields(again) == fields(asked)
    assert generate_path(asked) == "/completions"


def test_what_openai_itself_is_sent() -> None:
    asked = ask(max_tokens=5, messages=[{"role": "assistant", "content": "a", "reasoning": "r"}], min_p=0, top_k=0)
    body = generate_body(asked, official=True)
    assert body["max_completion_tokens"] == 5 and "max_tokens" not in body
    assert body["messages"] == [{"role": "assistant", "content": "a"}]
    assert not {"min_p", "top_k"} & set(body)
    for name in ("top_k", "min_p", "repetition_penalty"):
        with pytest.raises(chat.Unhonoured) as caught:
            generate_body(ask(**{name: 1}), official=True)
        assert caught.value.parameter == name
    assert (
        is_official("api.openai.com") and is_official("eu.api.openai.com") and not is_official("openai.com.evil")
    )
    assert generate_body(ask(repetition_penalty=1.5), official=False)["repeat_penalty"] == 1.5


def test_embeddings_are_asked_for_as_numbers() -> None:
    assert embed_body(chat.EmbedRequest("m", ["a"], 3)) == {
        "model": "m",
        "input": ["a"],
        "encoding_format": "float",
        "dimensions": 3,
    }


# --- answers ---------------------------------------------------------------------------------------------


def test_a_whole_stream() -> None:
    found = read(
        answer(),
        delta(role="assistant", content=""),
        delta(reasoning_content="think "),
        delta(reasoning="more"),
        delta(content="Hé"),
        delta(content="llo", role="assistant"),
        delta("length"),
        USAGE,
        "[DONE]",
    )
    assert found == [
        ("thought", 0, "think more"),
        ("text", 0, "Héllo", []),
        ("end", 0, "length", 7, 5, 3, 2),
    ]


def test_both_names_of_a_thought_are_one_thought() -> None:
    found = read(answer(), delta(reasoning_content="a", reasoning="a"), END, "[DONE]")
    assert found == [("thought", 0, "a"), ("end", 0, "stop", 0, 0, 0, 0)]


def test_the_end_may_come_without_its_word() -> None:
    assert read(answer(), delta("stop", content="x"))[-1][2] == "stop"


@pytest.mark.parametrize("chunks", [(), (delta(content="x"),), (delta(content="x"), "[DONE]"), (USAGE, "[DONE]")])
def test_an_answer_that_is_not_complete_is_no_answer(chunks: tuple[Any, ...]) -> None:
    with pytest.raises(chat.GenerationFailed, match="before it was complete"):
        read(answer(), *chunks)


def test_choices_share_the_usage() -> None:
    found = read(
        answer(ask(n=2)), delta(index=1, content="b"), delta(content="a"), delta("stop", 1), delta("length"), USAGE
    )
    assert found == [
        ("text", 1, "b", []),
        ("text", 0, "a", []),
        ("end", 0, "length", 7, 5, 3, 2),
        ("end", 1, "stop", 7, 0, 3, 0),
    ]


def test_halves_of_characters_are_put_together() -> None:
    smile = json.dumps("\U0001f600")[1:-1]
    high, low = smile[:6], smile[6:]
    pieces = [
        '{"choices":[{"index":0,"delta":{"content":"' + text + '"}}]}'
        for text in (f"a{high}", f"{low}b", low, f"{high}c", high)
    ]
    assert read(answer(), *pieces, END)[0] == ("text", 0, "a\U0001f600b\ufffd\ufffdc\ufffd", [])


def test_content_in_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "x"}]
    assert read(answer(), delta(content=parts), END)[:2] == [("thought", 0, "t"), ("text", 0, "x", [])]


TWO = [
    ("call", 0, 0, "a", "f"),
    ("arguments", 0, 0, '{"x":1}'),
    ("call", 0, 1, "b", "g"),
    ("arguments", 0, 1, "{}"),
]
MADE = [(*one[:3], f"made_{one[2]}", *one[4:]) if one[0] == "call" else one for one in TWO]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        # as they should be
        ([call("", index=0, id="a", name="f"), call('{"x"', index=0), call(":1}", index=0),
          call("{}", index=1, id="b", name="g")], TWO),
        # no index
        ([call("", id="a", name="f"), call('{"x"'), call(":1}"), call("{}", id="b", name="g")], TWO),
        # 0 for all
        ([call('{"x"', index=0, id="a", name="f"), call(":1}", index=0),
          call("{}", index=0, id="b", name="g")], TWO),
        # 0 for all, the id repeated in each piece
        ([call('{"x"', index=0, id="a", name="f"), call(":1}", index=0, id="a", name="f"),
          call("{}", index=0, id="b", name="g")], TWO),
        # no ids, no index
        ([call('{"x":1}', name="f"), call("{}", name="g")], MADE),
        # no ids, 0 for all
        ([call('{"x":1}', index=0, name="f"), call("{}", index=0, name="g")], MADE),
        # the name repeated while the arguments go on
        ([call('{"x"', index=0, id="a", name="f"), call(":1}", index=0, name="f"),
          call("{}", index=1, id="b", name="g")], TWO),
        # side by side
        ([call('{"x"', index=0, id="a", name="f"), call("{", index=1, id="b", name="g"), call(":1}", index=0),
          call("}", index=1)], TWO),
        # the first without arguments
        ([call(index=0, id="b", name="g"), call('{"x":1}', index=1, id="a", name="f")],
         [("call", 0, 0, "b", "g"), ("arguments", 0, 0, "{}"), ("call", 0, 1, "a", "f"),
          ("arguments", 0, 1, '{"x":1}')]),
        # an index that begins anywhere; no arguments at all
        ([call('{"x":1}', index=5, id="a", name="f"), call(index=7, id="b", name="g")], TWO),
        # the arguments as an object
        ([delta(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}])],
         [TWO[0], ("arguments", 0, 0, '{"x": 1}')]),
        # the name after the arguments have begun
        ([call('{"x"', index=0, id="a"), call(":1}", index=0, name="f")], TWO[:2]),
        # the same function twice, without ids
        ([call("{}", index=0, name="f"), call("{}", index=0, name="f")],
         [("call", 0, 0, "made_0", "f"), ("arguments", 0, 0, "{}"), ("call", 0, 1, "made_1", "f"),
          ("arguments", 0, 1, "{}")]),
        # both in one piece
        ([delta(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
                            {"id": "b", "function": {"name": "g", "arguments": "{}"}}])], TWO),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_calls_whatever_their_indices(chunks: list[Any], expected: Told, reason: str) -> None:
    found = read(answer(), *chunks, delta(reason), "[DONE]")
    assert found == [*expected, ("end", 0, "tool_calls", 0, 0, 0, 0)]


def test_log_probabilities() -> None:
    asked = ask(logprobs=True, top_logprobs=1)
    token = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    piece = {"token": "\\xf0", "logprob": float("-inf"), "bytes": [240], "top_logprobs": [token]}
    chunk = delta(content="é")
    chunk["choices"][0]["logprobs"] = {"content": [token, piece]}
    found = read(answer(asked), chunk, END)
    e = ("é", "é".encode(), -0.5)
    assert found[0] == ("text", 0, "é", [(*e, []), ("\\xf0", b"\xf0", -9999.0, [e])])
    with pytest.raises(chat.Unhonoured, match="logprobs"):
        read(answer(asked), delta(content="x"), END)
    assert read(answer(), chunk, END)[0] == ("text", 0, "é", [])  # nobody asked


def test_the_old_shape_of_log_probabilities() -> None:
    asked = chat.GenerateRequest("m", None, "p")
    asked.top_logprobs = 1
    logprobs = {"tokens": ["a", "bytes:\\xf0"], "token_logprobs": [-1, None], "top_logprobs": [{"b": -2}, None]}
    chunk = {"choices": [{"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "stop"}]}
    found = read(answer(asked), chunk)
    assert found[0] == ("text", 0, "a", [("a", b"a", -1, [("b", b"b", -2)]), ("\ufffd", b"\xf0", 0, [])])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "boom", "code": 500}, chat.GenerationFailed),
        ("boom", chat.GenerationFailed),
        ({"message": "slow down", "code": 429}, chat.Overloaded),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, chat.Overloaded),
        ({"message": "the-key is wrong", "type": "authentication_error"}, chat.Denied),
        ({"message": "no", "type": "invalid_request_error", "param": "n"}, chat.Refused),
        ({"message": "no", "type": "not_found_error"}, chat.ModelNotFound),
    ],
)
@pytest.mark.parametrize("shape", ["error", "event", "object"])
def test_errors_within_a_stream(error: Any, kind: type[chat.EngineError], shape: str) -> None:
    reading = answer()
    reading.take(ServerEvent(json.dumps(delta(content="x"))))
    if shape == "error" or isinstance(error, str):
        event = ServerEvent(json.dumps({"error": error}))
    elif shape == "event":
        event = ServerEvent(json.dumps(error), "error")
    else:
        event = ServerEvent(json.dumps({"object": "error", **error}))
    with pytest.raises(kind) as caught:
        reading.take(event)
    assert "the-key" not in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        "no JSON",
        '{"choices":',
        "[" * 100_000,
        "[]",
        "7",
        '{"choices":7}',
        '{"choices":["x"]}',
        '{"choices":[{"index":1,"delta":{"content":"x"}}]}',
        '{"choices":[{"index":-1,"delta":{}}]}',
        '{"choices":[{"index":[],"delta":{}}]}',
        '{"choices":[{"index":0,"delta":{"content":7}}]}',
        '{"choices":[{"index":0,"delta":"x"}]}',
        '{"choices":[{"index":0,"delta":{"content":[{"type":"image"}]}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":7}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":["x"]}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"function":"x"}]}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":"x"}]}}]}',
        '{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":7}}]}}]}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":[]}]}',
        '{"choices":[{"index":0,"delta":{},"logprobs":{"content":[{"token":"x","bytes":99999999999}]}}]}',
        '{"choices":[{"index":0,"delta":{},"logprobs":{"content":[{"token":"x","logprob":1' + "0" * 400 + "}]}}]}",
        '{"choices":[{"index":0,"delta":{},"logprobs":7}]}',
    ],
)
def test_what_is_no_answer_is_a_typed_failure(data: str) -> None:
    with pytest.raises(chat.GenerationFailed, match="broke its protocol"):
        answer(ask(logprobs=True)).take(ServerEvent(data))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "index", "delta", "content", "tool_calls", "function", "name", "arguments", "id", "usage",
             "logprobs", "token", "bytes", "logprob", "top_logprobs", "finish_reason", "error", "code", "message",
             "type", "text", "tokens", "token_logprobs", "reasoning", "thinking", "prompt_tokens"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=25,
)  # fmt: skip


@given(value=anything, is_plain=st.booleans(), is_whole=st.booleans(), kind=st.sampled_from(["message", "error"]))
def test_no_answer_breaks_the_reading(value: Any, is_plain: bool, is_whole: bool, kind: str) -> None:
    asked = chat.GenerateRequest("m", None, "p") if is_plain else ask(n=2)
    asked.top_logprobs = 1
    reading = answer(asked)
    try:
        if is_whole:
            reading.whole(value)
        else:
            reading.take(ServerEvent(json.dumps({"choices": [value]}), kind))
            reading.take(ServerEvent(json.dumps(value), kind))
        reading.end()
    except chat.EngineError:
        pass


def test_an_answer_at_once() -> None:
    reading = answer(ask(n=2))
    calls = [
        {"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "function": {"name": "g", "arguments": "{}"}},
    ]
    value = {
        "choices": [
            {"message": {"content": "x", "reasoning": "t"}, "finish_reason": "stop"},
            {"index": 1, "message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"},
        ],
        "usage": USAGE["usage"],
    }
    found = plain(reading.whole(value) + reading.end())
    assert found == [
        ("thought", 0, "t"),
        ("text", 0, "x", []),
        *((one[0], 1, *one[2:]) for one in TWO),
        ("end", 0, "stop", 7, 5, 3, 2),
        ("end", 1, "tool_calls", 7, 0, 3, 0),
    ]


# --- there and back --------------------------------------------------------------------------------------

choices = st.integers(0, 1)
said = st.lists(
    st.one_of(
        st.builds(lambda text, choice: chat.Delta(text, choice=choice), texts.filter(bool), choices),
        st.builds(lambda text, choice: chat.Reasoning(text, choice=choice), texts.filter(bool), choices),
    ),
    max_size=6,
)


@st.composite
def called(draw: st.DrawFn) -> list[chat.Event]:
    events: list[chat.Event] = []
    for choice in range(2):
        for index in range(draw(st.integers(0, 2))):
            events.append(chat.CallStarted(index, f"id{choice}{index}", draw(words), choice=choice))
            pieces = draw(
                st.lists(texts.filter(bool), min_size=1, max_size=3).filter(lambda all: "".join(all).strip())
            )
            events += [chat.CallArguments(index, piece, choice=choice) for piece in pieces]
    return events


@given(events=st.tuples(said, called()).map(lambda both: both[0] + both[1]), cut=st.integers(1, 9))
def test_what_our_dialect_writes_is_read_as_it_was(events: list[chat.Event], cut: int) -> None:
    asked = ask(n=2, stream=True, stream_options={"include_usage": True})
    ends: list[chat.Event] = []
    for choice in range(2):
        calls = any(isinstance(one, chat.CallStarted) and one.choice == choice for one in events)
        ends.append(chat.Finished("tool_calls" if calls else "stop", 7, 4 - 4 * choice, choice=choice))
    reply = ChatReply("id", 0, asked)
    wire = reply.frames([*events, *ends]) + reply.end()
    parser, reading = Parser(), answer(asked)
    found: list[chat.Event] = []
    for i in range(0, len(wire), cut):
        for event in parser.feed(wire[i : i + cut]):
            found += reading.take(event)
    assert reading.done and wire.endswith(DONE)
    found += reading.end()
    for choice in range(2):  # calls that are ill-formed are told at the end, behind those of the other choice
        assert plain([one for one in found if one.choice == choice]) == plain(
            [one for one in [*events, *ends] if one.choice == choice]
        )


@given(pieces=st.lists(texts.filter(bool), max_size=5), reason=st.sampled_from(["stop", "length"]))
def test_completions_are_read_as_they_were(pieces: list[str], reason: str) -> None:
    asked = chat.GenerateRequest("m", None, "p")
    asked.include_usage = True
    asked.top_logprobs = 0
    events: list[chat.Event] = [
        chat.Delta(text, logprobs=[chat.TokenLogprob(text, text.encode(), -1.0, [(text, text.encode(), -1.0)])])
        for text in pieces
    ]
    events.append(chat.Finished(reason, 1, 2))
    reply = CompletionReply("id", 0, [asked])
    reading = answer(asked)
    found: list[chat.Event] = []
    for event in Parser().feed(reply.frames(events) + reply.end()):
        found += reading.take(event)
    assert plain(found + reading.end()) == plain(events)
