# SPDX-License-Identifier: Apache-2.0
"""Strings found in C: against a dictionary, and against GGUF files that lie."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import gguf
from syntrop.runtimed import _kernels
from syntrop.runtimed.vocabulary import Ids, Packed, Strings, pack, pack_strings

ffi, lib = _kernels.ffi, _kernels.lib
MANY = 1024  # what is packed


@given(st.lists(st.text(max_size=12), max_size=80), st.lists(st.text(max_size=12), max_size=20))
def test_finds_what_a_dictionary_finds(items: list[str], others: list[str]) -> None:
    strings = pack_strings(items)
    ids = Ids(strings)
    known = {text: index for index, text in enumerate(items)}  # the last of equal ones
    for text in [*items, *others]:
        assert ids.get(text) == known.get(text)
        assert (text in ids) == (text in known)
    assert list(strings) == items
    assert len(strings) == len(items)
    assert strings.longest == max(map(len, items), default=0)


def test_a_sequence_with_ends() -> None:
    strings = pack_strings(["a", "\u00e9", ""])
    assert (strings[0], strings[-1], strings[1]) == ("a", "", "\u00e9")
    for index in (3, -4):
        with pytest.raises(IndexError):
            strings[index]
    with pytest.raises(KeyError):
        Ids(strings)["b"]


@given(st.binary(max_size=12))
def test_utf8_is_checked_as_python_checks_it(data: bytes) -> None:
    packed = struct.pack("<Q", len(data)) + data
    try:
        data.decode()
    except UnicodeDecodeError:
        expected = 0
    else:
        expected = len(packed)
    assert lib.sy_strings_end(packed, len(packed), 0, 1) == expected


@given(st.binary(max_size=80), st.integers(0, 12))
def test_no_bytes_lead_outside(data: bytes, count: int) -> None:
    end = lib.sy_strings_end(data, len(data), 0, count)
    assert end <= len(data)
    words = lib.sy_words_new(data, len(data), count, 0, 1)
    assert (words == ffi.NULL) or end <= len(data)
    lib.sy_words_free(words)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def file(*pairs: bytes) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + b"".join(pairs)


def strings_pair(key: bytes, items: list[bytes]) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))


def test_long_arrays_of_a_file_are_packed_and_short_ones_are_not() -> None:
    numbers = string(b"n") + struct.pack(f"<IIQ{MANY}f", 9, 6, MANY, *range(MANY))
    flags = string(b"f") + struct.pack(f"<IIQ{MANY}?", 9, 7, MANY, *[True] * MANY)
    words = [b"w%d" % index for index in range(MANY)]
    content = file(strings_pair(b"long", words), strings_pair(b"short", words[:9]), numbers, flags)
    read = gguf.parse(content, pack=pack).metadata
    plain = gguf.parse(content).metadata
    packed = read["long"]
    assert isinstance(packed, Packed)
    assert list(Strings(packed.raw, packed.count)) == plain["long"]
    assert read["short"] == plain["short"]
    assert isinstance(read["n"], array)
    assert list(read["n"]) == plain["n"]
    assert read["f"] == plain["f"] == [True] * MANY


@pytest.mark.parametrize("broken", [b"\xff", b"\xed\xa0\x80"])
def test_a_broken_array_is_named_as_ever(broken: bytes) -> None:
    content = file(strings_pair(b"words", [b"x"] * MANY + [broken]))
    with pytest.raises(gguf.GGUFError, match=r"words at byte .* not UTF-8"):
        gguf.parse(content, pack=pack)
    with pytest.raises(gguf.GGUFError, match=r"words at byte .*(truncated|passes the end)"):
        gguf.parse(content[: -len(broken) - 4], pack=pack)
