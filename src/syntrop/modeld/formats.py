# SPDX-License-Identifier: Apache-2.0
"""What a model file says of itself. Pure: takes bytes, which nobody has vouched for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mmap import mmap
    from typing import Any, TypeGuard

    Buffer = bytes | bytearray | memoryview | mmap

GGUF, SAFETENSORS = "gguf", "safetensors"
HEAD = 16  # bytes that `recognise` wants to see

_GGUF_MAGIC = b"GGUF"
_SAFETENSORS_HEADER_MAX = 100 << 20  # the format's own limit
_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}


class UnknownFormat(ValueError):
    """The file is of no format that we know, or its header is damaged. The text says what is wrong."""


def recognise(head: bytes, size: int) -> str:
    """The format of a file of `size` bytes that starts with these. Raises UnknownFormat."""
    if head[:4] == _GGUF_MAGIC:
        return GGUF
    # Eight bytes of length, then JSON.
    header = int.from_bytes(head[:8], "little")
    if len(head) > 8 and head[8:9] == b"{" and 2 <= header <= min(_SAFETENSORS_HEADER_MAX, size - 8):
        return SAFETENSORS
    raise UnknownFormat("neither a GGUF nor a safetensors file")


def describe(buffer: Buffer, kind: str) -> dict[str, Any]:
    """Metadata of a whole file, JSON-ready; None where it does not tell. Raises UnknownFormat."""
    if kind == GGUF:
        from syntrop.common import gguf

        try:
            return gguf.describe(gguf.parse(buffer, arrays=False))
        except gguf.GGUFError as error:
            raise UnknownFormat(f"a damaged GGUF file: {error}") from None
    return _describe_safetensors(buffer)


def _describe_safetensors(buffer: Buffer) -> dict[str, Any]:
    import json

    with memoryview(buffer) as view:
        length = int.from_bytes(view[:8], "little")
        if not 2 <= length <= min(_SAFETENSORS_HEADER_MAX, len(view) - 8):
            raise UnknownFormat(f"a damaged safetensors file: header length {length}")
        raw = bytes(view[8 : 8 + length])
        room = len(view) - 8 - length
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise UnknownFormat("a damaged safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise UnknownFormat("a damaged safetensors file: its header is not an object")
    notes = header.pop("__metadata__", {})
    parameters, types = 0, dict[str, int]()
    for name, tensor in header.items():
        elements, type_name = _check_tensor(name, tensor, room)
        parameters += elements
        types[type_name] = types.get(type_name, 0) + 1
    return {
        "architecture": None,  # it stands in the model's config.json, not here
        "name": None,
        "parameter_count": parameters,
        "quantization": max(types, key=lambda t: types[t]) if types else None,
        "tensor_types": types,
        "context_length": None,
        "license": None,
        "chat_template": False,
        "notes": notes if isinstance(notes, dict) else {},
    }


def _check_tensor(name: str, tensor: Any, room: int) -> tuple[int, str]:
    """Number of elements and type of one row of the header. Raises UnknownFormat."""
    fault = UnknownFormat(f"a damaged safetensors file: tensor {name[:80]!r}")
    if not isinstance(tensor, dict):
        raise fault
    shape, offsets, kind = tensor.get("shape"), tensor.get("data_offsets"), tensor.get("dtype")
    if type(kind) is not str or kind not in _BITS or not _is_counts(shape) or not _is_counts(offsets):
        raise fault
    if len(offsets) != 2:
        raise fault
    elements = 1
    for extent in shape:
        elements *= extent
        if elements > 1 << 62:
            raise fault
    start, end = offsets
    if not start <= end <= room or (end - start) * 8 != elements * _BITS[kind]:
        raise fault
    return elements, kind


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
