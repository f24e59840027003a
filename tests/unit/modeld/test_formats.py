# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.modeld import formats


def test_gguf(gguf_file: Callable[..., bytes]) -> None:
    data = gguf_file("SmolLM")
    assert formats.recognise(data[: formats.HEAD], len(data)) == "gguf"
    found = formats.describe(data, "gguf")
    assert found["architecture"] == "llama"
    assert found["name"] == "SmolLM"
    assert found["parameter_count"] == 8
    assert found["quantization"] == "F32"
    assert found["context_length"] == 128
    assert found["license"] == "apache-2.0"


def test_safetensors(safetensors_file: Callable[..., bytes]) -> None:
    data = safetensors_file()
    assert formats.recognise(data[: formats.HEAD], len(data)) == "safetensors"
    found = formats.describe(data, "safetensors")
    assert found["parameter_count"] == 7
    assert found["tensor_types"] == {"F16": 1, "F32": 1}
    assert found["architecture"] is None
    assert found["notes"] == {"format": "pt"}


@pytest.mark.parametrize("data", [b"", b"G", b"GGU", b"\x7fELF" + bytes(20), b"PK\3\4" + bytes(20), b"x" * 40])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(formats.UnknownFormat):
        formats.recognise(data, len(data))


def test_a_header_longer_than_its_file_is_refused(safetensors_file: Callable[..., bytes]) -> None:
    data = safetensors_file()
    with pytest.raises(formats.UnknownFormat):
        formats.recognise(data[: formats.HEAD], 20)
    with pytest.raises(formats.UnknownFormat):
        formats.describe(data[:40], "safetensors")


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        '{"w": 1}',
        '{"w": {}}',
        '{"w": {"dtype": "F16", "shape": [2], "data_offsets": [0, 3]}}',
        '{"w": {"dtype": "F16", "shape": [2], "data_offsets": [0, 400]}}',
        '{"w": {"dtype": "F16", "shape": [2], "data_offsets": [4, 0]}}',
        '{"w": {"dtype": "F16", "shape": [-2], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "F16", "shape": [true], "data_offsets": [0, 2]}}',
        '{"w": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4, 8]}}',
        '{"w": {"dtype": ["F16"], "shape": [2], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "F17", "shape": [2], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "U8", "shape": [9223372036854775807, 9223372036854775807], "data_offsets": [0, 4]}}',
        '{"w": ',
        "[" * 50000,
        '{"w": "\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_damaged_safetensors_are_refused(header: str) -> None:
    raw = header.encode("latin-1")
    with pytest.raises(formats.UnknownFormat):
        formats.describe(struct.pack("<Q", len(raw)) + raw + bytes(16), "safetensors")


@given(st.binary(max_size=300))
def test_rubbish_is_refused_not_crashed_on(data: bytes) -> None:
    for kind, head in (("gguf", b"GGUF\3\0\0\0"), ("safetensors", struct.pack("<Q", len(data)))):
        try:
            formats.describe(head + data, kind)
        except formats.UnknownFormat:
            pass


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_json_is_refused_or_described(value: object) -> None:
    raw = json.dumps({"w": value}).encode()
    try:
        formats.describe(struct.pack("<Q", len(raw)) + raw, "safetensors")
    except formats.UnknownFormat:
        pass
