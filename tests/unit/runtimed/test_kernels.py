# SPDX-License-Identifier: Apache-2.0
"""Every kernel at every level against plain numpy, and the levels against each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.llama import LEVELS, levels
from syntrop.runtimed.quant import dequantize

_spec = importlib.util.spec_from_file_location("tinymodel_k", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

ffi, lib = _kernels.ffi, _kernels.lib
HERE = levels()
FLOATS = ("F32", "F16", "BF16")
FOLDS = {16: 1904, 7: 911}  # the kinds of codes of activations, and the largest of each (engine.h)


def tolerance(level: str, type: str, fold: int) -> float:
    """Of products of unit variance: float32 sums, codes of the level of tiles (16 bits), those of the others."""
    return 5e-6 if type in FLOATS else 5e-4 if level == "amx" else 9 / FOLDS[fold]


def pointer(array: np.ndarray, ctype: str = "float[]") -> Any:
    return ffi.from_buffer(ctype, array)


def matmul(
    level: str, type: int, shape: tuple[int, int], data: bytes, x: np.ndarray, threads: int = 1, fold: int = 16
) -> np.ndarray:
    rows, cols = shape
    y = np.full((len(x), rows), np.nan, dtype=np.float32)
    status = lib.sy_test_matmul(
        LEVELS[level], threads, fold, type, rows, cols, ffi.from_buffer(data), len(x), pointer(x), pointer(y)
    )
    assert status == 0
    return y


def product(type: int, shape: tuple[int, int], data: bytes, x: np.ndarray) -> np.ndarray:
    weights = dequantize(data, type, (shape[1], shape[0])).astype(np.float64)
    return x.astype(np.float64) @ weights.T


def width(type: str, cols: int) -> int:
    """`cols` rounded up to whole blocks of the type."""
    numbers = tinymodel.BLOCKS.get(tinymodel.ALL_TYPES[type], (1,))[0]
    return -(-cols // numbers) * numbers


def activations(rng: np.random.Generator, n: int, cols: int) -> np.ndarray:
    return rng.standard_normal((n, cols)).astype(np.float32)


def test_the_processor_runs_at_least_the_reference_level() -> None:
    assert HERE[0] == "scalar"
    assert lib.sy_level_best() == LEVELS[HERE[-1]]
    assert not lib.sy_level_supported(99)
    for name, level in LEVELS.items():
        assert (lib.sy_level_missing(level) == ffi.NULL) == (name in HERE)


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("type", tinymodel.ALL_TYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 17, 131])
@pytest.mark.parametrize("fold", FOLDS)
def test_products_equal_numpy(level: str, type: str, n: int, fold: int) -> None:
    rng = np.random.default_rng(n)
    shape = (50, width(type, 96))  # four panels, the last one not whole
    data = tinymodel.encode(rng, tinymodel.ALL_TYPES[type], *shape)
    x = activations(rng, n, shape[1])
    expected = product(tinymodel.ALL_TYPES[type], shape, data, x)
    ours = matmul(level, tinymodel.ALL_TYPES[type], shape, data, x, fold=fold)
    np.testing.assert_allclose(ours, expected, atol=tolerance(level, type, fold))


@pytest.mark.parametrize("level", HERE[1:])
@pytest.mark.parametrize("type", tinymodel.ALL_TYPES)
@pytest.mark.parametrize("n", [1, 2, 4, 11])
@pytest.mark.parametrize("fold", FOLDS)
def test_levels_agree_to_float_rounding(level: str, type: str, n: int, fold: int) -> None:
    rng = np.random.default_rng(7)
    shape, number = (64, 1024), tinymodel.ALL_TYPES[type]
    data = tinymodel.encode(rng, number, *shape)
    x = activations(rng, n, shape[1])
    # The level of tiles has codes of its own.
    allowed = 20 / FOLDS[fold] if level == "amx" and type not in FLOATS else 2e-5
    reference = matmul("scalar", number, shape, data, x, fold=fold)
    np.testing.assert_allclose(matmul(level, number, shape, data, x, fold=fold), reference, atol=allowed)


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("type", tinymodel.ALL_TYPES)
@pytest.mark.parametrize("fold", FOLDS)
def test_neither_threads_nor_company_change_a_bit(level: str, type: str, fold: int) -> None:
    rng = np.random.default_rng(3)
    shape, number = (80, width(type, 928)), tinymodel.ALL_TYPES[type]
    data = tinymodel.encode(rng, number, *shape)
    x = activations(rng, 13, shape[1])
    together = matmul(level, number, shape, data, x, fold=fold)
    assert np.array_equal(together, matmul(level, number, shape, data, x, threads=3, fold=fold))
    for first, last in ((0, 1), (7, 8), (12, 13), (0, 2), (3, 7), (5, 13)):
        fewer = matmul(level, number, shape, data, np.ascontiguousarray(x[first:last]), fold=fold)
        assert np.array_equal(fewer, together[first:last])


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("type", [name for name in tinymodel.ALL_TYPES if name not in FLOATS])
@pytest.mark.parametrize("code", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("fold", FOLDS)
def test_extreme_codes_do_not_saturate(level: str, type: str, code: int, fold: int) -> None:
    number, cols = tinymodel.ALL_TYPES[type], 256
    numbers, nbytes, at, minimum_at, _, ratio = tinymodel.BLOCKS[number]
    block = bytearray([code]) * nbytes
    block[at : at + 2] = np.float16(1).tobytes()
    if minimum_at >= 0:
        block[minimum_at : minimum_at + 2] = np.float16(ratio).tobytes()
    data = bytes(block) * (16 * cols // numbers)
    x = np.full((10, cols), 3.0, dtype=np.float32)
    x[1, ::2] *= -1
    x[2:4] *= -1
    allowed = 5e-5 if level == "amx" else 2e-6
    np.testing.assert_allclose(
        matmul(level, number, (16, cols), data, x, fold=fold),
        product(number, (16, cols), data, x),
        rtol=allowed,
        atol=0.05,
    )


@pytest.mark.parametrize("level", [level for level in HERE if level != "amx"])
@pytest.mark.parametrize("type", ["Q4_1", "Q5_0", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("n", [1, 8])
def test_the_largest_codes_in_all_pairs(level: str, type: str, fold: int, n: int) -> None:
    """Columns c and 16 + c of a block are multiplied together; numbers here are their own codes."""
    most, rng, number = FOLDS[fold], np.random.default_rng(2), tinymodel.ALL_TYPES[type]
    ends = np.r_[-most : -most + 40, -20:20, most - 39 : most + 1]
    pairs = np.stack(np.meshgrid(ends, ends), axis=-1).reshape(-1, 15, 2)
    blocks = np.concatenate([np.full((len(pairs), 1, 2), most), pairs], axis=1)  # scale 1
    x = np.ascontiguousarray(np.tile(blocks.transpose(0, 2, 1).reshape(1, -1), (n, 1)), dtype=np.float32)
    data = tinymodel.encode(rng, number, 16, x.shape[1])
    expected = product(number, (16, x.shape[1]), data, x)
    ours = matmul(level, number, (16, x.shape[1]), data, x, fold=fold)
    np.testing.assert_allclose(ours, expected, atol=1e-5 * most)


@pytest.mark.parametrize("level", HERE)
def test_a_block_of_zeros_and_numbers_that_are_none_are_survived(level: str) -> None:
    rng = np.random.default_rng(5)
    data = tinymodel.encode(rng, tinymodel.Q4_1, 16, 64)
    x = np.zeros((4, 64), dtype=np.float32)
    x[1, 5], x[2, 6], x[3, 0] = np.nan, np.inf, 3e38
    assert np.array_equal(matmul(level, tinymodel.Q4_1, (16, 64), data, x)[0], np.zeros(16))


@settings(max_examples=60, deadline=None)
@given(
    level=st.sampled_from(HERE),
    type=st.sampled_from(sorted(tinymodel.ALL_TYPES)),
    rows=st.integers(1, 70),
    blocks=st.integers(1, 6),
    n=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([1e-6, 1.0, 1e4]),
)
def test_any_shape(level: str, type: str, rows: int, blocks: int, n: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    shape, number = (rows, width(type, blocks * 32)), tinymodel.ALL_TYPES[type]
    data = tinymodel.encode(rng, number, *shape)
    x = activations(rng, n, shape[1]) * np.float32(spread)
    expected = product(number, shape, data, x)
    np.testing.assert_allclose(matmul(level, number, shape, data, x), expected, atol=9 / FOLDS[16] * spread)


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    assert lib.sy_packed_bytes(tinymodel.Q8_0, 16, 33) == 0
    assert lib.sy_packed_bytes(77, 16, 32) == 0
    assert lib.sy_packed_bytes(tinymodel.F16, 0, 32) == 0
    assert lib.sy_packed_bytes(tinymodel.F16, 16, 33) == 2 * 16 * 33
    assert lib.sy_packed_bytes(tinymodel.Q4_1, 17, 64) == 32 * 2 * 20  # rows come in panels of 16
    for type in tinymodel.WIDE_TYPES.values():
        assert lib.sy_packed_bytes(type, 16, 128) == 0
        assert lib.sy_packed_bytes(type, 16, 256) > 0


@pytest.mark.parametrize("type", tinymodel.BLOCKS)
def test_a_packed_matrix_takes_what_the_file_takes(type: int) -> None:
    numbers, nbytes = tinymodel.BLOCKS[type][:2]
    file = 64 * 2048 // numbers * nbytes
    assert file <= lib.sy_packed_bytes(type, 64, 2048) <= file * 1.04


@pytest.mark.parametrize("type", tinymodel.ALL_TYPES)
@pytest.mark.parametrize("row", [0, 15, 16, 20])
def test_one_row_unpacks_to_the_bits_that_numpy_reads(type: str, row: int) -> None:
    number, cols = tinymodel.ALL_TYPES[type], 512
    data = tinymodel.encode(np.random.default_rng(row), number, 21, cols)
    out = np.empty(cols, dtype=np.float32)
    assert lib.sy_test_row(number, 21, cols, ffi.from_buffer(data), row, pointer(out)) == 0
    assert np.array_equal(out.view(np.uint32), dequantize(data, number, (cols, 21))[row].view(np.uint32))


@pytest.mark.parametrize("level", HERE)
def test_exp(level: str) -> None:
    x = np.concatenate([np.linspace(-90, 88, 4001), [0, -0.0, -1e-30, -87.3, -200, -3e38, -np.inf]]).astype(
        np.float32
    )
    y = np.empty_like(x)
    assert lib.sy_test_exp(LEVELS[level], len(x), pointer(x), pointer(y)) == 0
    expected = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, np.where(x < -87, 0, expected), rtol=3e-7)


@pytest.mark.parametrize("level", HERE)
def test_halves_round_as_ieee_says(level: str) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    every = every[~np.isnan(every)].astype(np.float32)
    with np.errstate(over="ignore"):
        between = np.concatenate([np.nextafter(every, np.float32(s)) for s in (-np.inf, np.inf)])
        ties = (every[:-1].astype(np.float64) + every[1:]).astype(np.float32) / 2
        x = np.concatenate([every, between, ties, np.float32([65519.9, 65520, 1e9, -1e9, 1e-9])])
        x = np.ascontiguousarray(x[np.isfinite(x)])
        expected = x.astype(np.float16)
    half, back = np.empty(len(x), dtype=np.uint16), np.empty_like(x)
    assert lib.sy_test_half(LEVELS[level], len(x), pointer(x), pointer(half, "uint16_t[]"), pointer(back)) == 0
    assert np.array_equal(half, expected.view(np.uint16))
    assert np.array_equal(back, expected.astype(np.float32))


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("n", [1, 15, 64, 577])
def test_norm(level: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x, weight = activations(rng, 1, n)[0], activations(rng, 1, n)[0]
    y = np.empty_like(x)
    assert lib.sy_test_norm(LEVELS[level], n, pointer(x), pointer(weight), 1e-5, pointer(y)) == 0
    exact = x.astype(np.float64)
    np.testing.assert_allclose(y, exact / np.sqrt(np.mean(exact**2) + 1e-5) * weight, rtol=2e-6)
