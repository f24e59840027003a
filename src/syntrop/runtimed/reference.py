# SPDX-License-Identifier: Apache-2.0
"""A plain numpy float32 twin of the decoder: the oracle of the tests, imported by nothing else.

It follows the textbook: no cache of anything, no quantised activations, one sequence, all positions at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from syntrop.runtimed.model.config import Layer, read_config
from syntrop.runtimed.quant import dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as SequenceOf
    from mmap import mmap

    from numpy.typing import NDArray

    from syntrop.common.gguf import GGUF

    Floats = NDArray[np.float32]


def _weights(gguf: GGUF, buffer: bytes | mmap | memoryview) -> dict[str, Floats]:
    view = memoryview(buffer)
    return {
        name: dequantize(view[t.offset : t.offset + t.nbytes], t.type, t.shape) for name, t in gguf.tensors.items()
    }


class ReferenceModel:
    """The weights of a GGUF in float32."""

    def __init__(self, gguf: GGUF, buffer: bytes | mmap | memoryview, context: int = 0) -> None:
        self.config = read_config(gguf, buffer, context)
        self.weights = _weights(gguf, buffer)

    def merge(self, gguf: GGUF, buffer: bytes | mmap | memoryview) -> None:
        """Add a LoRA adapter to the weights."""
        parts = _weights(gguf, buffer)
        alpha = float(gguf.metadata["adapter.lora.alpha"])  # type: ignore[arg-type]
        for name in {part.rpartition(".")[0] for part in parts}:
            down, up = parts[f"{name}.lora_a"], parts[f"{name}.lora_b"]
            self.weights[name] = self.weights[name] + np.float32(alpha / len(down)) * (up @ down)

    def logits(self, tokens: SequenceOf[int], last: int = 0) -> Floats:
        """[positions, n_vocab]: the logits after each token, or after the last so many."""
        c, w = self.config, self.weights
        x = w["token_embd.weight"][np.asarray(tokens)] * np.float32(c.embed_scale)
        for i, layer in enumerate(c.layers):
            prefix = f"blk.{i}."
            part = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
            given = self._attention(_norm(x, part["attn_norm.weight"], c.rms_eps), part, layer)
            x = x + self._tempered(given, part.get("post_attention_norm.weight"))
            given = self._feed_forward(_norm(x, part["ffn_norm.weight"], c.rms_eps), part)
            x = x + self._tempered(given, part.get("post_ffw_norm.weight"))
        output = w.get("output.weight", w["token_embd.weight"])
        logits = _norm(x[-last:], w["output_norm.weight"], c.rms_eps) @ output.T * np.float32(c.logit_scale)
        if c.logit_cap:
            logits = c.logit_cap * np.tanh(logits / np.float32(c.logit_cap))
        return np.asarray(logits, dtype=np.float32)

    def _tempered(self, given: Floats, norm: Floats | None) -> Floats:
        """What a block gives, as the stream takes it."""
        c = self.config
        if norm is not None:
            given = _norm(given, norm, c.rms_eps)
        return given * np.float32(c.residual_scale)

    def _feed_forward(self, h: Floats, part: Mapping[str, Floats]) -> Floats:
        up = part["ffn_up.weight"]
        gate = part.get("ffn_gate.weight")
        if gate is None:
            gate, up = np.split(up, 2)
        g = h @ gate.T
        if self.config.activation == "gelu":
            inner = np.float32(np.sqrt(2 / np.pi)) * (g + np.float32(0.044715) * g**3)
            g = np.float32(0.5) * g * (1 + np.tanh(inner))
        else:
            g = g / (1 + np.exp(-g))
        return np.asarray((g * (h @ up.T)) @ part["ffn_down.weight"].T, dtype=np.float32)

    def _attention(self, h: Floats, part: Mapping[str, Floats], layer: Layer) -> Floats:
        c, n = self.config, len(h)
        q_rows, kv_rows = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        fused = part.get("attn_qkv.weight")
        if fused is None:
            q, k, v = (h @ part[f"attn_{one}.weight"].T for one in "qkv")
        else:
            q, k, v = np.split(h @ fused.T, (q_rows, q_rows + kv_rows), axis=1)
        q, k, v = (x + part.get(f"attn_{one}.bias", np.float32(0)) for one, x in (("q", q), ("k", k), ("v", v)))
        q = q.reshape(n, c.n_head, c.head_dim)
        k, v = (x.reshape(n, c.n_head_kv, c.head_dim) for x in (k, v))
        if "attn_q_norm.weight" in part:
            q = _norm(q, part["attn_q_norm.weight"], c.rms_eps)
            k = _norm(k, part["attn_k_norm.weight"], c.rms_eps)
        q, k = self._rotate(q, layer), self._rotate(k, layer)
        group = c.n_head // c.n_head_kv
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) * np.float32(c.attn_scale)
        behind = np.arange(n)[:, None] - np.arange(n)
        seen = (behind >= 0) & (behind < layer.window) if layer.window else behind >= 0
        scores = np.where(seen, scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v, optimize=True).reshape(n, -1)
        return np.asarray(out @ part["attn_output.weight"].T, dtype=np.float32)

    def _rotate(self, x: Floats, layer: Layer) -> Floats:
        """Rotate pairs of columns of each head by position × frequency."""
        c, rope = self.config, self.config.ropes[layer.rope]
        angle = np.arange(len(x))[:, None] * np.array(rope.frequencies)
        cos = (np.cos(angle) * rope.magnitude).astype(np.float32)[:, None, :]
        sin = (np.sin(angle) * rope.magnitude).astype(np.float32)[:, None, :]
        half = c.rope_dim // 2
        if c.rope_halves:
            first, second = slice(0, half), slice(half, c.rope_dim)
        else:
            first, second = slice(0, c.rope_dim, 2), slice(1, c.rope_dim, 2)
        out = x.copy()
        a, b = x[..., first], x[..., second]
        out[..., first] = a * cos - b * sin
        out[..., second] = a * sin + b * cos
        return out


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(x / scale * weight, dtype=np.float32)
