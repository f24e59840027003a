# SPDX-License-Identifier: Apache-2.0
"""Small but whole model files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _gguf(name: str = "tiny", padding: int = 0) -> bytes:
    pairs = {"general.architecture": "llama", "general.name": name, "general.license": "apache-2.0"}
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs) + 1)
    for key, value in pairs.items():
        head += _text(key) + struct.pack("<I", 8) + _text(value)
    head += _text("llama.context_length") + struct.pack("<II", 4, 128)
    head += _text("blk.0.w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    head += bytes(-len(head) % 32)
    return head + struct.pack("<8f", *range(8)) + bytes(padding)


def _safetensors(padding: int = 0) -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
            "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16 + padding)


@pytest.fixture
def gguf_file() -> Callable[..., bytes]:
    """Bytes of a GGUF file; another name makes another digest, padding a larger file."""
    return _gguf


@pytest.fixture
def safetensors_file() -> Callable[..., bytes]:
    return _safetensors
