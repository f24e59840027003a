# SPDX-License-Identifier: Apache-2.0
"""Which rows of which tensor go where: checked for presence, type, shape and extent before C touches a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from syntrop.common.gguf import TYPES
from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from syntrop.common.gguf import Tensor
    from syntrop.runtimed.model.config import Config

lib = _kernels.lib

VECTOR_TYPES = (lib.SY_F32, lib.SY_F16, lib.SY_BF16)
MATRICES: dict[str, int] = {
    "attn_q": lib.SY_ATTN_Q,
    "attn_k": lib.SY_ATTN_K,
    "attn_v": lib.SY_ATTN_V,
    "attn_o": lib.SY_ATTN_O,
    "ffn_gate": lib.SY_FFN_GATE,
    "ffn_up": lib.SY_FFN_UP,
    "ffn_down": lib.SY_FFN_DOWN,
    "embed": lib.SY_EMBED,
    "output": lib.SY_OUTPUT,
}
VECTORS: dict[str, int] = {
    "attn_norm": lib.SY_ATTN_NORM,
    "ffn_norm": lib.SY_FFN_NORM,
    "attn_post_norm": lib.SY_ATTN_POST_NORM,
    "ffn_post_norm": lib.SY_FFN_POST_NORM,
    "q_norm": lib.SY_Q_NORM,
    "k_norm": lib.SY_K_NORM,
    "q_bias": lib.SY_Q_BIAS,
    "k_bias": lib.SY_K_BIAS,
    "v_bias": lib.SY_V_BIAS,
    "output_norm": lib.SY_OUTPUT_NORM,
}


class Place(NamedTuple):
    """Rows [row, row + shape[-1]) of a tensor fill one slot of the kernels. `shape` is in ne order."""

    tensor: Tensor
    layer: int
    slot: str
    shape: tuple[int, ...]
    row: int

    @property
    def offset(self) -> int:
        """Of the first byte, from the tensor's."""
        return self.row * row_bytes(self.tensor) if len(self.shape) == 2 else self.row * row_bytes(self.tensor, 1)

    @property
    def packed_bytes(self) -> int:
        """What the kernels need room for; 0: they cannot have it."""
        if len(self.shape) == 1:
            return self.shape[0] * 4
        packed: int = lib.sy_packed_bytes(self.tensor.type, self.shape[1], self.shape[0])
        return packed


def row_bytes(tensor: Tensor, columns: int | None = None) -> int:
    """Bytes of a row of the tensor, or of that many columns of it."""
    _, block, size = TYPES[tensor.type]
    return (tensor.shape[0] if columns is None else columns) // block * size


def shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Slot -> its shape in ne order."""
    q, kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    return {
        "attn_q": (c.n_embd, q),
        "attn_k": (c.n_embd, kv),
        "attn_v": (c.n_embd, kv),
        "attn_o": (q, c.n_embd),
        "ffn_gate": (c.n_embd, c.n_ff),
        "ffn_up": (c.n_embd, c.n_ff),
        "ffn_down": (c.n_ff, c.n_embd),
        "embed": (c.n_embd, c.n_vocab),
        "output": (c.n_embd, c.n_vocab),
        "q_norm": (c.head_dim,),
        "k_norm": (c.head_dim,),
        "q_bias": (q,),
        "k_bias": (kv,),
        "v_bias": (kv,),
        **dict.fromkeys(("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm", "output_norm"), (c.n_embd,)),
    }


def names(c: Config) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """(tensor, layer, slots) of all tensors that a model of this configuration has, or may have (`output`)."""
    yield "token_embd.weight", 0, ("embed",)
    yield "output_norm.weight", 0, ("output_norm",)
    for layer in range(c.n_layer):
        for name, slots in c.tensors.items():
            yield f"blk.{layer}.{name}", layer, slots
    yield "output.weight", 0, ("output",)


def plan(c: Config, tensors: Mapping[str, Tensor]) -> list[Place]:
    """Where everything of a decoder goes. Raises UnsupportedModel and BrokenModel, naming the tensor."""
    wanted = {name: (layer, slots) for name, layer, slots in names(c)}
    # Without an output of its own, the embedding serves.
    return places(c.architecture, wanted, shapes(c), tensors, ("output.weight",), c.consumed)


def places(
    architecture: str,
    wanted: Mapping[str, tuple[int, tuple[str, ...]]],
    shape_of: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Tensor],
    optional: Collection[str] = (),
    known: Collection[str] = (),
) -> list[Place]:
    """Where the rows of each `wanted` tensor go: (layer, slots) by name, and the shape of each slot. `known` are
    those tensors that are no weights. Raises UnsupportedModel and BrokenModel, naming the tensor."""
    # A tensor that is not understood would change the result: refuse rather than leave it out.
    for name in tensors:
        if name not in wanted and name not in known:
            raise UnsupportedModel(name, f"a tensor that {architecture} is not known to have")
    found = []
    for name, (layer, slots) in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            if name in optional:
                continue
            raise BrokenModel(name, "missing")
        parts = [shape_of[slot] for slot in slots]
        _check(tensor, (*parts[0][:-1], sum(part[-1] for part in parts)))
        row = 0
        for slot, part in zip(slots, parts, strict=True):
            found.append(Place(tensor, layer, slot, part, row))
            row += part[-1]
            if not found[-1].packed_bytes:
                raise UnsupportedModel(name, f"ggml type {tensor.type} is not supported here")
    return found


def _check(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise BrokenModel(tensor.name, f"shape {list(tensor.shape)} where {list(shape)} is expected")
    if tensor.type not in TYPES or (len(shape) == 1 and tensor.type not in VECTOR_TYPES):
        raise UnsupportedModel(tensor.name, f"ggml type {tensor.type} is not supported here")
    name, block, size = TYPES[tensor.type]
    if shape[0] % block:
        raise BrokenModel(tensor.name, f"rows of {shape[0]} are not whole {name} blocks of {block}")
    nbytes = size * shape[-1] * (shape[0] // block if len(shape) == 2 else 1)
    if tensor.nbytes != nbytes:
        raise BrokenModel(tensor.name, f"{tensor.nbytes} bytes where {nbytes} are expected")


def check_extent(tensor: Tensor, size: int) -> None:
    """The tensor's data lie in a file of `size` bytes, or BrokenModel."""
    if tensor.offset < 0 or tensor.offset + tensor.nbytes > size:
        raise BrokenModel(tensor.name, f"{tensor.nbytes} bytes at {tensor.offset} do not lie in a file of {size}")
