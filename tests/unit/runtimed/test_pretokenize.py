# SPDX-License-Identifier: Apache-2.0
"""Pre-tokenizers: hand-worked cuts, another implementation's on odd texts, and what must hold for any text."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.runtimed import families, pretokenize
from syntrop.runtimed.pretokenize import UnknownFamily, family, splitter

SPLITTERS = {name: splitter(name) for name in families.RULES}
ORACLE = json.loads((Path(__file__).parents[2] / "data" / "pretokenize.json").read_text())

CATEGORIES = {
    r"\p{L}": "Lu,Ll,Lt,Lm,Lo",
    r"\p{N}": "Nd,Nl,No",
    r"\p{P}": "Pc,Pd,Ps,Pe,Pi,Pf,Po",
    r"\p{S}": "Sm,Sc,Sk,So",
    r"\p{M}": "Mn,Mc,Me",
    r"\s": " ",
}

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
    ("qwen35", "e\u0301a", ["e\u0301a"]),  # … but here it is
    ("qwen2", "a\u3000b\x85c", ["a", "\u3000b", "\x85c"]),
    ("qwen2", "a\x1cb", ["a", "\x1cb"]),  # a separator to Python, no white space to Unicode
    ("gpt-4o", "HTTPServer's", ["HTTPServer's"]),
    ("gpt-4o", "camelCase", ["camel", "Case"]),
    ("deepseek-v3", "x漢字かな 12345", ["x", "漢字かな", " ", "123", "45"]),
    ("kimi-k2", "x漢字かな", ["x", "漢字", "かな"]),
    ("afmoe", "1234567 12", ["1", "234", "567", " ", "12"]),
    ("superbpe", "a1234567 b c", ["a", "1", "234", "567", " b c"]),
    ("tiny_aya", "1234 1234x", ["1", "234", " ", "123", "4", "x"]),
    ("tiny_aya", "12345² 12345① 12345Ⓐ", ["123", "45²", " ", "12", "345", "①", " ", "123", "45", "Ⓐ"]),
    ("lines", "a b\n\nc", ["a b", "\n\n", "c"]),
]


@pytest.mark.parametrize(("name", "text", "pieces"), CASES)
def test_hand_worked(name: str, text: str, pieces: list[str]) -> None:
    assert splitter(name)(text) == pieces


@pytest.mark.parametrize("name", ORACLE["families"])
def test_cuts_as_another_implementation_does(name: str) -> None:
    split = splitter(name)
    for text, lengths in zip(ORACLE["texts"], ORACLE["families"][name], strict=True):
        assert [len(piece) for piece in split(text)] == lengths, text


def test_the_oracle_knows_all_families_but_one() -> None:
    # No expression was published for how this one counts digits.
    assert {*SPLITTERS} - {*ORACLE["families"]} == {"afmoe"}


@given(text=st.text())
@settings(deadline=None)
def test_pieces_join_to_the_text_and_none_is_empty(text: str) -> None:
    for split in SPLITTERS.values():
        pieces = split(text)
        assert "".join(pieces) == text
        assert all(pieces)


@given(text=st.text(alphabet=st.sampled_from(" \n\r\t'sSa1.,½é日_\u3000")))
def test_a_run_of_one_category_is_one_piece_in_gpt2(text: str) -> None:
    for piece in splitter("gpt-2")(text):
        kinds = {unicodedata.category(char)[0] for char in piece.strip(" ")}
        assert not {"L", "N"} <= kinds


@pytest.mark.parametrize("table", [pretokenize._stand_ins, pretokenize._han_stand_ins], ids=["plain", "han"])
def test_stand_ins_equal_unicodedata_everywhere(table: dict[int, str]) -> None:
    def kind(char: str) -> str:
        return " " if char.isspace() else unicodedata.category(char)

    pairs = {(table[code], kind(chr(code))) for code in range(0x80, 0x32000)}
    han = {pretokenize._HAN_OTHER}  # of that script only letters and numbers are told apart
    for name, categories in CATEGORIES.items():
        matches = re.compile(pretokenize._translated(name, True)).fullmatch
        for stand_in, category in pairs:
            assert stand_in in han or bool(matches(stand_in)) == (category in categories.split(",")), name


def test_aliases_and_unknown_names() -> None:
    assert family("llama-v3") == "llama-bpe"
    assert family("starcoder") == "smollm"
    assert {family(name) for name in families.ALIASES} <= {*families.RULES}
    with pytest.raises(UnknownFamily, match="'nonesuch'"):
        splitter("nonesuch")


@pytest.mark.parametrize("name", SPLITTERS)
def test_time_grows_linearly(name: str) -> None:
    from time import process_time

    start = process_time()
    # Runs that a rule could begin on anew at each place, with an end that keeps it from matching.
    for unit in (" ", "A", "\u3000"):
        SPLITTERS[name](unit * 300_000 + "5!")
    assert process_time() - start < 40  # quadratic would take hours; 0.1 s measured
