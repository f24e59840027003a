# SPDX-License-Identifier: Apache-2.0
"""gemma3: windowed layers with a RoPE base of their own between full ones, norms before and after each block,
norms of Q and K, GELU, a scaled embedding.

The conversion to GGUF has added the 1 that this family's norms leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.config import DENSE, MAX_CONTEXT, Config, Layer, sizes
from syntrop.runtimed.model.errors import BrokenModel

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys

TENSORS = {
    **DENSE,
    "attn_q_norm.weight": ("q_norm",),
    "attn_k_norm.weight": ("k_norm",),
    "post_attention_norm.weight": ("attn_post_norm",),
    "post_ffw_norm.weight": ("ffn_post_norm",),
}
_27B = 62  # layers: the only size whose scores are not scaled by the head's width


def read(keys: Keys) -> Config:
    size = sizes(keys)
    n_layer, head = size["n_layer"], size["head_dim"]
    if n_layer == _27B:
        head = size["n_embd"] // size["n_head"]
    return Config(
        **size,
        tensors=TENSORS,
        ropes=(
            rope.read(keys, size["rope_dim"]),
            rope.plain(rope.base(keys, "rope.freq_base_swa"), size["rope_dim"]),
        ),
        rope_halves=True,
        layers=_layers(keys, n_layer),
        activation="gelu",
        attn_scale=head**-0.5,
        embed_scale=size["n_embd"] ** 0.5,
        logit_cap=keys.number("final_logit_softcapping", 0.0, least=0.0),
    )


def _layers(keys: Keys, n_layer: int) -> tuple[Layer, ...]:
    full = Layer()
    window = keys.integer("attention.sliding_window", MAX_CONTEXT, 0, least=0)
    pattern = keys.flags("attention.sliding_window_pattern")
    if pattern is None:
        every = keys.integer("attention.sliding_window_pattern", 1 << 31, 6)
        pattern = [(i + 1) % every != 0 for i in range(n_layer)]
    elif len(pattern) < n_layer:
        raise BrokenModel(keys.full("attention.sliding_window_pattern"), f"{len(pattern)} for {n_layer} layers")
    if not window:
        return (full,) * n_layer
    return tuple(Layer(window, rope=1) if pattern[i] else full for i in range(n_layer))
