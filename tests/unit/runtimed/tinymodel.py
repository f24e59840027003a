# SPDX-License-Identifier: Apache-2.0
"""Random weights in every supported type, and whole GGUF files of tiny llama models made of them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, BF16 = 0, 1, 2, 3, 6, 7, 8, 30
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS = 10, 11, 12, 13, 14, 20, 23
TYPES = {
    "F32": F32, "F16": F16, "BF16": BF16, "Q4_0": Q4_0, "Q4_1": Q4_1, "Q5_0": Q5_0, "Q5_1": Q5_1, "Q8_0": Q8_0,
    "IQ4_NL": IQ4_NL,
}  # fmt: skip
# Rows are whole blocks of 256.
WIDE_TYPES = {"Q2_K": Q2_K, "Q3_K": Q3_K, "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K, "IQ4_XS": IQ4_XS}
ALL_TYPES = TYPES | WIDE_TYPES

# Blocks of the quantised types: numbers, bytes, where the f16 scale is and (or -1) the f16 minimum, and what makes
# random bytes of the rest numbers of unit variance (the divisor of the scale) and zero mean (minimum over scale).
BLOCKS = {
    Q4_0: (32, 18, 0, -1, 4.6, 0.0),
    Q4_1: (32, 20, 0, 2, 4.6, -7.5),
    Q5_0: (32, 22, 0, -1, 9.2, 0.0),
    Q5_1: (32, 24, 0, 2, 9.2, -15.5),
    Q8_0: (32, 34, 0, -1, 74.0, 0.0),
    IQ4_NL: (32, 18, 0, -1, 72.0, 0.0),
    Q2_K: (256, 84, 80, 82, 12.0, 1.5),
    Q3_K: (256, 110, 108, -1, 43.0, 0.0),
    Q4_K: (256, 144, 0, 2, 215.0, 7.5),
    Q5_K: (256, 176, 0, 2, 430.0, 15.5),
    Q6_K: (256, 210, 208, -1, 1370.0, 0.0),
    IQ4_XS: (256, 136, 0, -1, 1330.0, 0.0),
}


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
    numbers, nbytes, at, minimum_at, divisor, ratio = BLOCKS[type]
    blocks = rng.integers(0, 256, (rows * cols // numbers, nbytes), dtype=np.uint8)
    scale = (rng.uniform(0.5, 1.5, (len(blocks), 1)) * size / divisor).astype(np.float16)
    blocks[:, at : at + 2] = scale.view(np.uint8)
    if minimum_at >= 0:
        minimum = scale.astype(np.float32) * ratio * rng.uniform(0.9, 1.1, (len(blocks), 1))
        blocks[:, minimum_at : minimum_at + 2] = minimum.astype(np.float16).view(np.uint8)
    return blocks.tobytes()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
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
