# SPDX-License-Identifier: Apache-2.0
"""Plain numpy readings of the weight types: the reference that the C kernels are tested against.

A row of a quantised type is a run of blocks, of 32 numbers or (the K types and IQ4_XS) of 256. Integers are
little-endian; scales d, minima m are f16. "Halves" are nibbles of 16 bytes: the low ones are numbers 0..15,
the high ones 16..31.

    Q8_0    d, 32 signed bytes                          number = code · d
    Q4_0    d, halves                                   (code - 8) · d
    Q4_1    d, m, halves                                code · d + m
    Q5_0/1  as Q4_0/1, 32 fifth bits before the halves  (code - 16) · d, code · d + m
    IQ4_NL  as Q4_0                                     CODEBOOK[code] · d
    IQ4_XS  d, scales' upper bits, scales' lower bits, 8 × halves; 6-bit scales, one per 32 numbers:
                                                        CODEBOOK[code] · (d · (scale - 32))
    Q2_K    16 bytes of scale and (high nibble) minimum, one per 16 numbers; codes; d, dm
                                                        code · (d · scale) - dm · minimum
    Q3_K    third bits, codes, 16 scales of 6 bits, d   (code - 4) · (d · (scale - 32))
    Q4_K    d, dm, 8 scales and 8 minima of 6 bits, codes
    Q5_K    as Q4_K, fifth bits before the codes        code · (d · scale) - dm · minimum
    Q6_K    lower, upper bits of the codes; 16 signed bytes of scale; d
                                                        (code - 32) · (d · scale)

Every product here is exact in float32, so that the order of the factors does not matter and each number is
rounded at most once, by the sum; a scale that is infinite or not a number gives NaN where the code is 0 (0 · inf).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 0, 1, 2, 3, 6, 7, 8
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16 = 10, 11, 12, 13, 14, 20, 23, 30
BLOCK = 32
SUPER = 256

CODEBOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


def _half(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _fields(data: Bytes, *shifts: int, run: int, bits: int) -> Bytes:
    """Bit fields of each `run` bytes, those at the first shift before those at the second: [blocks, numbers]."""
    apart = data.reshape(len(data), -1, 1, run) >> np.array(shifts, dtype=np.uint8)[:, None]
    return (apart & np.uint8((1 << bits) - 1)).reshape(len(data), -1)


def _halves(data: Bytes) -> Bytes:
    return _fields(data, 0, 4, run=16, bits=4)


def _fifth(bits: Bytes, halves: Bytes) -> Floats:
    return (_halves(halves) | np.unpackbits(bits, axis=1, bitorder="little") << 4).astype(np.float32)


def _q8_0(data: Bytes) -> Floats:
    b = data.reshape(-1, 34)
    return np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32) * _half(b[:, :2])


def _q4_0(data: Bytes) -> Floats:
    b = data.reshape(-1, 18)
    return (_halves(b[:, 2:]).astype(np.float32) - np.float32(8)) * _half(b[:, :2])


def _q4_1(data: Bytes) -> Floats:
    b = data.reshape(-1, 20)
    return _halves(b[:, 4:]).astype(np.float32) * _half(b[:, :2]) + _half(b[:, 2:4])


def _q5_0(data: Bytes) -> Floats:
    b = data.reshape(-1, 22)
    return (_fifth(b[:, 2:6], b[:, 6:]) - np.float32(16)) * _half(b[:, :2])


def _q5_1(data: Bytes) -> Floats:
    b = data.reshape(-1, 24)
    return _fifth(b[:, 4:8], b[:, 8:]) * _half(b[:, :2]) + _half(b[:, 2:4])


def _iq4_nl(data: Bytes) -> Floats:
    b = data.reshape(-1, 18)
    return np.asarray(CODEBOOK[_halves(b[:, 2:])] * _half(b[:, :2]))


def _iq4_xs(data: Bytes) -> Floats:
    b = data.reshape(-1, 136)
    upper = np.ascontiguousarray(b[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scale = (_fields(b[:, 4:8], 0, 4, run=1, bits=4) | upper << 4).astype(np.float32) - np.float32(32)
    return _scaled(CODEBOOK[_halves(b[:, 8:])], _half(b[:, :2]) * scale)


def _scaled(codes: Floats, scale: Floats, minimum: Floats | None = None) -> Floats:
    """codes [blocks, 256] · scale [blocks, parts] - minimum."""
    apart = codes.reshape(*scale.shape, -1) * scale[:, :, None]
    if minimum is not None:
        apart -= minimum[:, :, None]
    return np.asarray(apart.reshape(len(codes), -1))


def _q2_k(data: Bytes) -> Floats:
    b = data.reshape(-1, 84)
    codes = _fields(b[:, 16:80], 0, 2, 4, 6, run=32, bits=2).astype(np.float32)
    scale, minimum = (b[:, :16] & 15).astype(np.float32), (b[:, :16] >> 4).astype(np.float32)
    return _scaled(codes, _half(b[:, 80:82]) * scale, _half(b[:, 82:84]) * minimum)


def _q3_k(data: Bytes) -> Floats:
    b = data.reshape(-1, 110)
    third = _fields(b[:, :32], *range(8), run=32, bits=1)
    codes = (_fields(b[:, 32:96], 0, 2, 4, 6, run=32, bits=2) | third << 2).astype(np.float32) - np.float32(4)
    lower, upper = _fields(b[:, 96:104], 0, 4, run=8, bits=4), _fields(b[:, 104:108], 0, 2, 4, 6, run=4, bits=2)
    return _scaled(codes, _half(b[:, 108:]) * ((lower | upper << 4).astype(np.float32) - np.float32(32)))


def _six(b: Bytes) -> tuple[Floats, Floats]:
    """The 8 scales and 8 minima in 12 bytes: the first four have their own, the others what those left."""
    scale, minimum, rest = b[:, :4], b[:, 4:8], b[:, 8:12]
    scales = np.concatenate([scale & 63, rest & 15 | scale >> 6 << 4], axis=1)
    minima = np.concatenate([minimum & 63, rest >> 4 | minimum >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(data: Bytes) -> Floats:
    b = data.reshape(-1, 144)
    scale, minimum = _six(b[:, 4:16])
    codes = _fields(b[:, 16:], 0, 4, run=32, bits=4).astype(np.float32)
    return _scaled(codes, _half(b[:, :2]) * scale, _half(b[:, 2:4]) * minimum)


def _q5_k(data: Bytes) -> Floats:
    b = data.reshape(-1, 176)
    scale, minimum = _six(b[:, 4:16])
    fifth = _fields(b[:, 16:48], *range(8), run=32, bits=1)
    codes = (_fields(b[:, 48:], 0, 4, run=32, bits=4) | fifth << 4).astype(np.float32)
    return _scaled(codes, _half(b[:, :2]) * scale, _half(b[:, 2:4]) * minimum)


def _q6_k(data: Bytes) -> Floats:
    b = data.reshape(-1, 210)
    upper = _fields(b[:, 128:192], 0, 2, 4, 6, run=32, bits=2)
    codes = (_fields(b[:, :128], 0, 4, run=64, bits=4) | upper << 4).astype(np.float32) - np.float32(32)
    scale = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return _scaled(codes, _half(b[:, 208:]) * scale)


def _bf16(data: Bytes) -> Floats:
    return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_READERS: dict[int, Callable[[Bytes], Floats]] = {
    F32: lambda data: np.ascontiguousarray(data).view(np.float32).copy(),
    F16: _half,
    BF16: _bf16,
    Q4_0: _q4_0,
    Q4_1: _q4_1,
    Q5_0: _q5_0,
    Q5_1: _q5_1,
    Q8_0: _q8_0,
    Q2_K: _q2_k,
    Q3_K: _q3_k,
    Q4_K: _q4_k,
    Q5_K: _q5_k,
    Q6_K: _q6_k,
    IQ4_NL: _iq4_nl,
    IQ4_XS: _iq4_xs,
}


def dequantize(data: bytes | memoryview | Bytes, type: int, shape: tuple[int, ...]) -> Floats:
    """The numbers of a tensor of ggml type `type`, in numpy order (outputs × inputs).

    `shape` is in ne order, as GGUF gives it. Raises KeyError for a type that is not known here.
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    return _READERS[type](raw).reshape(tuple(reversed(shape)))
