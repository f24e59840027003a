# SPDX-License-Identifier: Apache-2.0
"""Random weights in every supported type, and whole GGUF files of tiny llama models made of them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
TYPES = {"F32": F32, "F16": F16, "BF16": BF16, "Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0}


def encode(rng: np.random.Generator, type: int, rows: int, cols: int) -> bytes:
    """rows × cols random numbers of about unit variance over √cols, as the file stores them."""
    size = 1 / np.sqrt(cols)
    if type in (F32, F16, BF16):
        values = (rng.standard_normal((rows, cols)) * size).astype(np.float32)
        if type == F32:
            return values.tobytes()
        if type == F16:
            return values.astype(np.float16).tobytes()
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    blocks = rows * cols // 32
    codes = rng.integers(0, 256, (blocks, 32 if type == Q8_0 else 16), dtype=np.uint8)
    step = size / (74 if type == Q8_0 else 4.6)
    scale = (rng.uniform(0.5, 1.5, (blocks, 1)) * step).astype(np.float16)
    parts = [scale.view(np.uint8)]
    if type == Q4_1:
        minimum = scale.astype(np.float32) * -rng.uniform(6.5, 8.5, (blocks, 1))
        parts.append(minimum.astype(np.float16).view(np.uint8))
    return np.concatenate([*parts, codes], axis=1).tobytes()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def gguf(metadata: dict[str, Any], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    """A GGUF file, version 3. tensors: name -> (type, shape in ne order, data)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    offset, body = 0, b""
    for name, (type, shape, data) in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", type, offset)
        body += data + b"\0" * (-len(data) % 32)
        offset = len(body)
    return head + b"\0" * (-len(head) % 32) + body


class Tiny:
    """The parts of a tiny llama file, to be tampered with before `file()`."""

    def __init__(
        self,
        *,
        type: int = Q4_1,
        embed: int | None = None,
        output: int | None = None,
        layers: int = 2,
        heads: int = 4,
        heads_kv: int = 2,
        head_dim: int = 32,
        n_embd: int = 64,
        n_ff: int = 96,
        vocab: int = 101,
        context: int = 1024,
        seed: int = 1,
        factors: bool = False,
        **metadata: Any,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.metadata: dict[str, Any] = {
            "general.architecture": "llama",
            "llama.block_count": layers,
            "llama.embedding_length": n_embd,
            "llama.feed_forward_length": n_ff,
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": heads_kv,
            "llama.attention.key_length": head_dim,
            "llama.attention.value_length": head_dim,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 10000.0,
            "llama.rope.dimension_count": head_dim,
            "llama.context_length": context,
            **{key.replace("__", "."): value for key, value in metadata.items()},
        }
        self.tensors: dict[str, tuple[int, tuple[int, ...], bytes]] = {}

        def matrix(name: str, type: int, rows: int, cols: int) -> None:
            self.tensors[name] = (type, (cols, rows), encode(rng, type, rows, cols))

        def vector(name: str, n: int) -> None:
            self.tensors[name] = (F32, (n,), rng.uniform(0.5, 1.5, n).astype(np.float32).tobytes())

        matrix("token_embd.weight", type if embed is None else embed, vocab, n_embd)
        vector("output_norm.weight", n_embd)
        if output is not None:
            matrix("output.weight", output, vocab, n_embd)
        if factors:
            vector("rope_freqs.weight", self.metadata["llama.rope.dimension_count"] // 2)
        for i in range(layers):
            vector(f"blk.{i}.attn_norm.weight", n_embd)
            vector(f"blk.{i}.ffn_norm.weight", n_embd)
            matrix(f"blk.{i}.attn_q.weight", type, heads * head_dim, n_embd)
            matrix(f"blk.{i}.attn_k.weight", type, heads_kv * head_dim, n_embd)
            matrix(f"blk.{i}.attn_v.weight", type, heads_kv * head_dim, n_embd)
            matrix(f"blk.{i}.attn_output.weight", type, n_embd, heads * head_dim)
            matrix(f"blk.{i}.ffn_gate.weight", type, n_ff, n_embd)
            matrix(f"blk.{i}.ffn_up.weight", type, n_ff, n_embd)
            matrix(f"blk.{i}.ffn_down.weight", type, n_embd, n_ff)

    def file(self) -> bytes:
        return gguf(self.metadata, self.tensors)
