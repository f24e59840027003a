# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json: small ones against the package that made them, MiniLM's against its vocabulary, and refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.runtimed import families, pretokenize
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed.tokenizer import Tokenizer, TokenizerError, load_json
from syntrop.runtimed.tokenizer_bpe import BYTE_TO_CHAR
from syntrop.runtimed.tokenizer_json import template_of
from syntrop.runtimed.tokenizer_unigram import CharacterMap
from syntrop.runtimed.tokenizer_wordpiece import HashedWordPieceTokenizer, words_of

FOLDER = Path(__file__).parents[2] / "data"
DATA = json.loads((FOLDER / "tokenizers.json").read_text())
KINDS: dict[str, Any] = DATA["tokenizers"]
ENCODERS = json.loads((FOLDER / "encoders" / "tokenizers.json").read_text())  # its make_tokenizers.py made them


def read(document: Any, config: Any = None) -> Tokenizer:
    return load_json(json.dumps(document).encode(), None if config is None else json.dumps(config).encode())


@pytest.mark.parametrize(
    ("data", "name"), [(data, name) for data in (DATA, ENCODERS) for name in data["tokenizers"]]
)
def test_tokens_of_the_package_that_made_them(data: Any, name: str) -> None:
    kind = data["tokenizers"][name]
    tokenizer = read(kind["json"])
    for text, (framed, plain) in zip(data["texts"], kind["cases"], strict=True):
        assert tokenizer.encode(text) == framed, repr(text)
        assert tokenizer.encode(text, add_special=False) == plain, repr(text)


def test_merges_as_pairs_are_the_same() -> None:
    document = copy.deepcopy(KINDS["byte level"]["json"])
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in document["model"]["merges"]]
    for merges in (pairs, [" ".join(pair) for pair in pairs]):
        document["model"]["merges"] = merges
        tokenizer = read(document)
        text = "the lazy dog über 12345"
        assert tokenizer.encode(text) == read(KINDS["byte level"]["json"]).encode(text)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_text_comes_back(name: str, text: str) -> None:
    from unicodedata import normalize

    tokenizer = MADE[name]
    written = tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False))
    if name == "byte level":
        assert written == normalize("NFC", text)
    else:
        assert written == (" " + text.replace("\u2581", " ") if text else "")


MADE = {name: read(kind["json"]) for name, kind in KINDS.items()}


def test_minilm(minilm_path: Path) -> None:
    tokenizer = load_json((minilm_path / "tokenizer.json").read_bytes())
    assert len(tokenizer) == 30522
    # Values of the tokenizers package.
    expected = {
        "Hello World!": [101, 7592, 2088, 999, 102],
        "Größe ÉCOLE 日本": [101, 24665, 2080, 17499, 12431, 1864, 1876, 102],
        "unaffable x\u0301 [MASK]": [101, 14477, 20961, 3468, 1060, 103, 102],
        " \t\n": [101, 102],
        "x" * 101: [101, 100, 102],
    }
    for text, tokens in expected.items():
        assert tokenizer.encode(text) == tokens, text
    assert tokenizer.at_least(1000) == 0


def test_words_as_bert_cuts_them() -> None:
    tokenizer = MADE["word pieces"]
    assert isinstance(tokenizer, HashedWordPieceTokenizer)

    def cut(text: str) -> list[str]:
        return words_of(text.translate(tokenizer._normal))

    assert cut("Don't\u3000stop") == ["don", "'", "t", "stop"]
    assert cut("a漢字b") == ["a", "漢", "字", "b"]
    assert cut("\u0130\u03a3 \u00c5") == ["i\u03c3", "a"]
    assert cut("a\u200bb\x00c\ufffd\x07d") == ["abcd"]
    # What came after Unicode 8 is neither sign nor mark to the vocabularies' makers.
    assert cut("a\u2e43b a\u1ac5b") == ["a\u2e43b", "a\u1ac5b"]


def test_a_template_and_names_out_of_the_configuration() -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "x"}
    tokenizer = read(KINDS["byte fallback"]["json"], config)
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.eos in tokenizer.ends
    assert template_of(json.dumps(config).encode()) == "x"
    many = {"chat_template": [{"name": "rag", "template": "y"}, {"name": "default", "template": "x"}]}
    assert template_of(json.dumps(many).encode()) == "x"
    assert template_of(b"{}") is None


def test_every_rule_of_a_family_is_read_back() -> None:
    document = copy.deepcopy(KINDS["byte level"]["json"])
    split, byte_level = document["pre_tokenizer"]["pretokenizers"]
    for name, rules in families.RULES.items():
        if name == "afmoe":
            continue
        steps = [{**split, "pattern": {"Regex": rule}} for rule in rules]
        document["pre_tokenizer"]["pretokenizers"] = [*steps, byte_level]
        text = "it's 12345 Über\n\n 日本"
        made = read(document)
        assert isinstance(made, tokenizers.Tokenizer)
        assert made._split(text) == pretokenize.splitter(name)(text)  # type: ignore[attr-defined]


def change(name: str, path: str, value: Any) -> Any:
    document = copy.deepcopy(KINDS[name]["json"])
    *way, last = path.split(".")
    place = document
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "no object"),
        ({}, "damaged"),
        ({"model": {"type": "WordLevel", "vocab": {}}}, "WordLevel"),
        (change("byte level", "normalizer", {"type": "Lowercase"}), "Lowercase"),
        (change("byte level", "pre_tokenizer.pretokenizers.0.pattern", {"Regex": "(a+)+$"}), "expression"),
        (change("byte level", "pre_tokenizer.pretokenizers.0.behavior", "MergedWithNext"), "behaviour"),
        (change("byte level", "pre_tokenizer.pretokenizers.1.add_prefix_space", True), "add_prefix_space"),
        (change("byte level", "pre_tokenizer.pretokenizers.0", {"type": "UnicodeScripts"}), "UnicodeScripts"),
        (change("byte level", "model.continuing_subword_prefix", "@@"), "continuing_subword_prefix"),
        (change("byte level", "model.merges", [["a"]]), "damaged"),
        (change("byte level", "model.vocab", {"a": 1 << 40}), "numbered up to"),
        (change("byte level", "model.vocab", {"a": -1}), "no number"),
        (change("byte level", "model.vocab", {"a": "b"}), "no number"),
        (change("byte level", "added_tokens.0.single_word", True), "single_word"),
        (change("byte level", "post_processor", {"type": "Strange"}), "Strange"),
        (change("byte fallback", "post_processor.special_tokens.<s>.ids", [1 << 40]), "adds a token"),
        (change("byte fallback", "model.byte_fallback", False), "byte_fallback"),
        (change("word pieces", "pre_tokenizer", None), "pre-tokenizer"),
        (change("word pieces", "model.unk_token", "nonesuch"), "unknown token"),
        (change("unigram", "normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "truncated"),
    ],
)
def test_what_cannot_be_read_is_named(document: Any, reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        read(document)


def test_bytes_that_are_no_document() -> None:
    for data in (b"", b"\xff", b"[" * 100_000, b"nul"):
        with pytest.raises(TokenizerError):
            load_json(data)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists), st.sampled_from(sorted(KINDS))
)
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_place_gives_a_tokenizer_or_an_error(value: Any, name: str) -> None:
    for key in ("normalizer", "pre_tokenizer", "post_processor", "added_tokens", "model"):
        try:
            read({**KINDS[name]["json"], key: value}).encode("a b")
        except TokenizerError:
            pass


def test_a_character_map_replaces_the_longest_match() -> None:
    # A trie by hand: base of the root 256, so that a byte's node is 256 ^ byte; its value 512 further.
    units = [0] * 1024
    units[0] = 256 << 10
    units[256 ^ ord("a")] = 512 << 10 | 1 << 8 | ord("a")
    units[256 ^ ord("a") ^ 512] = 0 | 1 << 31
    blob = b"".join(unit.to_bytes(4, "little") for unit in units)
    table = CharacterMap(len(blob).to_bytes(4, "little") + blob + b"\xc3\xa4\0")
    assert table.apply("banana 日") == "bänänä 日"


@given(st.binary(max_size=200), st.text(max_size=20))
def test_a_character_map_of_any_bytes_leads_nowhere_else(data: bytes, text: str) -> None:
    size = len(data) // 2 & ~3
    try:
        CharacterMap(size.to_bytes(4, "little") + data).apply(text)
    except TokenizerError:
        pass


def test_whole_byte_range_is_spelled() -> None:
    assert len({*BYTE_TO_CHAR}) == 256
