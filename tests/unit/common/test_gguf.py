# SPDX-License-Identifier: Apache-2.0
"""GGUF headers: what a builder writes is read back, what a fuzzer writes is refused with field and offset."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import gguf
from syntrop.common.gguf import GGUF, GGUFError, Skipped, chat_abilities, describe, parse

LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    if kind == 8:
        return string(content)
    if kind == 9:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack("<" + LETTERS[kind], content)


def pair(key: str, kind: int, content: Any) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def row(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def build(
    pairs: list[bytes], rows: list[bytes] | None = None, data: int = 0, version: int = 3, alignment: int = 32
) -> bytes:
    rows = rows or []
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(pairs)) + b"".join(pairs) + b"".join(rows)
    return head + bytes(-len(head) % alignment) + bytes(data)


PAIRS = [
    pair("general.architecture", 8, "llama"),
    pair("general.name", 8, "Ünïcode"),
    pair("llama.context_length", 4, 8192),
    pair("general.license", 8, "apache-2.0"),
    pair("u8", 0, 255),
    pair("i64", 11, -(1 << 62)),
    pair("u64", 10, (1 << 64) - 1),
    pair("f32", 6, 0.5),
    pair("f64", 12, -1e300),
    pair("yes", 7, True),
    pair("words", 9, (8, ["", "a", "Ġthe", "日本"])),
    pair("types", 9, (5, [1, -2, 3])),
    pair("flags", 9, (7, [True, False])),
    pair("empty", 9, (8, [])),
    pair("tokenizer.chat_template", 8, "{{ x }}"),
]
ROWS = [
    row("token_embd.weight", (64, 10), 8, 0),
    row("blk.0.ffn_up.weight", (64, 4), 3, 704),
    row("blk.0.attn_norm.weight", (64,), 0, 896),
]
SMALL = build(PAIRS, ROWS, data=896 + 256)


def test_reads_back_what_was_written() -> None:
    read = parse(SMALL)
    assert (read.version, read.alignment) == (3, 32)
    assert read.metadata["general.name"] == "Ünïcode"
    assert read.metadata["i64"] == -(1 << 62)
    assert read.metadata["u64"] == (1 << 64) - 1
    assert (read.metadata["f32"], read.metadata["f64"], read.metadata["yes"]) == (0.5, -1e300, True)
    assert read.metadata["words"] == ["", "a", "Ġthe", "日本"]
    assert read.metadata["types"] == [1, -2, 3]
    assert read.metadata["flags"] == [True, False]
    assert read.metadata["empty"] == []
    assert read.data_offset % 32 == 0
    assert list(read.tensors) == ["token_embd.weight", "blk.0.ffn_up.weight", "blk.0.attn_norm.weight"]
    up = read.tensors["blk.0.ffn_up.weight"]
    assert (up.type_name, up.shape, up.elements, up.nbytes) == ("Q4_1", (64, 4), 256, 256 // 32 * 20)
    assert up.offset == read.data_offset + 704


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_takes_any_buffer(kind: Any) -> None:
    assert list(parse(kind(SMALL)).tensors) == list(parse(SMALL).tensors)


def test_a_mapping_can_be_closed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for content in (SMALL, SMALL[:60]):
        path.write_bytes(content)
        with open(path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            parse(mapping)
        except GGUFError:
            pass
        mapping.close()


def test_version_2_is_read_and_others_are_named() -> None:
    assert parse(build(PAIRS, version=2)).version == 2
    for version in (0, 1, 4, 1 << 31):
        with pytest.raises(GGUFError, match="not supported"):
            parse(build(PAIRS, version=version))
    with pytest.raises(GGUFError, match="big-endian"):
        parse(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


def test_arrays_can_be_passed_over() -> None:
    read = parse(SMALL, arrays=False)
    words = read.metadata["words"]
    assert isinstance(words, Skipped) and len(words) == 4
    assert read.metadata["general.name"] == "Ünïcode"
    assert read.tensors.keys() == parse(SMALL).tensors.keys()


def test_alignment_is_obeyed() -> None:
    pairs = [pair("general.alignment", 4, 4096)]
    rows = [row("a", (3,), 0, 0), row("b", (3,), 0, 4096)]
    read = parse(build(pairs, rows, data=8192, alignment=4096))
    assert (read.alignment, read.data_offset) == (4096, 4096)
    assert read.tensors["b"].offset == 8192


HUGE = (1 << 63) - 1
HOSTILE = {
    "empty": (b"", "magic"),
    "magic": (b"GGML" + SMALL[4:], "magic"),
    "only magic": (b"GGUF", "version"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), "tensor count"),
    "tensor count beyond the file": (b"GGUF" + struct.pack("<IQQ", 3, 1000, 0), "tensor count"),
    "pair count": (b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 64) - 1), "metadata count"),
    "key length": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63) + bytes(64), "metadata key 0"),
    "key past the end": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 60) + bytes(20), "metadata key 0"),
    "key not UTF-8": (build([struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 1)]), "metadata key 0"),
    "key twice": (build([pair("k", 4, 1), pair("k", 4, 2)]), "k"),
    "value type": (build([string("k") + struct.pack("<II", 13, 1)]), "k"),
    "string length": (build([string("k") + struct.pack("<IQ", 8, HUGE)]), "k"),
    "string not UTF-8": (build([string("k") + struct.pack("<IQ", 8, 1) + b"\xff"]), "k"),
    "no boolean": (build([string("k") + struct.pack("<IB", 7, 2) + bytes(8)]), "k"),
    "no boolean in array": (build([string("k") + struct.pack("<IIQ", 9, 7, 1) + b"\2"]), "k"),
    "array count": (build([string("k") + struct.pack("<IIQ", 9, 4, 1 << 62)]), "k"),
    "array of arrays": (build([string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(32)]), "k"),
    "string in array": (build([string("k") + struct.pack("<IIQQ", 9, 8, 1, HUGE)]), "k"),
    "string in array not UTF-8": (build([string("k") + struct.pack("<IIQQ", 9, 8, 1, 1) + b"\xff"]), "k"),
    "alignment 0": (build([pair("general.alignment", 4, 0)]), "general.alignment"),
    "alignment 24": (build([pair("general.alignment", 4, 24)]), "general.alignment"),
    "alignment 2^31": (build([pair("general.alignment", 4, 1 << 31)]), "general.alignment"),
    "alignment text": (build([pair("general.alignment", 8, "32")]), "general.alignment"),
    "tensor name": (build([], [row("n" * 65, (1,), 0, 0)], 32), "tensor 0 name"),
    "no dimensions": (build([], [row("t", (), 0, 0)], 32), "tensor t"),
    "five dimensions": (build([], [row("t", (1,) * 5, 0, 0)], 32), "tensor t"),
    "dimensions 2^32-1": (build([], [string("t") + struct.pack("<I", 2**32 - 1) + bytes(64)]), "tensor t"),
    "extent 0": (build([], [row("t", (4, 0), 0, 0)], 32), "tensor t"),
    "shape overflows": (build([], [row("t", (1 << 32, 1 << 32), 0, 0)], 32), "tensor t"),
    "extent 2^63": (build([], [row("t", (1 << 63,), 0, 0)], 32), "tensor t"),
    "type": (build([], [row("t", (4,), 4, 0)], 32), "tensor t"),
    "broken block": (build([], [row("t", (33,), 3, 0)], 64), "tensor t"),
    "misaligned": (build([], [row("t", (1,), 0, 4)], 64), "tensor t"),
    "past the end": (build([], [row("t", (9,), 0, 0)], 32), "tensor t"),
    "offset past the end": (build([], [row("t", (1,), 0, 64)], 64), "tensor t"),
    "offset 2^64-32": (build([], [row("t", (1,), 0, 2**64 - 32)], 64), "tensor t"),
    "tensor twice": (build([], [row("t", (1,), 0, 0), row("t", (1,), 0, 0)], 64), "tensor t"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("arrays", [True, False])
def test_hostile_bytes_are_refused_by_name(name: str, arrays: bool) -> None:
    content, field = HOSTILE[name]
    if not arrays and name in ("string in array not UTF-8", "no boolean in array"):
        assert parse(content, arrays=False).tensors == {}  # passed over unread
        return
    with pytest.raises(GGUFError) as caught:
        parse(content, arrays=arrays)
    assert caught.value.field == field
    assert 0 <= caught.value.offset <= len(content)


@pytest.mark.parametrize("arrays", [True, False])
def test_every_truncation_is_refused(arrays: bool) -> None:
    for length in range(len(SMALL)):
        with pytest.raises(GGUFError):
            parse(SMALL[:length], arrays=arrays)


def check(content: bytes) -> None:
    """Refused as it should be, or all tensors lie inside."""
    for arrays in (True, False):
        try:
            read = parse(content, arrays=arrays)
        except GGUFError as error:
            assert 0 <= error.offset <= len(content)
            continue
        for tensor in read.tensors.values():
            assert tensor.offset >= 0 and tensor.offset + tensor.nbytes <= len(content)
        describe(read)


WORDS = st.sampled_from([0, 1, 2, 7, 8, 9, 31, 32, 255, 1 << 31, 2**32 - 1, 1 << 32, 1 << 62, 1 << 63, 2**64 - 1])


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 8), WORDS), min_size=1, max_size=4))
@settings(max_examples=1500, deadline=None)
def test_fuzz_by_overwriting_words(changes: list[tuple[int, int]]) -> None:
    content = bytearray(SMALL)
    for at, word in changes:
        content[at : at + 8] = struct.pack("<Q", word)
    check(bytes(content))


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_fuzz_by_bytes_cuts_and_insertions(data: st.DataObject) -> None:
    content = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                content[at] = data.draw(st.integers(0, 255))
            case 1:
                del content[at : at + data.draw(st.integers(1, 64))]
            case _:
                content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
        if not content:
            break
    check(bytes(content))


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> bytes:
    with open(smollm2_path, "rb") as file:
        return file.read(4 << 20)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_fuzz_of_a_real_header(real: bytes, data: st.DataObject) -> None:
    content = bytearray(real)
    for _ in range(3):
        at = data.draw(st.integers(0, 1_900_000))
        content[at : at + 8] = struct.pack("<Q", data.draw(WORDS))
    check(bytes(content))


def open_real(path: Path, arrays: bool = True) -> GGUF:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        return parse(mapping, arrays)


def test_describes_the_real_models(smollm2_path: Path, gemma3_path: Path, qwen2_path: Path) -> None:
    smollm2, gemma3, qwen2 = (describe(open_real(path, False)) for path in (smollm2_path, gemma3_path, qwen2_path))
    assert smollm2 == {
        "architecture": "llama",
        "name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "parameter_count": 134_515_008,
        "quantization": "Q4_1",
        "tensor_types": {"Q8_0": 1, "F32": 61, "Q4_1": 210},
        "context_length": 8192,
        "license": "apache-2.0",
        "chat_template": True,
        "chat_abilities": [],
    }
    assert qwen2["chat_abilities"] in ([], ["tools"])
    assert chat_abilities("Call <b>tools</b>, {% for m in messages %}{{ m }}{% endfor %}") == []
    switch = "{%- if tools %}{{- tools | tojson }}{% endif %}{% if enable_thinking is defined %}{% endif %}"
    assert chat_abilities(switch) == ["tools", "thinking"]
    assert (gemma3["architecture"], gemma3["quantization"], gemma3["chat_template"]) == ("gemma3", "Q4_K_M", False)
    assert gemma3["tensor_types"] == {"F32": 109, "Q8_0": 10, "Q5_0": 81, "Q4_K": 27, "Q6_K": 9}
    assert (qwen2["architecture"], qwen2["context_length"], qwen2["license"]) == ("qwen2", 32_768, None)


def test_quantization_by_the_dominant_type_where_the_file_does_not_say() -> None:
    assert describe(parse(SMALL))["quantization"] == "Q4_1"
    assert describe(parse(build([], [row("t", (64, 10), 8, 0)], 704)))["quantization"] == "Q8_0"
    assert describe(parse(build([])))["quantization"] is None


def test_a_vocabulary_is_read_quickly(smollm2_path: Path) -> None:
    times = []
    for _ in range(5):
        start = process_time()
        open_real(smollm2_path)
        times.append(process_time() - start)
    # Two arrays of 49,152 strings, one of numbers: 35 ms measured. The bound is for a machine that is busy.
    assert min(times) < 0.4


def test_types_have_the_sizes_that_the_format_gives() -> None:
    # Spot checks by the layout of each block: scales, minima, codes.
    sizes = {"Q4_0": 2 + 16, "Q4_1": 4 + 16, "Q5_0": 2 + 4 + 16, "Q8_0": 2 + 32, "Q4_K": 4 + 12 + 128}
    sizes |= {"Q6_K": 128 + 64 + 16 + 2, "Q2_K": 16 + 64 + 4, "IQ4_XS": 2 + 2 + 4 + 128, "MXFP4": 1 + 16}
    known = {name: size for name, _, size in gguf.TYPES.values()}
    assert {name: known[name] for name in sizes} == sizes
