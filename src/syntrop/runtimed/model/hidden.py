# SPDX-License-Identifier: Apache-2.0
"""Embeddings of decoders: the hidden states from which the next tokens would be told, made one vector of length
1. Short texts share a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import BadRequest, NoMemory, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from syntrop.common.gguf import GGUF
    from syntrop.runtimed.model.llama import LlamaModel
    from syntrop.runtimed.model.lora import Adapter

ffi = _kernels.ffi
lib = _kernels.lib

POOLINGS: Mapping[object, str] = {1: "mean", 2: "cls", 3: "last"}  # `pooling_type` of GGUF metadata


def pooling_of(header: GGUF) -> str:
    """What a decoder's file asks for; `last` where it says nothing. Raises UnsupportedModel."""
    key = f"{header.metadata.get('general.architecture')}.pooling_type"
    value = header.metadata.get(key, 3)
    if not isinstance(value, int):
        raise UnsupportedModel(key, "not a single integer")
    return POOLINGS.get(value, "last")


def embed(
    model: LlamaModel,
    texts: Sequence[Sequence[int]],
    pooling: str,
    adapter: Adapter | None = None,
    wanted: Callable[[], bool] | None = None,
) -> list[list[float]]:
    """The vector of each text. Raises BadRequest, once `wanted` is false too, and NoMemory."""
    for text in texts:
        if not 0 < len(text) <= model.context:
            raise BadRequest("tokens", f"{len(text)} in a text, not between 1 and {model.context}")
    if pooling not in POOLINGS.values():
        raise BadRequest("pooling", f"{pooling!r} is none of {', '.join(POOLINGS.values())}")
    if pooling == "cls":
        texts = [text[:1] for text in texts]  # what follows changes nothing
    vectors: list[list[float]] = []
    for group in _groups(texts, pooling == "mean", model.context):
        try:
            vectors += _step(model, group, pooling == "mean", adapter, wanted)
        except NoMemory:
            if len(group) == 1:
                raise
            for text in group:
                vectors += _step(model, [text], pooling == "mean", adapter, wanted)
    return vectors


def _groups(texts: Sequence[Sequence[int]], mean: bool, context: int) -> Iterator[list[Sequence[int]]]:
    """Texts that go into one step together; a text that takes several is alone."""
    from syntrop.runtimed.model.llama import MAX_BATCH, MAX_LOGITS

    group: list[Sequence[int]] = []
    tokens = rows = 0
    for text in texts:
        tokens += len(text)
        rows += len(text) if mean else 1
        # A model makes room for no more tokens a step than its context has.
        if group and (tokens > min(MAX_BATCH, context) or rows > MAX_LOGITS):
            yield group
            group, tokens, rows = [], len(text), len(text) if mean else 1
        group.append(text)
    if group:
        yield group


def _step(
    model: LlamaModel,
    texts: list[Sequence[int]],
    mean: bool,
    adapter: Adapter | None,
    wanted: Callable[[], bool] | None,
) -> list[list[float]]:
    from syntrop.runtimed.model.llama import MAX_BATCH, MAX_LOGITS, Piece

    n = model.dimensions
    sums = [ffi.new("double[]", n) for _ in texts]
    most = MAX_LOGITS if mean else MAX_BATCH
    sequences = [model.sequence(len(text), adapter) for text in texts]
    try:
        for start in range(0, max(map(len, texts)), most):
            if wanted is not None and not wanted():
                raise BadRequest("texts", "nobody waits for them any more")
            pieces = [
                Piece(sequence, text[start : start + most], mean or start + most >= len(text))
                for sequence, text in zip(sequences, texts, strict=True)
            ]

            def add(states: Any, stride: int, pieces: list[Piece] = pieces) -> None:
                at = 0
                for piece, total in zip(pieces, sums, strict=True):
                    rows = len(piece.tokens) if mean else int(piece.logits)
                    lib.sy_add_rows(states + at * stride, stride, rows, n, total)
                    at += rows

            model._check(pieces)
            model._step(pieces, last=not mean, pool=add)
    finally:
        for sequence in sequences:
            sequence.close()
    vector = ffi.new("float[]", n)
    vectors: list[list[float]] = []
    for total in sums:
        lib.sy_unit_vector(total, n, vector)
        vectors.append(ffi.unpack(vector, n))
    return vectors
