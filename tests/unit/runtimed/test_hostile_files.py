# SPDX-License-Identifier: Apache-2.0
"""Model files that lie: both readers of GGUF arrays agree, safetensors never points outside its file, and whatever
metadata say, loading gives a model or an error that tells where."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import gguf, safetensors
from syntrop.common.gguf import GGUFError
from syntrop.common.safetensors import SafetensorsError
from syntrop.runtimed import _kernels, loading, vocabulary
from syntrop.runtimed.chat_template import TemplateError
from syntrop.runtimed.tokenizer import TokenizerError

ffi, lib = _kernels.ffi, _kernels.lib
WORDS = st.sampled_from(
    [0, 1, 2, 7, 8, 9, 31, 32, 255, 1 << 31, 2**32 - 1, 1 << 32, 1 << 62, 2**63 - 1, 1 << 63, 2**64 - 1]
)


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + items


# Arrays long enough to be packed, of strings and of numbers, before and after other things.
TOKENS = [f"t{i}é".encode() for i in range(1100)]
PAIRS = [
    _string(b"general.architecture") + struct.pack("<I", 8) + _string(b"llama"),
    _string(b"tokens") + _array(8, len(TOKENS), b"".join(map(_string, TOKENS))),
    _string(b"scores") + _array(6, 1100, struct.pack("<1100f", *range(1100))),
    _string(b"types") + _array(5, 1100, struct.pack("<1100i", *range(1100))),
    _string(b"flags") + _array(7, 40, bytes(40)),
]
ROW = _string(b"w") + struct.pack("<IQQIQ", 2, 32, 4, 8, 0)
HEAD = b"GGUF" + struct.pack("<IQQ", 3, 1, len(PAIRS)) + b"".join(PAIRS) + ROW
FILE = HEAD + bytes(-len(HEAD) % 32) + bytes(4 * 34)


def plain(value: object) -> object:
    if isinstance(value, vocabulary.Packed):
        return list(vocabulary.Strings(value.raw, value.count))
    return list(value) if hasattr(value, "__len__") else value  # type: ignore[call-overload]


def outcome(content: bytes, pack: Any) -> tuple[str, int, dict[str, Any]]:
    """Field and offset of the error, or what was read."""
    try:
        read = gguf.parse(content, pack=pack)
    except GGUFError as error:
        assert 0 <= error.offset <= len(content)
        return error.field, error.offset, {}
    for tensor in read.tensors.values():
        assert tensor.offset >= 0 and tensor.offset + tensor.nbytes <= len(content)
    return "", 0, {key: repr(plain(value)) for key, value in read.metadata.items()}


def both_agree(content: bytes) -> None:
    assert outcome(content, vocabulary.pack) == outcome(content, None)


def test_long_arrays_are_read_the_same_either_way() -> None:
    field, _, metadata = outcome(FILE, vocabulary.pack)
    assert field == "" and len(metadata) == len(PAIRS)
    assert isinstance(gguf.parse(FILE, pack=vocabulary.pack).metadata["tokens"], vocabulary.Packed)
    both_agree(FILE)


@given(st.lists(st.tuples(st.integers(0, len(FILE) - 8), WORDS), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_words_overwritten_anywhere(changes: list[tuple[int, int]]) -> None:
    content = bytearray(FILE)
    for at, word in changes:
        content[at : at + 8] = struct.pack("<Q", word)
    both_agree(bytes(content))


# The starts of strings inside the long array: lengths that lie are found nowhere else so surely.
LENGTHS = [FILE.index(_string(token)) for token in TOKENS[::50]]


@given(st.sampled_from(LENGTHS), WORDS, st.integers(-2, 2))
@settings(max_examples=200, deadline=None)
def test_lengths_inside_a_long_array_that_lie(at: int, word: int, more: int) -> None:
    content = bytearray(FILE)
    content[at : at + 8] = struct.pack("<Q", (word + more) % 2**64)
    both_agree(bytes(content))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_cuts_insertions_and_bytes(data: st.DataObject) -> None:
    content = bytearray(FILE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                content[at] = data.draw(st.integers(0, 255))
            case 1:
                del content[at : at + data.draw(st.integers(1, 64))]
            case _:
                content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
    both_agree(bytes(content))


@pytest.mark.parametrize("length", [*range(0, 4000, 97), *range(len(FILE) - 200, len(FILE))])
def test_truncated(length: int) -> None:
    field, _, _ = outcome(FILE[:length], vocabulary.pack)
    assert field
    both_agree(FILE[:length])


CHECKPOINT = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "__metadata__": {"format": "pt"},
}


def written(header: Any, size: int = 32) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(size)


def inside_or_refused(content: bytes) -> None:
    try:
        read = safetensors.parse(content)
    except SafetensorsError as error:
        assert error.field and error.reason and 0 <= error.offset <= len(content)
        return
    for tensor in read.tensors.values():
        assert 8 <= tensor.start <= tensor.end <= len(content)
        assert (tensor.end - tensor.start) * 8 == tensor.elements * safetensors.BITS[tensor.type_name]


@pytest.mark.parametrize("bad", [-1, 1 << 62, 1 << 63, 1 << 64, 1e3, 2.5, True, None, "2", [2], {}])
@pytest.mark.parametrize("where", ["extent", "start", "end", "shape", "offsets", "dtype", "row"])
def test_checkpoints_with_a_wrong_value(bad: Any, where: str) -> None:
    row: Any = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    match where:
        case "extent":
            row["shape"] = [bad, 3]
        case "start":
            row["data_offsets"] = [bad, 24]
        case "end":
            row["data_offsets"] = [0, bad]
        case "shape":
            row["shape"] = bad
        case "offsets":
            row["data_offsets"] = bad
        case "dtype":
            row["dtype"] = bad
        case _:
            row = bad
    with pytest.raises(SafetensorsError, match="'a'") as caught:
        safetensors.parse(written({"a": row}, 24))
    assert (caught.value.field, caught.value.offset) == ("tensor 'a'", 9)  # behind the length and a brace


@pytest.mark.parametrize("length", [0, 1, 1 << 31, 2**32 - 1, 1 << 62, 1 << 63, 2**64 - 1])
def test_checkpoints_with_an_impossible_header_length(length: int) -> None:
    with pytest.raises(SafetensorsError, match=f"header length at byte 0: {length} in"):
        safetensors.parse(struct.pack("<Q", length) + written(CHECKPOINT)[8:])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_checkpoints(data: st.DataObject) -> None:
    content = bytearray(written(CHECKPOINT))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                content[at] = data.draw(st.sampled_from(b'0123456789-,:"[]{}e.\x00\xff'))
            case 1:
                del content[at : at + data.draw(st.integers(1, 8))]
            case _:
                content[at:at] = data.draw(
                    st.sampled_from([b"0", b"9", b"99999999999999999999", b"[", b"NaN", b"e9"])
                )
    inside_or_refused(bytes(content))


def _tiny() -> Any:
    spec = importlib.util.spec_from_file_location("hostile_tinymodel", Path(__file__).with_name("tinymodel.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tinymodel = _tiny()
VOCABULARY = 1100  # arrays of so many are packed, shorter ones are not
TINY = tinymodel.Tiny(layers=1, vocab=VOCABULARY, context=64)
TEXTS = [
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "<end>",
    "a",
    "b",
    "ab",
    *(f"t{i}" for i in range(VOCABULARY - 260)),
]
WORDS_OF = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TEXTS,
    "tokenizer.ggml.token_type": [1] * 256 + [3] + [1] * (VOCABULARY - 257),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 256,
    "tokenizer.ggml.eos_token_id": 256,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}
OTHER_KEYS = (
    "general.alignment", "general.name", "llama.attention.causal", "llama.attention.sliding_window",
    "llama.pooling_type", "llama.rope.scaling.attn_factor", "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length", "llama.rope.scaling.type", "split.count",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.scores", "tokenizer.ggml.seperator_token_id",
)  # fmt: skip
KEYS = sorted({*TINY.metadata, *WORDS_OF, *OTHER_KEYS})
SCALARS = {"I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}


def _encoded(letter: str, items: list[Any], array: bool) -> bytes:
    """A value as the file has it: of one item, or an array."""
    kind = 8 if letter == "s" else SCALARS[letter]
    body = b"".join(_string(one) if letter == "s" else struct.pack("<" + letter, one) for one in items)
    return (_array(kind, len(items), body)) if array else struct.pack("<I", kind) + body


NUMBERS: dict[str, list[Any]] = {
    "I": [0, 1, 3, 255, VOCABULARY - 1, VOCABULARY, 1 << 31],
    "i": [-1, 6, -(1 << 31)],
    "f": [math.nan, math.inf, -1.0, 0.0, 1e-40, 3e38],
    "?": [False, True],
    "Q": [1 << 63, (1 << 64) - 1],
    "q": [-1, -(1 << 63)],
    "d": [1e308, 5e-324],
    "s": [
        b"",
        b" ",
        b"a b",
        b"yarn",
        b"longrope",
        b"llama",
        b"bert",
        b"t5",
        b"gemma4",
        b"{{",
        b"phi-3",
        "é\0".encode(),
    ],
}
VALUES = st.sampled_from(
    [
        _encoded(letter, [number] * count, array)
        for letter, numbers in NUMBERS.items()
        for number in numbers
        for count, array in ((1, False), (0, True), (1, True), (VOCABULARY, True))
    ]
)


def _file(changes: dict[str, bytes], kind: str) -> bytes:
    """The tiny model, with these values in the place of its own."""
    pairs = {key: tinymodel._value(value) for key, value in {**TINY.metadata, **WORDS_OF}.items()}
    pairs |= {
        "tokenizer.ggml.model": _encoded("s", [kind.encode()], array=False),
        "tokenizer.ggml.scores": _encoded("f", [-float(i) for i in range(VOCABULARY)], array=True),
        **changes,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(TINY.tensors), len(pairs))
    head += b"".join(_string(key.encode()) + value for key, value in pairs.items())
    offset, body = 0, b""
    for name, (type, shape, data) in TINY.tensors.items():
        head += _string(name.encode()) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", type, offset)
        body += data + bytes(-len(data) % 32)
        offset = len(body)
    return head + bytes(-len(head) % 32) + body


def _load(content: bytes, folder: Path) -> loading.Loaded:
    (folder / "file").write_bytes(content)
    handle = os.open(folder / "file", os.O_RDONLY)
    return loading.load(handle, len(content), name="x", digest="y", how=loading.How(1))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5", "bert", "gemma4"])
def test_any_value_under_any_key_loads_or_is_refused(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("hostile")

    @given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
    @settings(max_examples=150, deadline=None, derandomize=True)
    def check(changes: dict[str, bytes]) -> None:
        try:
            loaded = _load(_file(changes, kind), folder)
        except loading.LoadError as error:
            assert "could not be read" not in str(error), "an error that nobody foresaw"
            return
        most = min(8, loaded.model.context)
        with loaded.model.sequence(most) as sequence:
            try:
                tokens = loaded.tokenizer.encode("a wörd  ab<end>\U0001f600")
                loaded.tokenizer.decode(tokens)
            except TokenizerError:
                tokens = []
            assert loaded.tokenizer.at_least(1) in (0, 1)
            loaded.model.forward(sequence, (tokens or [1])[:most])
        if loaded.template is not None:
            try:
                loaded.template.render([{"role": "user", "content": "x"}])
            except TemplateError:
                pass
        loaded.close()

    check()


def test_a_model_that_cannot_be_run_tells_at_which_byte(tmp_path: Path) -> None:
    content = _file({"llama.block_count": _encoded("Q", [1 << 63], array=False)}, "gpt2")
    at = content.index(b"llama.block_count") + len(b"llama.block_count")
    with pytest.raises(loading.LoadError, match=f"llama.block_count at byte {at}: {1 << 63} is not between"):
        _load(content, tmp_path)
    content = _file({}, "gpt2").replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight")
    at = content.index(b"blk.0.attn_x.weight") - 8
    with pytest.raises(loading.LoadError, match=f"blk.0.attn_x.weight at byte {at}: a tensor that llama"):
        _load(content, tmp_path)


def _cut_at(moment: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is cut short before its header is read, or after that and before its weights are."""
    parse = gguf.parse

    def cutting(*arguments: Any, **how: Any) -> gguf.GGUF:
        if moment == "header":
            os.truncate(file, 0)
        header = parse(*arguments, **how)
        os.truncate(file, 0)
        return header

    monkeypatch.setattr(gguf, "parse", cutting)


@pytest.mark.parametrize("moment", ["header", "weights"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_that_is_cut_short_while_it_is_loaded(
    moment: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, content = tmp_path / "file", _file({}, "gpt2")
    file.write_bytes(content)
    watches = {lib.sy_watch(ffi.from_buffer(content), 1) for _ in range(99)}  # all, so that none is lost below
    for watch in watches - {-1}:
        lib.sy_watch_end(watch)
    for _ in range(len(watches) + 1):  # no watch is kept
        with monkeypatch.context() as patch:
            file.write_bytes(content)
            handle = os.open(file, os.O_RDONLY)
            _cut_at(moment, file, patch)
            with pytest.raises(loading.LoadError, match="x cannot be loaded: the file: it was cut short"):
                loading.load(handle, len(content), name="x", digest="y", how=loading.How(threads))
    _load(content, tmp_path).close()


READS = """
import mmap, os, sys
from syntrop.runtimed.watching import Watch
files = [open(path, "r+b") for path in sys.argv[1:]]
ours, other = [mmap.mmap(one.fileno(), 0, prot=mmap.PROT_READ) for one in files]
for one in files:
    os.truncate(one.fileno(), 0)
with Watch(ours, len(ours)) as watch:
    assert not watch.lost and ours[5000] == 0 and watch.lost and ours[:] == bytes(len(ours))
    print("zeros", flush=True)
    other[0]
"""


def test_what_is_not_watched_ends_the_process_as_before(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * 20000)
    command = [sys.executable, "-c", READS, str(tmp_path / "a"), str(tmp_path / "b")]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    assert (ended.stdout, ended.returncode) == ("zeros\n", -signal.SIGBUS)
