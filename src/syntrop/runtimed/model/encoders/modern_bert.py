# SPDX-License-Identifier: Apache-2.0
"""modern-bert (ModernBERT, gte-modernbert): norms before each half, a gated activation, no biases,
RoPE, and layers that see a window, rotated by a base of their own, between some that see everything.

GGUF's window is twice the tokens that are seen to either side. The first layer has no norm before its attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.encoders import MAX_CONTEXT, Encoder, Layer, rotated, sizes
from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys

WHOLE = {
    "token_embd.weight": ("words",),
    "token_embd_norm.weight": ("embed_norm",),
    "output_norm.weight": ("output_norm",),
}
TENSORS = {
    "attn_norm.weight": ("attn_norm",),
    "attn_qkv.weight": ("attn_q", "attn_k", "attn_v"),
    "attn_output.weight": ("attn_output",),
    "ffn_norm.weight": ("ffn_norm",),
    "ffn_up.weight": ("ffn_gate", "ffn_up"),
    "ffn_down.weight": ("ffn_down",),
}
ACTIVATIONS = ("gelu", "silu")


def read(keys: Keys) -> Encoder:
    size = sizes(keys)
    head = rotated(keys, size)
    activation = keys.text("hidden_activation", "gelu")
    if activation not in ACTIVATIONS:
        reason = f"{activation!r} is none of {', '.join(ACTIVATIONS)}"
        raise UnsupportedModel(keys.full("hidden_activation"), reason)
    if keys.number("attention.layer_norm_rms_epsilon", size["eps"], least=0.0) != size["eps"]:
        raise UnsupportedModel(keys.full("attention.layer_norm_rms_epsilon"), "differs from layer_norm_epsilon")
    keys.integer("classifier.pooling_type", 1 << 31, 1, least=0)  # of a head that embedding does not use
    return Encoder(
        **size,
        whole=WHOLE,
        tensors=TENSORS,
        layers=tuple(_layers(keys, size["n_layer"])),
        ropes=(rope.read(keys, head), rope.plain(rope.base(keys, "rope.freq_base_swa"), head)),
        activation=activation,
        pre_norm=True,
    )


def _layers(keys: Keys, n_layer: int) -> list[Layer]:
    window = keys.integer("attention.sliding_window", MAX_CONTEXT, 0, least=0)
    if window == 1:
        raise UnsupportedModel(keys.full("attention.sliding_window"), "1: each token would see itself alone")
    pattern = keys.flags("attention.sliding_window_pattern")
    if pattern is None:
        every = keys.integer("attention.sliding_window_pattern", 1 << 31, 3)
        pattern = [i % every != 0 for i in range(n_layer)]
    elif len(pattern) < n_layer:
        raise BrokenModel(keys.full("attention.sliding_window_pattern"), f"{len(pattern)} for {n_layer} layers")
    bare = "blk.0.attn_norm.weight" not in keys.tensors
    return [
        Layer(span=window // 2 if pattern[i] else 0, rope=int(bool(window) and pattern[i]), bare=bare and i == 0)
        for i in range(n_layer)
    ]
