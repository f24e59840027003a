# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters (Hu et al. 2021) out of GGUF files: beside a weight W of the model, alpha / rank · B·A.

The file names the pair of tensor `x` as `x.lora_a` (rank rows of the input's width) and `x.lora_b` (as many rows
as x, of rank columns). The base weights stay as they are: what an adapter adds is computed for those sequences of
a batch that go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from syntrop.common.gguf import TYPES
from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, NoMemory, UnsupportedModel
from syntrop.runtimed.model.keys import real
from syntrop.runtimed.model.plan import MATRICES, check_extent, names, row_bytes, shapes

if TYPE_CHECKING:
    from syntrop.common.gguf import GGUF, Tensor
    from syntrop.runtimed.model.config import Config
    from syntrop.runtimed.model.keys import Buffer

ffi = _kernels.ffi
lib = _kernels.lib

_A, _B = ".lora_a", ".lora_b"


class Adapter:
    """A loaded adapter of one model. `tensors` are the names of the weights that it changes."""

    def __init__(self, handle: Any, tensors: tuple[str, ...]) -> None:
        self._handle = handle
        self.tensors = tensors
        self.memory_bytes: int = lib.sy_adapter_bytes(handle)

    def live(self) -> Any:
        """What the kernels call it. Raises BadRequest once it is closed."""
        if self._handle is None:
            raise BadRequest("adapter", "detached")
        return self._handle

    def close(self) -> None:
        """Its model's to call, under its lock."""
        handle, self._handle = self._handle, None
        if handle is not None:
            ffi.release(handle)


def load(model: Any, config: Config, header: GGUF, buffer: Buffer) -> Adapter:
    """The adapter in a GGUF file, for the kernels' `model`; the buffer is not used afterwards.

    Raises UnsupportedModel, BrokenModel (naming key or tensor) and NoMemory.
    """
    alpha = _alpha(config, header)
    pairs = _pairs(header)
    known = {name: (layer, slots) for name, layer, slots in names(config)}
    shape_of = shapes(config)
    handle = lib.sy_adapter_new(model)
    if handle == ffi.NULL:
        raise NoMemory("adapter", "no memory")
    handle = ffi.gc(handle, lib.sy_adapter_free)
    with ffi.from_buffer(buffer) as data:
        for name, (a, b) in pairs.items():
            layer, slots = known.get(name, (0, ()))
            if not slots:
                raise BrokenModel(name, f"{config.architecture} of this size has no such tensor")
            if any(slot not in MATRICES or slot == "embed" for slot in slots):
                raise UnsupportedModel(name, "adapters of this tensor are not supported")
            rank = _rank(a, b, shape_of[slots[0]][0], sum(shape_of[slot][1] for slot in slots))
            row = 0
            for tensor in (a, b):
                check_extent(tensor, len(data))
            for slot in slots:
                status = lib.sy_adapter_pair(
                    handle,
                    layer,
                    MATRICES[slot],
                    rank,
                    alpha / rank if alpha else 1.0,
                    a.type,
                    data + a.offset,
                    b.type,
                    data + b.offset + row * row_bytes(b),
                )
                row += shape_of[slot][1]
                if status == lib.SY_ERR_MEMORY:
                    raise NoMemory("adapter", f"no memory for {name}")
                if status:
                    raise UnsupportedModel(name, f"ggml types {a.type} and {b.type} are not supported here")
    return Adapter(handle, tuple(pairs))


def _alpha(config: Config, header: GGUF) -> float:
    for key, wanted in (
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", config.architecture),
    ):
        if header.metadata.get(key) != wanted:
            raise UnsupportedModel(key, f"{header.metadata.get(key)!r} where {wanted!r} is expected")
    for key, value in header.metadata.items():
        if key.startswith("adapter.") and key not in ("adapter.type", "adapter.lora.alpha") and value:
            raise UnsupportedModel(key, f"{str(value)[:80]!r} is not supported")
    return real("adapter.lora.alpha", header.metadata.get("adapter.lora.alpha"), least=0.0)


def _pairs(header: GGUF) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, tensor in header.tensors.items():
        base = name.removesuffix(_A).removesuffix(_B)
        if base == name:
            raise UnsupportedModel(name, f"neither {_A} nor {_B}")
        other = header.tensors.get(base + (_B if name.endswith(_A) else _A))
        if other is None:
            raise BrokenModel(name, f"the other half of {base} is missing")
        if name.endswith(_A):
            found[base] = (tensor, other)
    if not found:
        raise BrokenModel("adapter", "no tensors")
    return found


def _rank(a: Tensor, b: Tensor, columns: int, rows: int) -> int:
    """Rank of the pair, after a check of its shapes."""
    for tensor in (a, b):
        if len(tensor.shape) != 2:
            raise BrokenModel(tensor.name, f"{len(tensor.shape)} dimensions where 2 are expected")
        if tensor.type not in TYPES or not lib.sy_packed_bytes(tensor.type, tensor.shape[1], tensor.shape[0]):
            raise UnsupportedModel(tensor.name, f"ggml type {tensor.type} is not supported here")
    rank = a.shape[1]
    if not 1 <= rank <= lib.SY_MAX_RANK:
        raise UnsupportedModel(a.name, f"rank {rank}, more than {lib.SY_MAX_RANK}")
    for tensor, shape in ((a, (columns, rank)), (b, (rank, rows))):
        if tensor.shape != shape:
            raise BrokenModel(tensor.name, f"shape {list(tensor.shape)} where {list(shape)} is expected")
    return rank
