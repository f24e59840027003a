# SPDX-License-Identifier: Apache-2.0
"""A plain numpy float32 twin of the llama forward: the oracle of the tests, imported by nothing else.

It follows the textbook: no cache of anything, no quantised activations, one sequence, all positions at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from syntrop.runtimed.model.config import read_config
from syntrop.runtimed.quant import dequantize

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf
    from mmap import mmap

    from numpy.typing import NDArray

    from syntrop.common.gguf import GGUF

    Floats = NDArray[np.float32]


class ReferenceModel:
    """The weights of a llama GGUF in float32."""

    def __init__(self, gguf: GGUF, buffer: bytes | mmap | memoryview) -> None:
        self.config = read_config(gguf)
        view = memoryview(buffer)
        self.weights = {
            name: dequantize(view[t.offset : t.offset + t.nbytes], t.type, t.shape)
            for name, t in gguf.tensors.items()
        }

    def logits(self, tokens: SequenceOf[int]) -> Floats:
        """[positions, n_vocab]: the logits after each token."""
        c, w = self.config, self.weights
        x = w["token_embd.weight"][np.asarray(tokens)]
        for i in range(c.n_layer):
            x = x + self._attention(_norm(x, w[f"blk.{i}.attn_norm.weight"], c.rms_eps), f"blk.{i}")
            h = _norm(x, w[f"blk.{i}.ffn_norm.weight"], c.rms_eps)
            gate = h @ w[f"blk.{i}.ffn_gate.weight"].T
            up = h @ w[f"blk.{i}.ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
        output = w.get("output.weight", w["token_embd.weight"])
        return np.asarray(_norm(x, w["output_norm.weight"], c.rms_eps) @ output.T, dtype=np.float32)

    def _attention(self, h: Floats, layer: str) -> Floats:
        c, w, n = self.config, self.weights, len(h)
        q = (h @ w[f"{layer}.attn_q.weight"].T).reshape(n, c.n_head, c.head_dim)
        k = (h @ w[f"{layer}.attn_k.weight"].T).reshape(n, c.n_head_kv, c.head_dim)
        v = (h @ w[f"{layer}.attn_v.weight"].T).reshape(n, c.n_head_kv, c.head_dim)
        q, k = self._rotate(q), self._rotate(k)
        group = c.n_head // c.n_head_kv
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(c.head_dim))
        scores = np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(n, -1)
        return np.asarray(out @ w[f"{layer}.attn_output.weight"].T, dtype=np.float32)

    def _rotate(self, x: Floats) -> Floats:
        """Rotate pairs (2i, 2i + 1) of each head by position × θ^(-2i / rope_dim)."""
        c = self.config
        frequency = c.rope_theta ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim) * c.rope_scale
        if "rope_freqs.weight" in self.weights:
            frequency = frequency / self.weights["rope_freqs.weight"]
        angle = np.arange(len(x))[:, None] * frequency
        cos = np.cos(angle).astype(np.float32)[:, None, :]
        sin = np.sin(angle).astype(np.float32)[:, None, :]
        out = x.copy()
        even, odd = x[..., 0 : c.rope_dim : 2], x[..., 1 : c.rope_dim : 2]
        out[..., 0 : c.rope_dim : 2] = even * cos - odd * sin
        out[..., 1 : c.rope_dim : 2] = even * sin + odd * cos
        return out


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight)
