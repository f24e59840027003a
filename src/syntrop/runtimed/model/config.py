# SPDX-License-Identifier: Apache-2.0
"""What a decoder is made of, in general; read from GGUF metadata and checked before C sees a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from syntrop.runtimed.model import arch
from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel
from syntrop.runtimed.model.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from syntrop.common.gguf import GGUF
    from syntrop.runtimed.model.keys import Buffer
    from syntrop.runtimed.model.rope import Rope

MAX_HEAD = 256  # kernels/engine.h: bounds the stack of attention
MAX_CONTEXT = 1 << 22

# Tensor of a layer -> the slots that its rows fill, in order.
DENSE: Mapping[str, tuple[str, ...]] = {
    "attn_norm.weight": ("attn_norm",),
    "attn_q.weight": ("attn_q",),
    "attn_k.weight": ("attn_k",),
    "attn_v.weight": ("attn_v",),
    "attn_output.weight": ("attn_o",),
    "ffn_norm.weight": ("ffn_norm",),
    "ffn_gate.weight": ("ffn_gate",),
    "ffn_up.weight": ("ffn_up",),
    "ffn_down.weight": ("ffn_down",),
}
BIASED: Mapping[str, tuple[str, ...]] = {
    **DENSE,
    "attn_q.bias": ("q_bias",),
    "attn_k.bias": ("k_bias",),
    "attn_v.bias": ("v_bias",),
}


class Layer(NamedTuple):
    """In what a layer differs from its fellows."""

    window: int = 0  # tokens that a token sees, itself included; 0: all
    rope: int = 0  # index of its frequencies


class Config(NamedTuple):
    """A decoder. Sizes in elements. (No dataclass: that module costs a first token 8 ms.)"""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rope_dim: int  # columns of a head that rotate
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    tensors: Mapping[str, tuple[str, ...]]  # of each layer, see DENSE
    layers: tuple[Layer, ...]
    ropes: tuple[Rope, ...]  # one or two
    rope_halves: bool = False  # pairs are (i, i + rope_dim / 2), not (2i, 2i + 1)
    activation: str = "silu"  # or gelu, by its tanh formula
    embed_scale: float = 1.0
    attn_scale: float = 1.0  # of scores
    residual_scale: float = 1.0  # of what a block adds
    logit_scale: float = 1.0
    logit_cap: float = 0.0  # c·tanh(x / c); 0: none
    consumed: frozenset[str] = frozenset()  # tensors that went into the above

    @property
    def slots(self) -> frozenset[str]:
        """All that a layer of this model has."""
        return frozenset(slot for slots in self.tensors.values() for slot in slots)


def read_config(header: GGUF, buffer: Buffer, context: int = 0) -> Config:
    """The configuration of a GGUF file, for sequences of up to `context` tokens (0: what it was trained for).

    Raises UnsupportedModel or BrokenModel, naming key or tensor.
    """
    keys = Keys(header, buffer, context)
    if keys.architecture not in arch.NAMES:
        known = ", ".join(arch.NAMES)
        raise UnsupportedModel("general.architecture", f"{keys.architecture!r} is none of {known}")
    config = arch.reader(keys.architecture)(keys)
    keys.finish()
    return config._replace(consumed=frozenset(keys.vectors))


def sizes(keys: Keys) -> dict[str, Any]:
    """The fields that all architectures have, under their names in Config."""
    n_embd = keys.integer("embedding_length", 1 << 20)
    n_head = keys.integer("attention.head_count", 1 << 12)
    n_head_kv = keys.integer("attention.head_count_kv", 1 << 12, n_head)
    if n_head % n_head_kv:
        raise BrokenModel(keys.full("attention.head_count_kv"), f"{n_head} heads do not share {n_head_kv} evenly")
    if not keys.has("attention.key_length") and n_embd % n_head:
        raise BrokenModel(keys.full("attention.head_count"), f"{n_embd} is not a multiple of {n_head}")
    head_dim = keys.integer("attention.key_length", MAX_HEAD, n_embd // n_head)
    if keys.integer("attention.value_length", MAX_HEAD, head_dim) != head_dim:
        raise UnsupportedModel(keys.full("attention.value_length"), "differs from key_length")
    if head_dim > MAX_HEAD or head_dim % 2:
        reason = f"heads of {head_dim}, not even and ≤ {MAX_HEAD}"
        raise UnsupportedModel(keys.full("attention.key_length"), reason)
    rope_dim = keys.integer("rope.dimension_count", head_dim, head_dim)
    if rope_dim % 2:
        raise BrokenModel(keys.full("rope.dimension_count"), f"{rope_dim} is odd")
    if not keys.flag("attention.causal", True):
        raise UnsupportedModel(keys.full("attention.causal"), "only decoders are supported here")
    n_ctx_train = keys.integer("context_length", MAX_CONTEXT)
    keys.context = keys.context or n_ctx_train
    embedding = keys.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BrokenModel("token_embd.weight", "missing" if embedding is None else "not a matrix")
    n_vocab = embedding.shape[1]
    if n_vocab > 1 << 24:
        raise UnsupportedModel("token_embd.weight", f"a vocabulary of {n_vocab}")
    return {
        "architecture": keys.architecture,
        "n_layer": keys.integer("block_count", 1 << 10),
        "n_embd": n_embd,
        "n_ff": keys.integer("feed_forward_length", 1 << 22),
        "n_head": n_head,
        "n_head_kv": n_head_kv,
        "head_dim": head_dim,
        "rope_dim": rope_dim,
        "n_vocab": n_vocab,
        "n_ctx_train": n_ctx_train,
        "rms_eps": keys.number("attention.layer_norm_rms_epsilon"),
    }
