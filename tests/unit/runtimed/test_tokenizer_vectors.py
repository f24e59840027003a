# SPDX-License-Identifier: Apache-2.0
"""Every vocabulary that llama.cpp keeps test vectors for, and some that it keeps none for."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from syntrop.common import gguf
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed.tokenizer import CONTROL, Decoder, Tokenizer
from syntrop.runtimed.vocabulary import pack

SEPARATOR = "\n__ggml_vocab_test__\n"
VECTORS = (
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe",
    "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
BARE = ("aquila", "baichuan", "gpt-neox", "nomic-bert-moe")


def open_vocabulary(models: Path, name: str) -> Tokenizer:
    with (
        open(models / f"ggml-vocab-{name}.gguf", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
    ):
        return tokenizers.load(gguf.parse(mapping, pack=pack).metadata)


def test_none_is_left_out(llama_cpp_models: Path) -> None:
    names = {path.stem.removeprefix("ggml-vocab-"): path for path in llama_cpp_models.glob("*.gguf")}
    assert names.keys() == {*VECTORS, *BARE}
    assert {name for name, path in names.items() if Path(f"{path}.inp").exists()} == {*VECTORS}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str, llama_cpp_models: Path) -> None:
    tokenizer = open_vocabulary(llama_cpp_models, name)
    vectors = llama_cpp_models / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{vectors}.inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    results = Path(f"{vectors}.out").read_text().splitlines()
    assert len(texts) == len(results) >= 46
    for text, result in zip(texts, results, strict=True):
        expected = list(map(int, result.split()))
        assert tokenizer.encode(text, add_special=False, parse_special=False) == expected, repr(text)
        decoder = Decoder(tokenizer)
        written = "".join(map(decoder.feed, expected))
        assert "\ufffd" not in written
        if name == "bert-bge":
            continue  # words come back, without case, accents and the blanks between them
        assert written.removeprefix(" " if name in ("llama-spm", "phi-3") else "") == text


@pytest.mark.parametrize("name", BARE)
def test_vocabularies_without_vectors(name: str, llama_cpp_models: Path) -> None:
    tokenizer = open_vocabulary(llama_cpp_models, name)
    text = "Hello world. Größe 日本語"
    tokens = tokenizer.encode(text, add_special=False)
    assert 5 < len(tokens) < 16
    assert tokenizer.decode(tokens).strip() == text


def test_a_family_of_its_own_says_where_its_turns_end(llama_cpp_models: Path) -> None:
    tokenizer = open_vocabulary(llama_cpp_models, "gemma-4")
    assert {tokenizer.texts[token] for token in tokenizer.ends} >= {"<eos>", "<turn|>"}
    # A plain word in this vocabulary.
    assert tokenizer.ids["</s>"] not in tokenizer.ends
    assert tokenizer.encode("a")[0] == tokenizer.bos


def test_markers_that_swallow_blanks(llama_cpp_models: Path) -> None:
    tokenizer = open_vocabulary(llama_cpp_models, "phi-3")
    end = tokenizer.ids["<|end|>"]
    assert tokenizer.types[end] == CONTROL
    close, apart = (tokenizer.encode(f"a<|end|>{blanks}b", add_special=False) for blanks in ("", " \n  "))
    assert close == apart
    beginning = tokenizer.ids["<s>"]
    assert tokenizer.encode("<s> a", add_special=False) != tokenizer.encode("<s>a", add_special=False)
    assert tokenizer.encode("<s>a", add_special=False)[0] == beginning
