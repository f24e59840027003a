# SPDX-License-Identifier: Apache-2.0
"""The metadata of one architecture, checked as it is read; it remembers what was read, since a key that nobody
asked for may mean a computation that nobody does."""

from __future__ import annotations

import struct
from math import isfinite
from typing import TYPE_CHECKING

from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel

if TYPE_CHECKING:
    from mmap import mmap

    from syntrop.common.gguf import GGUF

    Buffer = bytes | bytearray | memoryview | mmap

# Keys that describe a model, or its training, and change nothing in what is computed. Ollama's converter notes
# whether vectors are to be normalised; ours of texts are.
_HARMLESS = frozenset(
    ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length",
     "pooling_type", "normalize_embeddings")
)  # fmt: skip
_F32 = 0


def real(key: str, value: object, *, least: float | None = None) -> float:
    """The value of a key as a positive number, or as one that is at least `least`."""
    if value is None:
        raise BrokenModel(key, "missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedModel(key, "not a number")
    if not isfinite(value) or (value <= 0 if least is None else value < least):
        raise BrokenModel(key, f"{value} is not a {'positive' if least is None else 'possible'} number")
    return float(value)


class Keys:
    """`header.metadata` under the prefix of the architecture, and its tensors. `context` is how many tokens the
    sequences to come will have at most (0: as many as the model was trained for)."""

    def __init__(self, header: GGUF, buffer: Buffer, context: int = 0) -> None:
        self.architecture = str(header.metadata.get("general.architecture"))
        self.tensors = header.tensors
        self.context = context
        self.vectors: set[str] = set()  # tensors that were read
        self._metadata = header.metadata
        self._buffer = buffer
        self._read: set[str] = set()

    def full(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.full(name) in self._metadata

    def _get(self, name: str) -> tuple[str, object]:
        key = self.full(name)
        self._read.add(key)
        return key, self._metadata.get(key)

    def integer(self, name: str, most: int, default: int | None = None, *, least: int = 1) -> int:
        key, value = self._get(name)
        if value is None:
            value = default
        if value is None:
            raise BrokenModel(key, "missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedModel(key, "not a single integer")
        if not least <= value <= most:
            raise BrokenModel(key, f"{value} is not between {least} and {most}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float | None = None) -> float:
        """A positive number, or one that is at least `least`."""
        key, value = self._get(name)
        if value is None:
            value = default
        return real(key, value, least=least)

    def flag(self, name: str, default: bool) -> bool:
        key, value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UnsupportedModel(key, "not a boolean")
        return value

    def text(self, name: str, default: str) -> str:
        key, value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise UnsupportedModel(key, "not a string")
        return value

    def flags(self, name: str) -> list[bool] | None:
        """An array of booleans (or of 0 and 1); None where there is no array."""
        _, value = self._get(name)
        if not isinstance(value, list) or not all(item in (0, 1) for item in value):
            return None
        return [bool(item) for item in value]

    def vector(self, name: str, n: int) -> tuple[float, ...] | None:
        """The n positive numbers of an F32 tensor, or None when the file has no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        self.vectors.add(name)
        if tensor.shape != (n,):
            raise BrokenModel(name, f"shape {list(tensor.shape)} where {[n]} is expected")
        if tensor.type != _F32:
            raise UnsupportedModel(name, f"ggml type {tensor.type} is not supported here")
        with memoryview(self._buffer) as view:
            if tensor.offset < 0 or tensor.offset + n * 4 > len(view):
                raise BrokenModel(name, f"{n * 4} bytes at {tensor.offset} do not lie in a file of {len(view)}")
            values = struct.unpack_from(f"<{n}f", view, tensor.offset)
        for value in values:
            if not isfinite(value) or value <= 0:
                raise BrokenModel(name, f"{value} is not a positive number")
        return values

    def finish(self) -> None:
        """Refuse what was not read, unless it is harmless or says that something is off."""
        prefix = self.architecture + "."
        for key, value in self._metadata.items():
            if key.startswith(prefix) and key not in self._read and key[len(prefix) :] not in _HARMLESS and value:
                raise UnsupportedModel(key, f"{str(value)[:80]!r} is not supported")
