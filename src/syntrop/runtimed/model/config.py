# SPDX-License-Identifier: Apache-2.0
"""The hyperparameters of a llama model, read from GGUF metadata and checked before C sees a number."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from syntrop.common.gguf import GGUF

MAX_HEAD = 256  # kernels/engine.h: bounds the stack of attention
MAX_CONTEXT = 1 << 22


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes in elements; `rope_scale` multiplies positions (linear scaling)."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rope_dim: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    rope_theta: float
    rope_scale: float


def read_config(gguf: GGUF) -> LlamaConfig:
    """The configuration of a `llama` GGUF. Raises UnsupportedModel or BrokenModel, naming the key."""
    metadata = gguf.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModel("general.architecture", f"{architecture!r} is not supported, only 'llama'")
    n_embd = _int(metadata, "embedding_length", 1 << 20)
    n_head = _int(metadata, "attention.head_count", 1 << 12)
    n_head_kv = _int(metadata, "attention.head_count_kv", 1 << 12, n_head)
    if n_head % n_head_kv:
        raise BrokenModel(
            "llama.attention.head_count_kv", f"{n_head} heads do not share {n_head_kv} evenly"
        )
    if "llama.attention.key_length" not in metadata and n_embd % n_head:
        raise BrokenModel("llama.attention.head_count", f"{n_embd} is not a multiple of {n_head}")
    head_dim = _int(metadata, "attention.key_length", MAX_HEAD, n_embd // n_head)
    if _int(metadata, "attention.value_length", MAX_HEAD, head_dim) != head_dim:
        raise UnsupportedModel("llama.attention.value_length", "differs from key_length")
    if head_dim > MAX_HEAD or head_dim % 2:
        raise UnsupportedModel("llama.attention.key_length", f"heads of {head_dim}, not even and ≤ {MAX_HEAD}")
    rope_dim = _int(metadata, "rope.dimension_count", head_dim, head_dim)
    if rope_dim % 2:
        raise BrokenModel("llama.rope.dimension_count", f"{rope_dim} is odd")
    if metadata.get("llama.expert_count"):
        raise UnsupportedModel("llama.expert_count", "mixtures of experts are not supported")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BrokenModel("token_embd.weight", "missing" if embedding is None else "not a matrix")
    n_vocab = embedding.shape[1]
    if n_vocab > 1 << 24:
        raise UnsupportedModel("token_embd.weight", f"a vocabulary of {n_vocab}")
    return LlamaConfig(
        n_layer=_int(metadata, "block_count", 1 << 10),
        n_embd=n_embd,
        n_ff=_int(metadata, "feed_forward_length", 1 << 22),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        rope_dim=rope_dim,
        n_vocab=n_vocab,
        n_ctx_train=_int(metadata, "context_length", MAX_CONTEXT),
        rms_eps=_float(metadata, "attention.layer_norm_rms_epsilon"),
        rope_theta=_float(metadata, "rope.freq_base", 10000.0),
        rope_scale=1.0 / _linear_factor(metadata),
    )


def _linear_factor(metadata: Mapping[str, object]) -> float:
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        return _float(metadata, "rope.scaling.factor")
    if kind != "none":
        raise UnsupportedModel("llama.rope.scaling.type", f"{kind!r} is not supported")
    return _float(metadata, "rope.scale_linear", 1.0)


def _int(metadata: Mapping[str, object], name: str, most: int, default: int | None = None) -> int:
    key = f"llama.{name}"
    value = metadata.get(key, default)
    if value is None:
        raise BrokenModel(key, "missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedModel(key, "not a single integer")
    if not 1 <= value <= most:
        raise BrokenModel(key, f"{value} is not between 1 and {most}")
    return value


def _float(metadata: Mapping[str, object], name: str, default: float | None = None) -> float:
    key = f"llama.{name}"
    value = metadata.get(key, default)
    if value is None:
        raise BrokenModel(key, "missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedModel(key, "not a number")
    if not isfinite(value) or value <= 0:
        raise BrokenModel(key, f"{value} is not a positive number")
    return float(value)
