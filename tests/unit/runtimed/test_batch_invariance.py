# SPDX-License-Identifier: Apache-2.0
"""A token comes out to the same bits whatever stands beside it in a batch, and however its prompt was cut up.

The engine rests on it: seeds that repeat a text whatever else runs, blocks of keys and values that are shared,
caches that are computed anew. So it holds for every level and every type of weights, in halves and at full width.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed.model.llama import LlamaModel, Piece, ffi, levels

_spec = importlib.util.spec_from_file_location("tinymodel_b", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

TOKENS = [(i * i * 7 + i) % 101 for i in range(332)]  # more than a chunk of attention


def bits(model: LlamaModel, row: Any) -> bytes:
    return bytes(ffi.buffer(row, model.config.n_vocab * 4))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("type", tinymodel.TYPES)
def test_of_every_type(level: str, type: str) -> None:
    check(tinymodel.Tiny(type=tinymodel.TYPES[type]), level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("type", tinymodel.WIDE_TYPES)
def test_of_every_wide_type(level: str, type: str) -> None:
    check(tinymodel.Tiny(type=tinymodel.WIDE_TYPES[type], layers=1, heads=8, n_embd=256, n_ff=256), level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kv_type", ["f16", "q8", "f32"])
@pytest.mark.parametrize("window", [0, 5, 250])
def test_with_windows_and_in_every_cache(level: str, kv_type: str, window: int) -> None:
    # Weights in F32: codes would swallow a difference in the last bits.
    check(tinymodel.Tiny(type=tinymodel.F32, llama__attention__sliding_window=window), level, kv_type=kv_type)


def check(tiny: Any, level: str, **options: Any) -> None:
    data = tiny.file()
    model = LlamaModel.load(parse(data), data, threads=2, level=level, **options)
    # Each token alone.
    sequence = model.sequence(332)
    alone = {}
    model.forward(sequence, TOKENS[:300], logits=False)
    for position in range(300, 332):
        alone[position] = bits(model, model.forward(sequence, [TOKENS[position]]))
    # The prompt in other pieces, beside others, and from one to eight generations in a step.
    sequences = [model.sequence(332) for _ in range(8)]
    model.step([Piece(sequences[0], TOKENS[:1], False)])
    model.step([Piece(sequences[0], TOKENS[1:100], False), Piece(sequences[1], TOKENS[:7], False)])
    model.step([Piece(sequences[1], TOKENS[7:21], False), Piece(sequences[0], TOKENS[100:300], False)])
    for index, other in enumerate(sequences[2:], 2):
        model.forward(other, TOKENS[index : index + 5 * index], logits=False)
    for position in range(300, 332):
        company = sequences[1 : 1 + (position - 300) % 8]
        batch = [Piece(other, [TOKENS[position - other.length]]) for other in company]
        at = position % (len(batch) + 1)
        batch.insert(at, Piece(sequences[0], [TOKENS[position]]))
        assert bits(model, model.step(batch)[at]) == alone[position], (position, len(batch))
    # The same tokens in pieces of several.
    sequences[0].truncate(300)
    for count in (1, 5, 8, 2, 3, 11):
        last = sequences[0].length + count - 1
        piece = TOKENS[last + 1 - count : last + 1]
        assert bits(model, model.forward(sequences[0], piece)) == alone[last], (last, count)
    model.close()
