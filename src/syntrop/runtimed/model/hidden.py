# SPDX-License-Identifier: Apache-2.0
"""Embeddings of decoders: the hidden states from which the next tokens would be told, made one vector of length
1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from syntrop.runtimed.model.llama import LlamaModel
    from syntrop.runtimed.model.lora import Adapter

ffi = _kernels.ffi
lib = _kernels.lib

POOLINGS: Mapping[object, str] = {1: "mean", 2: "cls", 3: "last"}  # `pooling_type` of GGUF metadata


def embed(model: LlamaModel, tokens: Sequence[int], pooling: str, adapter: Adapter | None = None) -> list[float]:
    """The vector of a text. Raises BadRequest and NoMemory."""
    from syntrop.runtimed.model.llama import MAX_BATCH, MAX_LOGITS, Piece

    if not 0 < len(tokens) <= model.context:
        raise BadRequest("tokens", f"{len(tokens)} in a text, not between 1 and {model.context}")
    if pooling not in POOLINGS.values():
        raise BadRequest("pooling", f"{pooling!r} is none of {', '.join(POOLINGS.values())}")
    n = model.dimensions
    sums, vector = ffi.new("double[]", n), ffi.new("float[]", n)
    if pooling == "cls":
        tokens = tokens[:1]  # what follows changes nothing
    most = MAX_LOGITS if pooling == "mean" else MAX_BATCH
    with model.sequence(len(tokens), adapter) as sequence:
        for start in range(0, len(tokens), most):
            part = tokens[start : start + most]
            rows = len(part) if pooling == "mean" else int(start + most >= len(tokens))

            def add(states: Any, stride: int, rows: int = rows) -> None:
                lib.sy_add_rows(states, stride, rows, n, sums)

            piece = Piece(sequence, part, rows > 0)
            model._check([piece])
            model._step([piece], last=pooling != "mean", pool=add)
    lib.sy_unit_vector(sums, n, vector)
    return ffi.unpack(vector, n)  # type: ignore[no-any-return]
