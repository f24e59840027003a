# SPDX-License-Identifier: Apache-2.0
"""The numpy readings of the weight types against the `gguf` package's, to the bit, on bytes of every kind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as published

from syntrop.common.gguf import TYPES, parse
from syntrop.runtimed.model.llama import LlamaModel, levels
from syntrop.runtimed.quant import dequantize
from syntrop.runtimed.reference import ReferenceModel

_spec = importlib.util.spec_from_file_location("tinymodel_q", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

NAMES = sorted(tinymodel.ALL_TYPES)
ROWS, COLS = 48, 1024


def both(name: str, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    number = tinymodel.ALL_TYPES[name]
    ours = dequantize(raw.tobytes(), number, (COLS, len(raw)))
    with np.errstate(all="ignore"):
        plain = {"F32": np.float32, "F16": np.float16}
        theirs = published(raw.view(plain[name]) if name in plain else raw, GGMLQuantizationType(number))
    return ours, np.asarray(theirs, dtype=np.float32).reshape(ours.shape)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_give_the_published_numbers_to_the_bit(name: str, seed: int) -> None:
    """Any bytes: scales of every size, subnormal, infinite and not a number. The bits of a NaN are left open."""
    _, numbers, nbytes = TYPES[tinymodel.ALL_TYPES[name]]
    raw = np.random.default_rng(seed).integers(0, 256, (ROWS, COLS // numbers * nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours, theirs = both(name, raw)
    none = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), none)
    assert np.array_equal(ours.view(np.uint32)[~none], theirs.view(np.uint32)[~none])
    assert none.mean() < 0.1


@pytest.mark.parametrize("name", [one for one in NAMES if tinymodel.ALL_TYPES[one] in tinymodel.BLOCKS])
@pytest.mark.parametrize("scale", [0.0, -0.0, 6e-8, -6.1e-5, 1.0, 65504.0, -65504.0])
def test_scales_at_the_ends_of_their_range(name: str, scale: float) -> None:
    numbers, nbytes, at, minimum_at, _, _ = tinymodel.BLOCKS[tinymodel.ALL_TYPES[name]]
    raw = np.random.default_rng(9).integers(0, 256, (ROWS * COLS // numbers, nbytes), dtype=np.uint8)
    for where in (at, minimum_at):
        if where >= 0:
            raw[:, where : where + 2] = np.full((len(raw), 1), scale, dtype=np.float16).view(np.uint8)
    ours, theirs = both(name, raw.reshape(ROWS, -1))
    assert not np.isnan(ours).any()
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_blocks_are_the_headers_own(name: str) -> None:
    number = tinymodel.ALL_TYPES[name]
    _, numbers, nbytes = TYPES[number]
    assert number not in tinymodel.BLOCKS or tinymodel.BLOCKS[number][:2] == (numbers, nbytes)
    assert dequantize(bytes(nbytes * 256 // numbers), number, (256, 1)).shape == (1, 256)


@pytest.mark.parametrize("name", sorted(tinymodel.WIDE_TYPES))
@pytest.mark.parametrize("level", levels())
def test_a_model_of_wide_blocks_says_what_its_twin_says(name: str, level: str) -> None:
    """Embeddings, all matrices and the output in one type; test_llama does the types of narrow blocks."""
    tokens = [(i * 37 + 5) % 101 for i in range(21)]
    data = tinymodel.Tiny(type=tinymodel.ALL_TYPES[name], n_embd=256, n_ff=512, heads=8, head_dim=64).file()
    header = parse(data)
    expected = ReferenceModel(header, data).logits(tokens)
    model = LlamaModel.load(header, data, threads=1, level=level)
    ours = np.array(model.forward_all(model.sequence(30), tokens))
    model.close()
    assert np.abs(ours - expected).max() < 2e-3 * np.abs(expected).max()


def test_types_that_are_not_known_are_refused() -> None:
    with pytest.raises(KeyError):
        dequantize(bytes(84), 16, (256, 1))
