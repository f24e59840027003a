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
    """The file is damaged, or none of this format: `field` at byte `offset`, because of `reason`."""

    def __init__(self, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{field} at byte {offset}: {reason}")
        self.field = field
        self.offset = offset
        self.reason = reason


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
            raise SafetensorsError("header length", 0, f"truncated: {PREFIX} bytes wanted, {size} left")
        length = _length(bytes(view[:PREFIX]))
        if not _fits(length, size):
            raise SafetensorsError("header length", 0, f"{length} in a file of {size} bytes")
        raw = bytes(view[PREFIX : PREFIX + length])
    return _parse(raw, PREFIX + length, size)


def _length(head: bytes) -> int:
    return int.from_bytes(head[:PREFIX], "little")


def _fits(length: int, size: int) -> bool:
    return 2 <= length <= min(HEADER_MAX, size - PREFIX)


def _parse(raw: bytes, base: int, size: int) -> Header:
    import json

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise SafetensorsError(f"header {name[:80]!r}", _place(raw, name, last=True), "given twice")
            found[name] = value
        return found

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except SafetensorsError:
        raise
    except json.JSONDecodeError as error:
        at = PREFIX + len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        raise SafetensorsError("header", at, f"not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise SafetensorsError("header", PREFIX + error.start, "not JSON: no text") from None
    except (ValueError, RecursionError):  # numbers of thousands of digits, lists in lists in lists
        raise SafetensorsError("header", PREFIX, "not JSON that can be read") from None
    if not isinstance(header, dict):
        raise SafetensorsError("header", PREFIX, "not an object")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise SafetensorsError("__metadata__", _place(raw, "__metadata__"), "not an object of strings")
    found = [_tensor(name, row, raw, base, size) for name, row in header.items()]
    found.sort(key=lambda tensor: (tensor.start, tensor.end))
    at = base
    for tensor in found:
        if tensor.start != at:
            what = "overlaps another" if tensor.start < at else "follows a gap"
            raise SafetensorsError(f"tensor {tensor.name[:80]!r}", tensor.start, what)
        at = tensor.end
    if at != size:
        raise SafetensorsError("data", at, f"{size - at} bytes belong to no tensor")
    return Header({tensor.name: tensor for tensor in found}, notes)


def _place(raw: bytes, name: str, *, last: bool = False) -> int:
    """Where in the file the header has a name: its first place that looks so, or its last."""
    import json

    find = raw.rfind if last else raw.find
    for ascii_only in (True, False):
        at = find(json.dumps(name, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
        if at >= 0:
            return PREFIX + at
    return PREFIX  # spelled in some way of its own


def _tensor(name: str, row: Any, raw: bytes, base: int, size: int) -> Tensor:
    def fault(reason: str) -> SafetensorsError:
        return SafetensorsError(f"tensor {name[:80]!r}", _place(raw, name), reason)

    if not isinstance(row, dict):
        raise fault("not an object")
    shape, offsets, kind = row.get("shape"), row.get("data_offsets"), row.get("dtype")
    if type(kind) is not str or kind not in BITS:
        raise fault(f"dtype {str(kind)[:40]!r} is not known")
    if not _counts(shape):
        raise fault(f"shape {str(shape)[:80]} is no list of sizes")
    if not _counts(offsets) or len(offsets) != 2:
        raise fault(f"data_offsets {str(offsets)[:80]} are not two numbers")
    elements = 1
    for extent in shape:
        elements *= extent
        if elements > _ELEMENTS_MAX:
            raise fault(f"impossible shape {str(shape)[:80]}")
    start, end = offsets
    if not start <= end <= size - base:
        raise fault(f"data_offsets {offsets} do not lie in the {size - base} bytes of data")
    if (end - start) * 8 != elements * BITS[kind]:
        raise fault(f"{end - start} bytes where {elements} numbers of {kind} are expected")
    return Tensor(name, kind, tuple(shape), elements, base + start, base + end)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
