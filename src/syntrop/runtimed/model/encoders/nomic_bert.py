# SPDX-License-Identifier: Apache-2.0
"""nomic-bert (nomic-embed-text): BERT with RoPE in the place of positions, a gated SiLU, and no biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model import rope
from syntrop.runtimed.model.encoders import MATRICES, POST_NORMS, Encoder, rotated, sizes, types

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys

_FUSED = {
    **{name: slots for name, slots in MATRICES.items() if slots[0] not in ("attn_q", "attn_k", "attn_v")},
    "attn_qkv.weight": ("attn_q", "attn_k", "attn_v"),
}
_OWN = {"ffn_gate.weight": ("ffn_gate",), **POST_NORMS}


def read(keys: Keys) -> Encoder:
    size = sizes(keys)
    fused = "blk.0.attn_qkv.weight" in keys.tensors
    return Encoder(
        **size,
        **types(keys),
        tensors={**(_FUSED if fused else MATRICES), **_OWN},
        ropes=(rope.read(keys, rotated(keys, size)),),
        activation="silu",
    )
