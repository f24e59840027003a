# SPDX-License-Identifier: Apache-2.0
"""bert, and what GGUF files call so: RoBERTa and XLM-RoBERTa, whose tables of positions begin behind the rows that
those leave out, and DistilBERT, which has no token types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model.encoders import MATRICES, MAX_CONTEXT, POST_NORMS, Encoder, rows, sizes, types

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys

TENSORS = {
    **MATRICES,
    **{name.replace(".weight", ".bias"): (f"{slot}_bias",) for name, (slot,) in MATRICES.items()},
    **POST_NORMS,
}


def read(keys: Keys) -> Encoder:
    size, typed = sizes(keys), types(keys)
    positions = rows(keys, "position_embd.weight", MAX_CONTEXT)
    size["n_ctx_train"] = positions
    typed["whole"] = {**typed["whole"], "position_embd.weight": ("positions",)}
    return Encoder(**size, **typed, tensors=TENSORS, n_positions=positions)
