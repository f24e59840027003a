# SPDX-License-Identifier: Apache-2.0
"""qwen3: the heads of Q and K are normalised before they are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.config import DENSE, Config, Layer, sizes

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys

TENSORS = {**DENSE, "attn_q_norm.weight": ("q_norm",), "attn_k_norm.weight": ("k_norm",)}


def read(keys: Keys) -> Config:
    size = sizes(keys)
    return Config(
        **size,
        tensors=TENSORS,
        ropes=(rope.read(keys, size["rope_dim"]),),
        rope_halves=True,
        layers=(Layer(),) * size["n_layer"],
        attn_scale=size["head_dim"] ** -0.5,
    )
