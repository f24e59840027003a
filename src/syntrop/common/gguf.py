# SPDX-License-Identifier: Apache-2.0
"""GGUF headers, versions 2 and 3: metadata and the table of tensors, read from untrusted bytes.

`parse` looks at the header only; tensor data stays where it is (usually in a read-only mapping). Whatever
the bytes say, the answer is a `GGUF` whose every tensor lies inside the buffer, or a `GGUFError` that names
the field, the offset and what is wrong with it. Nothing is allocated that the size of the file does not
justify.

Layout: magic, version, tensor count, pair count, the key/value pairs, the tensor table, padding up to
`alignment`, tensor data. Integers are little-endian; strings are a 64-bit length and UTF-8.
"""

from __future__ import annotations

import re
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap
    from typing import Final

    Buffer = bytes | bytearray | memoryview | mmap
    Pack = Callable[[memoryview, int, str, int, int], tuple[object, int] | None]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
MAX_KEY_BYTES: Final = 65_535  # the format's own limit
MAX_NAME_BYTES: Final = 64  # the format's own limit
MAX_ARRAY: Final = 1 << 23  # items; the largest vocabularies in use have 2^18
MAX_TENSORS: Final = 1 << 20
MAX_PAIRS: Final = 1 << 16

# ggml type number -> (name, elements in a block, bytes in a block); numbers missing here were retired.
TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

# general.file_type -> what people call a file whose tensors are of that mixture.
_FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip

_BOOL, _STRING, _ARRAY = 7, 8, 9
# metadata value type -> (struct letter, bytes)
_SCALARS: Final[dict[int, tuple[str, int]]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    _BOOL: ("B", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}

_u64 = struct.Struct("<Q").unpack_from


class GGUFError(ValueError):
    """The bytes are not a GGUF file that can be trusted: `field` at byte `offset`, because of `reason`."""

    def __init__(self, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{field} at byte {offset}: {reason}")
        self.field = field
        self.offset = offset
        self.reason = reason


def _past_end(field: str, at: int, length: int, left: int) -> GGUFError:
    return GGUFError(field, at, f"a string of {length} bytes passes the end, {left} left")


class Skipped:
    """Stands for an array whose items were not read (`parse(…, arrays=False)`)."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<{self.count} items, not read>"


class Tensor:
    """One row of the tensor table.

    `type` is the ggml type number, `shape` is in ne order (fastest axis first), `offset` is absolute in the
    file and `nbytes` the length of the data there.
    """

    __slots__ = ("name", "nbytes", "offset", "shape", "type")

    def __init__(self, name: str, type: int, shape: tuple[int, ...], offset: int, nbytes: int) -> None:
        self.name = name
        self.type = type
        self.shape = shape
        self.offset = offset
        self.nbytes = nbytes

    @property
    def type_name(self) -> str:
        return TYPES[self.type][0]

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.type_name}, {self.shape}, {self.nbytes} bytes at {self.offset})"


class GGUF:
    """A parsed header. Metadata values are int, float, bool, str, a list of one of these, or `Skipped`. `places`
    tells at which byte a key's value or a tensor's row stands."""

    __slots__ = ("alignment", "data_offset", "metadata", "places", "tensors", "version")

    def __init__(
        self,
        version: int,
        alignment: int,
        metadata: dict[str, object],
        tensors: dict[str, Tensor],
        data_offset: int,
        places: dict[str, int] | None = None,
    ) -> None:
        self.version = version
        self.alignment = alignment
        self.metadata = metadata
        self.tensors = tensors
        self.data_offset = data_offset
        self.places = places or {}


class _Reader:
    """A position in the header; every read is checked against the end of the buffer."""

    __slots__ = ("arrays", "at", "buffer", "end", "pack")

    def __init__(self, buffer: memoryview, arrays: bool, pack: Pack | None) -> None:
        self.buffer = buffer
        self.arrays = arrays
        self.pack = pack
        self.at = 0
        self.end = len(buffer)

    def number(self, letter: str, size: int, field: str) -> int | float:
        at = self.at
        if at + size > self.end:
            raise GGUFError(field, at, f"truncated: {size} bytes wanted, {self.end - at} left")
        self.at = at + size
        value: int | float = struct.unpack_from("<" + letter, self.buffer, at)[0]
        return value

    def u32(self, field: str) -> int:
        return int(self.number("I", 4, field))

    def u64(self, field: str) -> int:
        return int(self.number("Q", 8, field))

    def count(self, field: str, item_bytes: int, limit: int) -> int:
        """A 64-bit count of items that each take at least `item_bytes` of what is left."""
        at = self.at
        count = self.u64(field)
        if count > limit:
            raise GGUFError(field, at, f"{count} is more than the limit of {limit}")
        if count * item_bytes > self.end - self.at:
            raise GGUFError(field, at, f"{count} items do not fit into the {self.end - self.at} bytes left")
        return count

    def string(self, field: str, limit: int | None = None) -> str:
        at = self.at
        length = self.u64(field)
        if limit is not None and length > limit:
            raise GGUFError(field, at, f"{length} bytes are more than the limit of {limit}")
        if length > self.end - self.at:
            raise _past_end(field, at, length, self.end - self.at)
        start = self.at
        self.at = start + length
        try:
            return str(self.buffer[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise GGUFError(field, start + error.start, "not UTF-8") from None

    def value(self, field: str) -> object:
        kind = self.u32(field)
        if kind == _STRING:
            return self.string(field)
        if kind == _ARRAY:
            return self.array(field)
        if kind not in _SCALARS:
            raise GGUFError(field, self.at - 4, f"unknown value type {kind}")
        at = self.at
        number = self.number(*_SCALARS[kind], field)
        if kind != _BOOL:
            return number
        if number > 1:
            raise GGUFError(field, at, f"{number} is no boolean")
        return bool(number)

    def array(self, field: str) -> object:
        at = self.at
        kind = self.u32(field)
        if kind == _STRING:
            count = self.count(field, 8, MAX_ARRAY)
            if self.pack and self.arrays and (packed := self.pack(self.buffer, self.at, "s", count, self.end)):
                self.at = packed[1]
                return packed[0]
            return self.strings(field, count)
        if kind not in _SCALARS:
            raise GGUFError(field, at, f"no array of value type {kind}")
        letter, size = _SCALARS[kind]
        count = self.count(field, size, MAX_ARRAY)
        at = self.at
        self.at += count * size
        if not self.arrays:
            return Skipped(count)
        if self.pack and kind != _BOOL and (packed := self.pack(self.buffer, at, letter, count, self.end)):
            return packed[0]
        items = list(struct.unpack_from(f"<{count}{letter}", self.buffer, at))
        if kind == _BOOL:
            if any(item > 1 for item in items):
                raise GGUFError(field, at, "an item is no boolean")
            return [bool(item) for item in items]
        return items

    def strings(self, field: str, count: int) -> object:
        # Vocabularies and merges pass through here, 10^5 items: hence no call per item but the three needed.
        buffer, at, end = self.buffer, self.at, self.end
        u64 = _u64
        items: list[str] = []
        append = items.append
        keep = self.arrays
        try:
            for _ in range(count):
                start = at + 8
                stop = start + u64(buffer, at)[0]
                if stop > end:
                    raise _past_end(field, at, stop - start, end - start)
                if keep:
                    append(str(buffer[start:stop], "utf-8"))
                at = stop
        except struct.error:
            raise GGUFError(field, at, f"truncated: 8 bytes wanted, {end - at} left") from None
        except UnicodeDecodeError as error:
            raise GGUFError(field, start + error.start, "not UTF-8") from None
        self.at = at
        return items if keep else Skipped(count)

    def tensor(self, index: int) -> tuple[str, int, tuple[int, ...], int, int, int]:
        """-> name, type, shape, offset in the data, bytes, where the row says so."""
        at = self.at
        name = self.string(f"tensor {index} name", MAX_NAME_BYTES)
        field = f"tensor {name}"
        dimensions = self.u32(field)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise GGUFError(field, self.at - 4, f"{dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.u64(field) for _ in range(dimensions))
        elements = 1
        for extent in shape:
            elements *= extent
            if not 0 < elements < 1 << 63:
                raise GGUFError(field, at, f"impossible shape {list(shape)}")
        kind = self.u32(field)
        if kind not in TYPES:
            raise GGUFError(field, self.at - 4, f"unknown tensor type {kind}")
        type_name, block, size = TYPES[kind]
        if shape[0] % block:
            raise GGUFError(field, at, f"rows of {shape[0]} are not whole {type_name} blocks of {block}")
        return name, kind, shape, self.u64(field), elements // block * size, at


def parse(buffer: Buffer, arrays: bool = True, pack: Pack | None = None) -> GGUF:
    """Read the header of the GGUF file that `buffer` holds whole.

    With `arrays=False` the items of metadata arrays (vocabulary, merges, scores) are passed over and only
    their number is kept. With `pack`, a reader that knows a denser form may take an array: it is given the
    file, where the items begin, their kind (a letter of `struct`, "s" for strings), their number and the end
    of the file, and gives the value and where it ends, or None. It must keep no view of the file. Raises
    GGUFError.
    """
    # A view: its slices cost less than a mapping's. Released: an exported mapping cannot be closed.
    with memoryview(buffer) as view:
        return _parse(_Reader(view, arrays, pack))


def _parse(reader: _Reader) -> GGUF:
    if bytes(reader.buffer[:4]) != MAGIC:
        raise GGUFError("magic", 0, "not a GGUF file")
    reader.at = 4
    version = reader.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        reason = "a big-endian file" if swapped else f"version {version} is not supported"
        raise GGUFError("version", 4, reason)
    tensor_count = reader.count("tensor count", 24, MAX_TENSORS)
    pair_count = reader.count("metadata count", 13, MAX_PAIRS)

    metadata: dict[str, object] = {}
    places: dict[str, int] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(pair_count):
        at = reader.at
        key = reader.string(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise GGUFError(key, at, "given twice")
        at = places[key] = reader.at
        value = metadata[key] = reader.value(key)
        if key == "general.alignment":
            if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
                raise GGUFError(key, at, f"{value!r} is no alignment")
            alignment = int(value)

    rows = [reader.tensor(index) for index in range(tensor_count)]
    data_offset = -(-reader.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, kind, shape, offset, nbytes, at in rows:
        if name in tensors:
            raise GGUFError(f"tensor {name}", at, "given twice")
        if offset % alignment:
            raise GGUFError(f"tensor {name}", at, f"data offset {offset} is not a multiple of {alignment}")
        if data_offset + offset + nbytes > reader.end:
            raise GGUFError(
                f"tensor {name}", at, f"{nbytes} bytes at {data_offset + offset} pass the end at {reader.end}"
            )
        tensors[name] = Tensor(name, kind, shape, data_offset + offset, nbytes)
        places[name] = at
    return GGUF(version, alignment, metadata, tensors, data_offset, places)


def describe(gguf: GGUF) -> dict[str, object]:
    """What a catalogue says about a file: JSON-ready, None where the file does not tell.

    `quantization` is the customary name of the mixture if the file gives one, else the type that most
    weights of the layers have; `tensor_types` counts tensors by type.
    """
    metadata = gguf.metadata

    def text(key: str) -> str | None:
        value = metadata.get(key)
        return value if isinstance(value, str) and value else None

    architecture = text("general.architecture")
    context = metadata.get(f"{architecture}.context_length")
    file_type = metadata.get("general.file_type")
    named = _FILE_TYPES.get(file_type) if isinstance(file_type, int) else None
    types: dict[str, int] = {}
    for tensor in gguf.tensors.values():
        types[tensor.type_name] = types.get(tensor.type_name, 0) + 1
    return {
        "architecture": architecture,
        "name": text("general.name"),
        "parameter_count": sum(tensor.elements for tensor in gguf.tensors.values()),
        "quantization": named or _dominant_type(gguf),
        "tensor_types": types,
        "context_length": context if isinstance(context, int) and not isinstance(context, bool) else None,
        "license": text("general.license"),
        "chat_template": "tokenizer.chat_template" in metadata,
        "chat_abilities": chat_abilities(text("tokenizer.chat_template") or ""),
    }


def chat_abilities(template: str) -> list[str]:
    """What a chat template seems to have a place for: tools, thinking."""
    found = []
    if re.search(r"\{[%{][^{}%]*\b(tools|functions)\b", template):
        found.append("tools")
    if re.search(r"\b(enable_thinking|reasoning_effort)\b|think>|_THINKING", template):
        found.append("thinking")
    return found


def _dominant_type(gguf: GGUF) -> str | None:
    """The type of most weights in matrices; embeddings count only where there is nothing else."""
    for layers_only in (True, False):
        weights: dict[str, int] = {}
        for tensor in gguf.tensors.values():
            if len(tensor.shape) > 1 and not (layers_only and not tensor.name.startswith("blk.")):
                weights[tensor.type_name] = weights.get(tensor.type_name, 0) + tensor.elements
        if weights:
            return max(weights, key=lambda name: weights[name])
    return None
