# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file. Pure: takes bytes, which nobody has vouched for.

    8 bytes, little endian    length N of the header
    N bytes                   a JSON object: tensor name -> {"dtype", "shape", "data_offsets": [from, to]}, and
                              perhaps "__metadata__", an object of strings
    the rest                  the tensors, one after another, without a gap, to the end of the file

What does not fit that description is refused: a gap could hide content from whoever looks by name, and two
tensors in one place are nobody's intent.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mmap import mmap
    from typing import Any, TypeGuard

    Buffer = bytes | bytearray | memoryview | mmap

HEADER_MAX = 100 << 20  # the format's own limit
PREFIX = 8
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
_ELEMENTS_MAX = 1 << 62


class SafetensorsError(ValueError):
    """The file is damaged, or none of this format. The text says what is wrong."""


class Tensor:
    """Where a tensor lies; `start` and `end` count from the start of the file."""

    __slots__ = ("elements", "end", "name", "shape", "start", "type_name")

    def __init__(
        self, name: str, type_name: str, shape: tuple[int, ...], elements: int, start: int, end: int
    ) -> None:
        self.name = name
        self.type_name = type_name
        self.shape = shape
        self.elements = elements
        self.start = start
        self.end = end


class Header:
    """The tensors by name, in the order of the file, and its free notes."""

    __slots__ = ("notes", "tensors")

    def __init__(self, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
        self.tensors = tensors
        self.notes = notes


def looks_like(head: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that starts with these may be one."""
    return len(head) > PREFIX and head[PREFIX : PREFIX + 1] == b"{" and _fits(_length(head), size)


def parse(buffer: Buffer) -> Header:
    """The header of a whole file. Raises SafetensorsError."""
    with memoryview(buffer) as view:
        size = len(view)
        if size < PREFIX:
            raise SafetensorsError(f"{size} bytes are no file")
        length = _length(bytes(view[:PREFIX]))
        if not _fits(length, size):
            raise SafetensorsError(f"header length {length} in a file of {size} bytes")
        raw = bytes(view[PREFIX : PREFIX + length])
    return _parse(raw, PREFIX + length, size)


def _length(head: bytes) -> int:
    return int.from_bytes(head[:PREFIX], "little")


def _fits(length: int, size: int) -> bool:
    return 2 <= length <= min(HEADER_MAX, size - PREFIX)


def _parse(raw: bytes, base: int, size: int) -> Header:
    import json

    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except SafetensorsError:
        raise
    except (ValueError, RecursionError):
        raise SafetensorsError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise SafetensorsError("its header is not an object")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise SafetensorsError("its __metadata__ is not an object of strings")
    found = [_tensor(name, row, base, size) for name, row in header.items()]
    found.sort(key=lambda tensor: (tensor.start, tensor.end))
    at = base
    for tensor in found:
        if tensor.start != at:
            what = "overlaps another" if tensor.start < at else "follows a gap"
            raise SafetensorsError(f"tensor {tensor.name[:80]!r} {what}")
        at = tensor.end
    if at != size:
        raise SafetensorsError(f"{size - at} bytes belong to no tensor")
    return Header({tensor.name: tensor for tensor in found}, notes)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise SafetensorsError("its header names something twice")
    return found


def _tensor(name: str, row: Any, base: int, size: int) -> Tensor:
    fault = SafetensorsError(f"tensor {name[:80]!r} does not fit")
    if not isinstance(row, dict):
        raise fault
    shape, offsets, kind = row.get("shape"), row.get("data_offsets"), row.get("dtype")
    if type(kind) is not str or kind not in BITS or not _counts(shape) or not _counts(offsets):
        raise fault
    if len(offsets) != 2:
        raise fault
    elements = 1
    for extent in shape:
        elements *= extent
        if elements > _ELEMENTS_MAX:
            raise fault
    start, end = offsets
    if not start <= end <= size - base or (end - start) * 8 != elements * BITS[kind]:
        raise fault
    return Tensor(name, kind, tuple(shape), elements, base + start, base + end)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
