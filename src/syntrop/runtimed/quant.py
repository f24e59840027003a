# SPDX-License-Identifier: Apache-2.0
"""Plain numpy readings of the weight types: the reference that the C kernels are tested against.

A quantised row is a run of blocks of 32 numbers. Q8_0: scale (f16), 32 signed bytes. Q4_0: scale, 16 bytes
whose low nibbles are numbers 0..15 and whose high nibbles are 16..31, each minus 8. Q4_1: scale, minimum
(f16), 16 such bytes, unsigned: number = code × scale + minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
BLOCK = 32


def _half(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> Floats:
    return np.concatenate([data & 15, data >> 4], axis=1).astype(np.float32)


def _q8_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 34)
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * _half(blocks[:, :2])


def _q4_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 18)
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _half(blocks[:, :2])


def _q4_1(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 20)
    return _nibbles(blocks[:, 4:]) * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _bf16(data: Bytes) -> Floats:
    return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_READERS: dict[int, Callable[[Bytes], Floats]] = {
    F32: lambda data: np.ascontiguousarray(data).view(np.float32).copy(),
    F16: _half,
    BF16: _bf16,
    Q4_0: _q4_0,
    Q4_1: _q4_1,
    Q8_0: _q8_0,
}


def dequantize(data: bytes | memoryview | Bytes, type: int, shape: tuple[int, ...]) -> Floats:
    """The numbers of a tensor of ggml type `type`, in numpy order (outputs × inputs).

    `shape` is in ne order, as GGUF gives it. Raises KeyError for a type that is not known here.
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    return _READERS[type](raw).reshape(tuple(reversed(shape)))
