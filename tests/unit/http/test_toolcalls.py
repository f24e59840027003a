# SPDX-License-Identifier: Apache-2.0
"""Calls in the words of every family of models, however the text is cut; and what only looks like one."""

from __future__ import annotations

import json
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.toolcalls import ToolCallFilter


def split(pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    """(text, calls with their arguments)"""
    numbers = count()
    filter = ToolCallFilter(["weather", "time"], lambda: f"call_{next(numbers)}")
    text = ""
    calls: list[tuple[str, Any]] = []
    for event in [event for piece in pieces for event in filter.feed(piece)] + filter.finish():
        if isinstance(event, chat.Delta):
            assert event.text
            text += event.text
        elif isinstance(event, chat.CallStarted):
            assert (event.index, event.id) == (len(calls), f"call_{len(calls)}")
            calls.append((event.name, None))
        else:
            assert event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], json.loads(event.text))
    assert filter.calls == len(calls)
    return text, calls


PARIS = ("weather", {"city": "Paris"})
NOW: tuple[str, Any] = ("time", {})
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'

CASES = [
    (HERMES, ("", [PARIS])),
    (f"I will look.\n\n{HERMES}\n{SECOND}\n", ("I will look.", [PARIS, NOW])),
    ('<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}', ("", [PARIS])),
    ('<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', ("", [PARIS])),
    (
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        ("", [PARIS]),
    ),
    ("<tool_call><function=time></function></tool_call>", ("", [NOW])),
    ('[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]',
     ("", [PARIS, NOW])),
    ('[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]time[ARGS]{}', ("", [PARIS, NOW])),
    ('<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "time", "parameters": {}}',
     ("", [PARIS, NOW])),
    ('{"name": "weather", "parameters": {"city": "Paris"}}', ("", [PARIS])),
    ('<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]', ("", [PARIS])),
    ('<tool_call>[{"name": "weather", "arguments": {"city": "Paris"}}]', ("", [PARIS])),
    ('functools[{"name": "weather", "arguments": {"city": "Paris"}}]', ("", [PARIS])),
    (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>weather\n```json\n"
        '{"city": "Paris"}\n```<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>',
        ("", [PARIS]),
    ),
    # What is no call is told as it is.
    ("Use <tool_call> to call.", ("Use <tool_call> to call.", [])),
    ('<tool_call>{"name": "weather", "arguments": {"city": </tool_call> oh',
     ('<tool_call>{"name": "weather", "arguments": {"city": </tool_call> oh', [])),
    ('<tool_call>{"name": 5}</tool_call>', ('<tool_call>{"name": 5}</tool_call>', [])),
    ('{"name": "unknown", "parameters": {}}', ('{"name": "unknown", "parameters": {}}', [])),
    ('{"answer": 42}', ('{"answer": 42}', [])),
    ("[1, 2]", ("[1, 2]", [])),
    ("plain  text\n", ("plain  text\n", [])),
    ("a < b", ("a < b", [])),
    ("", ("", [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), CASES)
def test_whole_by_character_and_in_two(text: str, right: tuple[str, list[tuple[str, Any]]]) -> None:
    assert split([text]) == right
    assert split(list(text)) == right
    for at in range(len(text)):
        assert split([text[:at], text[at:]]) == right


def test_text_is_told_as_it_comes() -> None:
    filter = ToolCallFilter(["weather"], lambda: "id")
    told = [[event.text for event in filter.feed(piece) if isinstance(event, chat.Delta)] for piece in
            ["Let", " me", " look", " <tool", "box>", " ok"]]  # fmt: skip
    assert told == [["Let"], [" me"], [" look"], [], [" <toolbox>"], [" ok"]]


def test_arguments_keep_their_letters() -> None:
    _, calls = split(['<tool_call>{"name": "weather", "arguments": {"city": "Zürich\\n\\u00e9 😀"}}</tool_call>'])
    assert calls == [("weather", {"city": "Zürich\né 😀"})]


PIECES = (
    ["<tool_call>", "</tool_call>"],
    ["[TOOL_CALLS]", "[ARGS]", "<function=time>", "</function>", "{", "time", "x", "<"],
    [" ", "\n", '{"name": "time", "arguments": {}}'],
)
pieces = st.sampled_from([piece for some in PIECES for piece in some])


@given(st.lists(pieces, max_size=10).map("".join), st.lists(st.integers(0, 120), max_size=6))
def test_cutting_changes_nothing(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    assert split([text[a:b] for a, b in pairwise(places)]) == split([text])
