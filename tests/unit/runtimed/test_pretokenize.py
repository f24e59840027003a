# SPDX-License-Identifier: Apache-2.0
"""Pre-tokenizers: hand-worked cuts of each family, and what must hold for any text."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.runtimed import pretokenize
from syntrop.runtimed.pretokenize import UnknownFamily, family, splitter

FAMILIES = ["gpt-2", "smollm", "default", "llama-bpe", "qwen2"]

CASES = [
    ("gpt-2", "Hello  world", ["Hello", " ", " world"]),
    ("gpt-2", "abc 123", ["abc", " 123"]),
    ("gpt-2", "it's DON'T", ["it", "'s", " DON", "'", "T"]),
    ("gpt-2", "a\n\n b", ["a", "\n\n", " b"]),
    ("gpt-2", "tail   ", ["tail", "   "]),
    ("smollm", "abc 123", ["abc", " ", "1", "2", "3"]),
    # Digits cut first, so blanks before one are the end of their piece.
    ("smollm", "x  5", ["x", "  ", "5"]),
    ("smollm", "n½²", ["n", "½", "²"]),
    ("default", "a.b = 12345", ["a", ".", "b", " ", "=", " ", "123", "45"]),
    ("llama-bpe", "abc 1234567", ["abc", " ", "123", "456", "7"]),
    ("llama-bpe", "DON'T I'Ll", ["DON", "'T", " I", "'Ll"]),
    ("llama-bpe", "a;\n\n  b", ["a", ";\n\n", " ", " b"]),
    ("qwen2", "abc 12", ["abc", " ", "1", "2"]),
    ("qwen2", "(word", ["(word"]),
    ("qwen2", " \n \n x", [" \n \n", " x"]),
    ("qwen2", "日本の 首都", ["日本の", " 首都"]),
    ("qwen2", "e\u0301a", ["e", "\u0301a"]),  # a combining mark is no letter
    ("qwen2", "a\u3000b\x85c", ["a", "\u3000b", "\x85c"]),
    ("qwen2", "a\x1cb", ["a", "\x1cb"]),  # a separator to Python, no white space to Unicode
]


@pytest.mark.parametrize(("name", "text", "pieces"), CASES)
def test_hand_worked(name: str, text: str, pieces: list[str]) -> None:
    assert splitter(name)(text) == pieces


@pytest.mark.parametrize("name", FAMILIES)
@given(text=st.text())
def test_pieces_join_to_the_text_and_none_is_empty(name: str, text: str) -> None:
    pieces = splitter(name)(text)
    assert "".join(pieces) == text
    assert all(pieces)


@given(text=st.text(alphabet=st.sampled_from(" \n\r\t'sSa1.,½é日_\u3000")))
def test_a_run_of_one_category_is_one_piece_in_gpt2(text: str) -> None:
    for piece in splitter("gpt-2")(text):
        kinds = {unicodedata.category(char)[0] for char in piece.strip(" ")}
        assert not {"L", "N"} <= kinds


def test_stand_ins_equal_unicodedata_everywhere() -> None:
    letters, numbers = set("ABCXYZabcxyz"), set("0123456789²")
    for code in range(0x80, sys.maxunicode + 1):
        char = chr(code)
        kind = unicodedata.category(char)[0]
        stand_in = pretokenize._stand_ins[code]
        assert (stand_in in letters) == (kind == "L")
        assert (stand_in in numbers) == (kind == "N")
        assert (stand_in in "\t\n\r ") == (char.isspace() and code not in range(0x1C, 0x20))


def test_aliases_and_unknown_names() -> None:
    assert family("llama-v3") == "llama-bpe"
    assert family("starcoder") == "smollm"
    with pytest.raises(UnknownFamily, match="'nonesuch'"):
        splitter("nonesuch")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", ["a", " ", "\n ", "' ", "1", "日本 ", ".\n", "'s"])
def test_time_grows_linearly(name: str, text: str) -> None:
    from time import perf_counter

    split = splitter(name)
    text *= 300_000 // len(text)
    start = perf_counter()
    split(text)
    assert perf_counter() - start < 5  # quadratic would take hours
