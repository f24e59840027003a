# SPDX-License-Identifier: Apache-2.0
"""llama, and what calls itself so: Mistral, SmolLM, TinyLlama.

Pairs of neighbouring columns rotate: the conversion to GGUF has reordered the rows of Q and K for that.
Llama 3.1's scaling arrives as divisors in `rope_freqs.weight`, Mistral's window as a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.config import DENSE, MAX_CONTEXT, Config, Layer, sizes

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys


def read(keys: Keys) -> Config:
    size = sizes(keys)
    layer = Layer(window=keys.integer("attention.sliding_window", MAX_CONTEXT, 0, least=0))
    return Config(
        **size,
        tensors=DENSE,
        ropes=(rope.read(keys, size["rope_dim"]),),
        rope_halves=keys.flag("rope.halves", False),  # checkpoint.py says so: there the rows are as published
        layers=(layer,) * size["n_layer"],
        attn_scale=size["head_dim"] ** -0.5,
    )
