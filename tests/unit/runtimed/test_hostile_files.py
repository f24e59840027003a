# SPDX-License-Identifier: Apache-2.0
"""Model files that lie: both readers of GGUF arrays agree, and safetensors never points outside its file."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import gguf, safetensors
from syntrop.common.gguf import GGUFError
from syntrop.common.safetensors import SafetensorsError
from syntrop.runtimed import vocabulary

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
        assert str(error)
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
    with pytest.raises(SafetensorsError, match="'a'"):
        safetensors.parse(written({"a": row}, 24))


@pytest.mark.parametrize("length", [0, 1, 1 << 31, 2**32 - 1, 1 << 62, 1 << 63, 2**64 - 1])
def test_checkpoints_with_an_impossible_header_length(length: int) -> None:
    with pytest.raises(SafetensorsError, match=f"header length {length} "):
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
