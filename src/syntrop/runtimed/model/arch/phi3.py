# SPDX-License-Identifier: Apache-2.0
"""phi3 (Phi-3, Phi-3.5, Phi-4-mini): Q, K and V in one tensor, gate and up in another, LongRoPE.

A window of 0 says that there is none; where there is one it holds for every layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.config import DENSE, MAX_CONTEXT, Config, Layer, sizes

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys

TENSORS = {
    **{name: slots for name, slots in DENSE.items() if slots[0] not in ("attn_q", "attn_k", "attn_v", "ffn_gate")},
    "attn_qkv.weight": ("attn_q", "attn_k", "attn_v"),
    "ffn_up.weight": ("ffn_gate", "ffn_up"),
}


def read(keys: Keys) -> Config:
    size = sizes(keys)
    layer = Layer(window=keys.integer("attention.sliding_window", MAX_CONTEXT, 0, least=0))
    return Config(
        **size,
        tensors=TENSORS,
        ropes=(rope.read(keys, size["rope_dim"]),),
        rope_halves=True,
        layers=(layer,) * size["n_layer"],
        attn_scale=size["head_dim"] ** -0.5,
    )
