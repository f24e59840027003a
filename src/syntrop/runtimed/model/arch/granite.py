# SPDX-License-Identifier: Apache-2.0
"""granite: llama with multipliers of the embedding, the scores, what a block adds, and (a divisor) the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.config import DENSE, Config, Layer, sizes
from syntrop.runtimed.model.errors import UnsupportedModel

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys


def read(keys: Keys) -> Config:
    size = sizes(keys)
    if not keys.flag("rope.scaling.finetuned", True):  # this family's word for whether there is a RoPE at all
        raise UnsupportedModel(keys.full("rope.scaling.finetuned"), "attention without RoPE is not supported")
    return Config(
        **size,
        tensors=DENSE,
        ropes=(rope.read(keys, size["rope_dim"]),),
        rope_halves=keys.flag("rope.halves", False),  # as in llama
        layers=(Layer(),) * size["n_layer"],
        embed_scale=keys.number("embedding_scale", 1.0),
        attn_scale=keys.number("attention.scale", size["head_dim"] ** -0.5),
        residual_scale=keys.number("residual_scale", 1.0),
        logit_scale=1.0 / keys.number("logit_scale"),
    )
