# SPDX-License-Identifier: Apache-2.0
"""What a model file says of itself. Pure: takes bytes, which nobody has vouched for."""

from __future__ import annotations

from syntrop.common import safetensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.safetensors import Buffer

GGUF, SAFETENSORS = "gguf", "safetensors"
HEAD = 16  # bytes that `recognise` wants to see

_GGUF_MAGIC = b"GGUF"


class UnknownFormat(ValueError):
    """The file is of no format that we know, or its header is damaged. The text says what is wrong."""


def recognise(head: bytes, size: int) -> str:
    """The format of a file of `size` bytes that starts with these. Raises UnknownFormat."""
    if head[:4] == _GGUF_MAGIC:
        return GGUF
    if safetensors.looks_like(head, size):
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
    try:
        header = safetensors.parse(buffer)
    except safetensors.SafetensorsError as error:
        raise UnknownFormat(f"a damaged safetensors file: {error}") from None
    types = dict[str, int]()
    weights = dict[str, int]()
    for tensor in header.tensors.values():
        types[tensor.type_name] = types.get(tensor.type_name, 0) + 1
        weights[tensor.type_name] = weights.get(tensor.type_name, 0) + tensor.elements
    return {
        "architecture": None,  # it stands in the model's config.json, not here
        "name": None,
        "parameter_count": sum(weights.values()),
        "quantization": max(weights, key=lambda t: weights[t]) if weights else None,
        "tensor_types": types,
        "context_length": None,
        "license": None,
        "chat_template": False,
        "chat_abilities": [],
        "notes": header.notes,
    }
