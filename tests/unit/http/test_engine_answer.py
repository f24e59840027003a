# SPDX-License-Identifier: Apache-2.0
"""The engine's text as events: the same in every cut, with each token where its text is told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.answers import gather
from syntrop.common.http.engine_answer import Answer, by_token

RESULT = {"finish_reason": "stop", "prompt_tokens": 7, "completion_tokens": 99}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
START = {"prompt_tokens": 7, "cached_tokens": 2, "thinking": False}


def request(*, tools: bool = True, logprobs: bool = False, parallel: bool = True) -> chat.GenerateRequest:
    asked = chat.GenerateRequest("m", [chat.Message("user", "x")])
    asked.tools = [chat.Tool("f", None, None)] if tools else []
    asked.top_logprobs = 0 if logprobs else None
    asked.parallel_tool_calls = parallel
    return asked


def answer(asked: chat.GenerateRequest) -> Answer:
    numbers = itertools.count()
    return Answer(asked, lambda: f"call_{next(numbers)}")


def reply(text: str, *, number: int | None = None, logprobs: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = {"delta": text}
    if number is not None:
        told["completion_tokens"] = number
    if logprobs:
        told["logprobs"] = [{"text": text, "bytes": list(text.encode()), "logprob": -1.0, "top": []}]
    return told


def run(
    asked: chat.GenerateRequest, pieces: list[str], *, start: dict[str, Any] | None = None
) -> list[chat.Event]:
    one = answer(asked)
    events: list[chat.Event] = []
    for i, piece in enumerate(pieces):
        told = reply(piece, number=i + 1, logprobs=asked.top_logprobs is not None)
        if i == 0:
            told["start"] = start or START
        events += one.feed(told)
    rest, end = one.finish({**RESULT, "completion_tokens": len(pieces)})
    return [*events, *rest, end]


pieces_of_text = st.lists(
    st.sampled_from(["<think>", "</think>", "hm", " ", "\n", "ü", "<", "</", "a ", CALL, "<tool_call>", "{", "b"]),
    max_size=8,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(pieces_of_text, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_every_cut_gives_the_same_answer(
    text: str, tools: bool, logprobs: bool, thinking: bool, data: st.DataObject
) -> None:
    pieces = []
    rest = text
    while rest:
        size = data.draw(st.integers(1, min(6, len(rest))))
        pieces.append(rest[:size])
        rest = rest[size:]
    asked = request(tools=tools, logprobs=logprobs)
    start = {**START, "thinking": thinking}
    (one,) = gather(run(asked, pieces, start=start))
    (whole,) = gather(run(asked, [text], start=start))
    assert (one.text, one.reasoning) == (whole.text, whole.reasoning)
    assert [(c.name, c.arguments) for c in one.calls] == [(c.name, c.arguments) for c in whole.calls]
    assert one.end is not None and one.end.reason == ("tool_calls" if one.calls else "stop")
    if logprobs and one.text == text:
        assert "".join(token.text for token in one.logprobs or []) == text, (
            "nothing was dropped: all tokens are told"
        )
    if not thinking and not text.lstrip().startswith("<"):
        assert one.reasoning == "" and one.end.reasoning_tokens == 0
    if one.reasoning:
        assert one.end.reasoning_tokens > 0


def test_tokens_go_with_their_text() -> None:
    asked = request(logprobs=True)
    pieces = [
        "<th",
        "ink>",
        "hm",
        "</think>",
        "\n\n",
        "Hel",
        "lo",
        " ",
        "<tool",
        '_call>{"name":"f"}',
        "</tool_call>",
    ]
    events = run(asked, pieces)
    deltas = [event for event in events if isinstance(event, chat.Delta)]
    assert [(d.text, [t.text for t in d.logprobs or []]) for d in deltas] == [("Hel", ["Hel"]), ("lo", ["lo"])]
    (one,) = gather(events)
    assert (one.reasoning, [call.name for call in one.calls]) == ("hm", ["f"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["<think>", "hm", "</think>", " ", "ü", "b", CALL, "\n"]), max_size=8), st.data())
def test_tokens_that_come_together_are_told_as_if_they_had_come_alone(
    pieces: list[str], data: st.DataObject
) -> None:
    alone = gather(run(request(logprobs=True), pieces))[0]
    one = answer(request(logprobs=True))
    events: list[chat.Event] = []
    rest = [reply(piece, logprobs=True) for piece in pieces]
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        batch, rest = rest[:size], rest[size:]
        tokens = [token for told in batch for token in told["logprobs"]]
        events += one.feed({"delta": "".join(told["delta"] for told in batch), "logprobs": tokens})
    last, end = one.finish(RESULT)
    (together,) = gather([*events, *last, end])
    assert (together.text, together.reasoning, len(together.calls)) == (
        alone.text,
        alone.reasoning,
        len(alone.calls),
    )
    assert [t.text for t in together.logprobs or []] == [t.text for t in alone.logprobs or []]


def test_tokens_within_characters_and_without_text() -> None:
    def token(data: bytes) -> chat.TokenLogprob:
        return chat.TokenLogprob("?", data, -1.0, [])

    def pieces(text: str, *tokens: bytes) -> list[tuple[str, list[bytes]]]:
        return [
            (piece, [one.bytes for one in named]) for piece, named in by_token(text, [token(t) for t in tokens])
        ]

    assert pieces("aüb", b"a\xc3", b"\xbc", b"b") == [("a", [b"a\xc3"]), ("ü", [b"\xbc"]), ("b", [b"b"])]
    assert pieces("ü", b"\xc3", b"\xbc", b"") == [("ü", [b"\xc3", b"\xbc", b""])]
    assert pieces("ab", b" a", b"b") == [("a", [b" a"]), ("b", [b"b"])], "a text that begins without its space"
    assert pieces("x") == [("x", [])] and pieces("", b"\xc3") == [("", [b"\xc3"])]


def test_tokens_of_what_turns_out_to_be_text() -> None:
    pieces = ["a", " ", "<tool", "_call>", "no", "</tool_call>", "b"]
    (one,) = gather(run(request(logprobs=True), pieces))
    assert one.text == "".join(pieces) == "".join(token.text for token in one.logprobs or [])


def test_tokens_whose_text_comes_later() -> None:
    """Bytes of one character: the engine tells the tokens with the piece that ends the character."""
    one = answer(request(tools=False, logprobs=True))
    halves = [{"text": "\ufffd", "bytes": [byte], "logprob": -1.0, "top": []} for byte in "ü".encode()]
    assert one.feed({"delta": None, "logprobs": halves[:1]}) == []
    (delta,) = one.feed({"delta": "ü", "logprobs": halves[1:]})
    assert isinstance(delta, chat.Delta) and delta.logprobs is not None
    assert b"".join(token.bytes for token in delta.logprobs) == "ü".encode()


@pytest.mark.parametrize("thinking", [False, True])
def test_thoughts_are_counted_where_the_template_opened_them_too(thinking: bool) -> None:
    pieces = ([] if thinking else ["<think>"]) + ["hm", " so", "</think>", "yes", "."]
    end = run(request(), pieces, start={**START, "thinking": thinking})[-1]
    assert isinstance(end, chat.Finished)
    assert (end.reasoning_tokens, end.completion_tokens) == (len(pieces) - 2, len(pieces))
    assert (end.prompt_tokens, end.cached_tokens) == (7, 2)
    cut_off = run(request(), ["hm", " so"], start={**START, "thinking": True})
    assert [event.text for event in cut_off if isinstance(event, chat.Reasoning)] == ["hm", " so"]
    assert isinstance(cut_off[-1], chat.Finished) and cut_off[-1].reasoning_tokens == 2


def test_a_prompt_is_continued_as_it_is() -> None:
    asked = chat.GenerateRequest("m", None, "x")
    (one,) = gather(run(asked, ["<think>", "hm</think>", CALL]))
    assert (one.text, one.reasoning, one.calls) == (f"<think>hm</think>{CALL}", "", [])


def test_the_stop_string_is_told_where_it_ended_the_answer() -> None:
    ended = {**RESULT, "stop_string": "END"}
    assert answer(request()).finish(ended)[1].stop_sequence == "END"
    assert answer(request()).finish(RESULT)[1].stop_sequence is None
    called = answer(request())
    called.feed(reply(CALL))
    end = called.finish(ended)[1]
    assert (end.reason, end.stop_sequence) == ("tool_calls", None)


def test_without_tools_or_where_none_may_be_called_nothing_is_a_call() -> None:
    forbidden = request()
    forbidden.tool_choice = "none"
    for asked in (request(tools=False), forbidden):
        (one,) = gather(run(asked, [CALL]))
        assert (one.text, one.calls) == (CALL, [])


def test_one_call_where_no_more_are_allowed() -> None:
    one = answer(request(parallel=False))
    events = one.feed({"delta": CALL + "\n" + CALL + " and text", "start": START, "completion_tokens": 5})
    assert [type(event) for event in events] == [chat.CallStarted, chat.CallArguments] and one.enough
    assert one.feed({"delta": "more", "completion_tokens": 6}) == []
    end = one.stop()
    assert end is not None and (end.reason, end.prompt_tokens, end.completion_tokens) == ("tool_calls", 7, 6)


def test_one_call_from_an_engine_that_tells_its_usage_only_in_the_end() -> None:
    one = answer(request(parallel=False))
    assert len(one.feed({"delta": CALL})) == 2 and one.enough and one.stop() is None
    assert one.feed({"delta": CALL}) == []
    events, end = one.finish(RESULT)
    assert events == [] and (end.reason, end.completion_tokens) == ("tool_calls", 99)


def test_an_answer_that_is_cut_says_so() -> None:
    one = answer(request())
    one.feed({"delta": CALL})
    assert one.finish({**RESULT, "finish_reason": "length"})[1].reason == "length"
