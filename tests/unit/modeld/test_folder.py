# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.modeld import folder, formats, manifest
from syntrop.modeld.manifest import InvalidManifest, Manifest, Member

HEX = "0123456789abcdef" * 4


def shard(name: str) -> bytes:
    header = json.dumps({name: {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def sharded() -> dict[str, bytes]:
    names = {f"w{number}": f"model-{number:05}-of-00002.safetensors" for number in (1, 2)}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 4096}
    return {
        **{path: shard(tensor) for tensor, path in names.items()},
        "model.safetensors.index.json": json.dumps({"weight_map": names}).encode(),
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b'{"chat_template": "x"}',
        "README.md": b"---\nlicense: apache-2.0\n---\n# It\nlicense: other",
    }


def test_what_belongs_to_a_model() -> None:
    kind, chosen = folder.choose([*sharded(), "pytorch_model.bin", "run.py", ".git/config", "x.gguf", "../a.json"])
    assert (kind, chosen) == ("safetensors", sorted(sharded()))
    assert folder.choose(["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "config.json"]) == (
        "gguf",
        ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
    )


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ([], "no safetensors"),
        (["config.json"], "no safetensors"),
        (["model-00001-of-00002.safetensors"], "00002-of-00002.safetensors is missing"),
        (["model-00001-of-99999.safetensors"], "00002-of-99999"),
        (["a.gguf", "b.gguf"], "several models"),
    ],
)
def test_what_is_not_whole(paths: list[str], reason: str) -> None:
    with pytest.raises(folder.Incomplete, match=reason):
        folder.choose(paths)


def test_what_a_folder_says_of_itself() -> None:
    found = folder.describe("safetensors", sharded())
    assert (found["architecture"], found["context_length"], found["license"]) == ("llama", 4096, "apache-2.0")
    assert (found["parameter_count"], found["quantization"], found["tensor_types"]) == (8, "BF16", {"BF16": 2})
    assert (found["chat_template"], found["tokenizer"]) == (True, True)
    files = sharded()
    assert found["chat_abilities"] == []
    files["chat_template.jinja"] = b"{{ tools }}</think>"
    assert folder.describe("safetensors", files)["chat_abilities"] == ["tools", "thinking"]
    files["config.json"] = b'{"quantization_config": {"quant_method": "awq"}}'
    assert folder.describe("safetensors", files)["quantization"] == "awq"


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("config.json", b"[", "not JSON"),
        ("config.json", b"[]", "not an object"),
        ("config.json", b"[" * 100_000, "not JSON"),
        ("model.safetensors.index.json", b"{}", "no weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 1}}', "no weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "b"}}', "b is missing"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"w1": "model-00002-of-00002.safetensors"}}',
            "lacks the tensor 'w1'",
        ),
    ],
)
def test_folders_that_contradict_themselves(path: str, data: bytes, reason: str) -> None:
    with pytest.raises(folder.Incomplete, match=reason):
        folder.describe("safetensors", {**sharded(), path: data})
    with pytest.raises(formats.UnknownFormat):
        folder.describe("safetensors", {**sharded(), "model-00001-of-00002.safetensors": b"x" * 40})


def test_a_manifest_is_the_same_for_the_same_files() -> None:
    members = [Member("b/c.json", HEX, 3), Member("a.safetensors", HEX[::-1], 5)]
    one, other = Manifest("safetensors", members), Manifest("safetensors", members[::-1])
    assert one.encode() == other.encode()
    again = manifest.decode(one.encode())
    assert (again.format, again.size, again.digests) == ("safetensors", 8, {HEX, HEX[::-1]})


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b'"version":1', b'"version":2'),
        lambda data: data.replace(b"a.safetensors", b"../../x"),
        lambda data: data.replace(b'"size":5', b'"size":-5'),
        lambda data: data.replace(b'"size":5', b'"size": 5'),
        lambda data: data.replace(b"sha256:", b"sha512:"),
        lambda data: b"[]",
        lambda data: b"",
        lambda data: b'{"version":1}',
    ],
)
def test_what_is_no_manifest(change: object) -> None:
    data = Manifest("safetensors", [Member("a.safetensors", HEX, 5)]).encode()
    with pytest.raises(InvalidManifest):
        manifest.decode(change(data))  # type: ignore[operator]


@given(
    st.binary(max_size=200)
    | st.recursive(st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_rubbish_is_no_manifest(data: bytes) -> None:
    with pytest.raises(InvalidManifest):
        manifest.decode(data)
