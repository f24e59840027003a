# SPDX-License-Identifier: Apache-2.0
"""Thoughts and answers, told apart however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import markers
from syntrop.common.http.thinking import ThinkFilter


def split(pieces: list[str], *, inside: bool = False) -> tuple[str, str]:
    """(thoughts, answer)"""
    filter = ThinkFilter(inside=inside)
    told = [piece for text in pieces for piece in filter.feed(text)] + filter.finish()
    assert all(text for _, text in told)
    return "".join(text for thought, text in told if thought), "".join(
        text for thought, text in told if not thought
    )


CASES = [
    ("plain answer", ("", "plain answer")),
    ("<think>\nfirst this\nthen that\n</think>\n\nThe answer.\n", ("first this\nthen that", "The answer.\n")),
    ("\n<think></think>\n\nAnswer", ("", "Answer")),
    ("<think>\n\n</think>\n\nAnswer", ("", "Answer")),
    ("<think>never ends \n", ("never ends", "")),
    (
        "<think>a < b, </thin or <think> or\n\n</thinker></think>x",
        ("a < b, </thin or <think> or\n\n</thinker>", "x"),
    ),
    ("Say <think>hm</think> aloud", ("", "Say <think>hm</think> aloud")),
    ("<thing>", ("", "<thing>")),
    ("  \n", ("", "  \n")),
    ("<thi", ("", "<thi")),
    ("<think>a</think>b<think>c</think>", ("a", "b<think>c</think>")),
    ("<|START_THINKING|>a</think><|END_THINKING|>b", ("a</think>", "b")),
    ("", ("", "")),
]


@pytest.mark.parametrize(("text", "right"), CASES)
def test_whole_by_character_and_in_two(text: str, right: tuple[str, str]) -> None:
    assert split([text]) == right
    assert split(list(text)) == right
    for at in range(len(text)):
        assert split([text[:at], text[at:]]) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("hm\n</think>\n\nyes", ("hm", "yes")),
        ("</think>yes", ("", "yes")),
        ("  thinking on", ("thinking on", "")),
        ("a <think> b</think>c", ("a <think> b", "c")),
    ],
)
def test_a_text_that_begins_inside(text: str, right: tuple[str, str]) -> None:
    assert split([text], inside=True) == right
    assert split(list(text), inside=True) == right


def test_thoughts_are_told_as_they_come() -> None:
    filter = ThinkFilter()
    assert filter.feed("<think>") == []
    assert filter.feed("one ") == [(True, "one")]
    assert filter.feed("two</") == [(True, " two")]
    assert filter.feed("b") == [(True, "</b")]
    assert filter.feed("</think>") == []
    assert filter.feed(" x") == [(False, "x")]
    assert filter.feed(" </think>") == [(False, " </think>")]


alphabet = st.sampled_from(["<think>", "</think>", "<", "th", "ink>", " ", "\n", "a", "é", "</"])


@given(st.lists(alphabet, max_size=12).map("".join), st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_cutting_changes_nothing(text: str, cuts: list[int], inside: bool) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = split([text], inside=inside)
    assert split(pieces, inside=inside) == whole
    # Nothing but one pair of marks, and whitespace, is lost.
    thought, answer = ("".join(part.split()) for part in whole)
    given = "".join(text.split())
    openings = ("",) if inside else ("", "<think>")
    assert given in {f"{one}{thought}{close}{answer}" for one in openings for close in ("", "</think>")}


@given(st.text("ab<>", max_size=8), st.lists(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_is_held_is_the_longest_beginning(text: str, marks: list[str]) -> None:
    sizes = [n for n in range(len(text) + 1) for mark in marks if n < len(mark) and text.endswith(mark[:n])]
    assert markers.held(text, marks) == max(sizes)
