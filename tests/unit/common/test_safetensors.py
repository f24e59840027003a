# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import safetensors
from syntrop.common.safetensors import SafetensorsError


def build(header: Any, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def row(kind: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def test_a_whole_file() -> None:
    header = {"b": row("F32", [], 12, 16), "w": row("F16", [2, 3], 0, 12), "none": row("U8", [0, 4], 16, 16)}
    data = build({**header, "__metadata__": {"format": "pt"}}, bytes(16))
    found = safetensors.parse(data)
    assert list(found.tensors) == ["w", "b", "none"]
    assert found.notes == {"format": "pt"}
    tensor = found.tensors["w"]
    assert (tensor.type_name, tensor.shape, tensor.elements) == ("F16", (2, 3), 6)
    assert tensor.end - tensor.start == 12
    assert tensor.start == len(data) - 16
    assert safetensors.looks_like(data[:16], len(data))


@pytest.mark.parametrize(
    ("header", "size", "reason"),
    [
        ({"a": row("U8", [4], 0, 4), "b": row("U8", [4], 2, 6)}, 6, "overlaps"),
        ({"a": row("U8", [4], 0, 4), "b": row("U8", [4], 0, 4)}, 4, "overlaps"),
        ({"a": row("U8", [4], 4, 8)}, 8, "gap"),
        ({"a": row("U8", [4], 0, 4)}, 9, "5 bytes belong"),
        ({}, 1, "belong"),
        (b'{"a": {}, "a": {}}', 0, "twice"),
        ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
        ({"__metadata__": []}, 0, "__metadata__"),
        (b'{"a": ' + b"[" * 100_000, 0, "JSON"),
        (b"\xff\xff", 0, "JSON"),
        (b"[]", 0, "object"),
    ],
)
def test_what_does_not_fit_is_refused(header: Any, size: int, reason: str) -> None:
    whole = build(header, bytes(size))
    with pytest.raises(SafetensorsError, match=reason) as caught:
        safetensors.parse(whole)
    assert caught.value.field and 0 <= caught.value.offset <= len(whole)


def test_errors_tell_where() -> None:
    def place(header: Any, size: int = 0) -> tuple[str, int, bytes]:
        whole = build(header, bytes(size))
        with pytest.raises(SafetensorsError) as caught:
            safetensors.parse(whole)
        return caught.value.field, caught.value.offset, whole

    field, at, whole = place({"é": row("F32", [1], 0, 4), "b": row("F32", [2], 4, 8)}, 8)
    assert (field, whole[at : at + 3]) == ("tensor 'b'", b'"b"')
    field, at, whole = place({"é": row("F99", [1], 0, 4)}, 4)
    assert (field, whole[at : at + 8]) == ("tensor 'é'", b'"\\u00e9"')
    field, at, whole = place({"a": row("U8", [4], 0, 4), "b": row("U8", [4], 6, 10)}, 10)
    assert (field, at) == ("tensor 'b'", len(whole) - 4)
    field, at, whole = place('{"é": 1 2}'.encode())
    assert (field, whole[at : at + 1]) == ("header", b"2")
    field, at, whole = place(b'{"a": {}, "a": {}}')
    assert (field, at) == ("header 'a'", 18)
    with pytest.raises(SafetensorsError, match="header length at byte 0: truncated"):
        safetensors.parse(b"abc")


@given(st.binary(max_size=200))
def test_rubbish_is_refused(data: bytes) -> None:
    for one in (data, build(data), build(b"{" + data)):
        try:
            safetensors.parse(one)
        except SafetensorsError:
            pass


@given(st.dictionaries(st.text(max_size=5), st.tuples(st.sampled_from(["U8", "F16", "F64"]), st.integers(0, 5))))
def test_tensors_one_after_another_are_found_where_they_are(tensors: dict[str, tuple[str, int]]) -> None:
    tensors.pop("__metadata__", None)
    header, data = {}, b""
    for index, (name, (kind, count)) in enumerate(tensors.items()):
        piece = bytes([index % 256]) * (count * safetensors.BITS[kind] // 8)
        header[name] = row(kind, [count], len(data), len(data) + len(piece))
        data += piece
    whole = build(header, data)
    found = safetensors.parse(whole).tensors
    assert found.keys() == tensors.keys()
    for index, name in enumerate(tensors):
        assert set(whole[found[name].start : found[name].end]) <= {index % 256}
