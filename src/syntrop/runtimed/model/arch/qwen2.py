# SPDX-License-Identifier: Apache-2.0
"""qwen2: llama with biases on Q, K and V, and rotation of columns half a head apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.config import BIASED, Config, Layer, sizes

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys


def read(keys: Keys) -> Config:
    size = sizes(keys)
    return Config(
        **size,
        tensors=BIASED,
        ropes=(rope.read(keys, size["rope_dim"]),),
        rope_halves=True,
        layers=(Layer(),) * size["n_layer"],
        attn_scale=size["head_dim"] ** -0.5,
    )
