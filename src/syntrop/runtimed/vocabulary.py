# SPDX-License-Identifier: Apache-2.0
"""The strings of a vocabulary as they lie in the file: found by their text, read one at a time.

A vocabulary has up to 262,144 tokens and twice as many merges. As objects of the interpreter they would cost
half a second and a hundred bytes each; here they stay one piece of memory with a table beside it, made in C
(`kernels/tokenize.c`) within milliseconds.
"""

from __future__ import annotations

import os
import sys
from array import array

from syntrop.runtimed._kernels import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_PACKED_FROM = 1024  # items; shorter arrays are lists, as anywhere
_SALT = int.from_bytes(os.urandom(8), "little")


class Strings:
    """Strings packed as in GGUF: of each a 64-bit length, then its bytes. A sequence, for reading only."""

    __slots__ = ("_pointer", "_words", "count", "raw")

    def __init__(self, raw: bytes, count: int, separator: bytes = b"") -> None:
        """With a `separator`, a byte, each string is a pair of texts around it."""
        self.raw = raw
        self.count = count
        self._pointer: Any = ffi.from_buffer(raw)
        words = lib.sy_words_new(self._pointer, len(raw), count, ord(separator) if separator else 0, _SALT)
        if words == ffi.NULL:
            raise MemoryError("a vocabulary of that size cannot be held")
        self._words: Any = ffi.gc(words, lib.sy_words_free)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        return self.bytes_at(index).decode()

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(self.count))

    def bytes_at(self, index: int) -> bytes:
        """Raises IndexError."""
        if not -self.count <= index < self.count:
            raise IndexError(index)
        size = ffi.new("uint64_t *")  # its own: any thread may ask
        data = lib.sy_words_at(self._words, index % self.count, size)
        return bytes(ffi.buffer(data, size[0]))

    def find(self, text: str | bytes) -> int:
        """The index of a string, the last of equal ones, or -1."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        index: int = lib.sy_words_find(self._words, data, len(data))
        return index

    @property
    def longest(self) -> int:
        """Characters of the longest string."""
        characters: int = lib.sy_words_longest(self._words)
        return characters

    @property
    def longest_bytes(self) -> int:
        size: int = lib.sy_words_longest_bytes(self._words)
        return size

    @property
    def table(self) -> Any:
        """For C: a pointer that is good for as long as this object."""
        return self._words


class Ids:
    """Text -> index, as a mapping: what `Strings.find` gives."""

    __slots__ = ("_find",)

    def __init__(self, strings: Strings) -> None:
        self._find = strings.find

    def __getitem__(self, text: str) -> int:
        index = self._find(text)
        if index < 0:
            raise KeyError(text)
        return index

    def get(self, text: str) -> int | None:
        index = self._find(text)
        return None if index < 0 else index

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._find(text) >= 0


def pack_strings(items: Iterable[str | bytes], separator: bytes = b"") -> Strings:
    """Any strings in that form."""
    parts: list[bytes] = []
    for item in items:
        data = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
        parts += (len(data).to_bytes(8, "little"), data)
    return Strings(b"".join(parts), len(parts) // 2, separator)


class Packed:
    """The strings of a file that were not looked at yet, only measured: `Strings` in the making."""

    __slots__ = ("count", "raw")

    def __init__(self, raw: bytes, count: int) -> None:
        self.raw = raw
        self.count = count

    def __len__(self) -> int:
        return self.count


def pack(buffer: memoryview, at: int, kind: str, count: int, end: int) -> tuple[object, int] | None:
    """For `gguf.parse`: a long array as `Packed` or `array.array`, and where it ends.

    `kind` is a letter of `struct` or "s" for strings. None: to be read as usual, which also tells what is
    wrong with an array that is broken.
    """
    if count < _PACKED_FROM or sys.byteorder != "little":
        return None
    if kind == "s":
        stop: int = lib.sy_strings_end(ffi.from_buffer(buffer), end, at, count)
        return (Packed(bytes(buffer[at:stop]), count), stop) if stop else None
    numbers = array(kind)
    stop = at + count * numbers.itemsize
    numbers.frombytes(buffer[at:stop])
    return numbers, stop
