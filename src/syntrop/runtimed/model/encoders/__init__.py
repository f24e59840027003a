# SPDX-License-Identifier: Apache-2.0
"""One module an encoder's architecture, named as GGUF's `general.architecture`, with `read(keys) -> Encoder`.

A module says what the general encoder (`kernels/encode.c`) does for it: sizes, norms, activation, RoPE, windows,
and which tensor fills which slot. What a file has beyond that is refused, not left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from syntrop.runtimed.model.config import MAX_HEAD
from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel
from syntrop.runtimed.model.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from syntrop.common.gguf import GGUF
    from syntrop.runtimed.model.keys import Buffer
    from syntrop.runtimed.model.rope import Rope

    Slots = Mapping[str, tuple[str, ...]]

NAMES = ("bert", "modern-bert", "nomic-bert")
MAX_CONTEXT = 1 << 20
# Of 0, none, the vectors of the tokens come: their mean is what such models are used with.
POOLINGS = {0: "mean", 1: "mean", 2: "cls", 3: "last"}

# Tensor -> the slots that its rows fill, in order; of the whole model, and of a layer.
WHOLE: Slots = {
    "token_embd.weight": ("words",),
    "token_embd_norm.weight": ("embed_norm",),
    "token_embd_norm.bias": ("embed_norm_bias",),
}
MATRICES: Slots = {
    f"{name}.weight": (name,) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
}
POST_NORMS: Slots = {
    "attn_output_norm.weight": ("attn_norm",),
    "attn_output_norm.bias": ("attn_norm_bias",),
    "layer_output_norm.weight": ("ffn_norm",),
    "layer_output_norm.bias": ("ffn_norm_bias",),
}


class Layer(NamedTuple):
    """In what a layer differs from its fellows."""

    span: int = 0  # tokens to either side that a token sees; 0: all
    rope: int = 0  # index of its frequencies
    bare: bool = False  # no norm before its attention


class Encoder(NamedTuple):
    """An encoder. Sizes in elements, the context in tokens; `pooling` is what the model was made for."""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    pooling: str
    whole: Slots
    tensors: Slots  # of each layer
    n_positions: int = 0  # rows of the table of positions; 0: there is none
    n_types: int = 0  # rows of the table of token types, of which the first is added
    layers: tuple[Layer, ...] = ()  # none: all are alike
    ropes: tuple[Rope, ...] = ()
    activation: str = "gelu"  # by the error function, or silu
    pre_norm: bool = False  # norms before attention and the wide half, and one at the end; else behind each sum
    consumed: frozenset[str] = frozenset()  # tensors that went into the above

    @property
    def gated(self) -> bool:
        """Whether the activation's result is multiplied by a second product."""
        return any("ffn_gate" in slots for slots in self.tensors.values())


def read_config(header: GGUF, buffer: Buffer, context: int = 0) -> Encoder:
    """The configuration of a GGUF file, for texts of up to `context` tokens (0: what it was trained for).

    Raises UnsupportedModel or BrokenModel, naming key or tensor.
    """
    from importlib import import_module

    keys = Keys(header, buffer, context)
    if keys.architecture not in NAMES:
        raise UnsupportedModel("general.architecture", f"{keys.architecture!r} is no encoder that is known")
    read: Callable[[Keys], Encoder] = import_module(f"{__name__}.{keys.architecture.replace('-', '_')}").read
    config = read(keys)
    keys.finish()
    return config._replace(consumed=frozenset(keys.vectors))


def sizes(keys: Keys) -> dict[str, Any]:
    """The fields that all architectures have, under their names in Encoder."""
    if keys.flag("attention.causal", False):
        raise UnsupportedModel(keys.full("attention.causal"), "an encoder sees its whole text")
    n_embd = keys.integer("embedding_length", 1 << 16)
    n_head = keys.integer("attention.head_count", 1 << 12)
    if n_embd % n_head:
        raise BrokenModel(keys.full("attention.head_count"), f"{n_embd} is not a multiple of {n_head}")
    head = n_embd // n_head
    if head > MAX_HEAD:
        raise UnsupportedModel(keys.full("attention.head_count"), f"heads of {head}, at most {MAX_HEAD}")
    for name, same in (("head_count_kv", n_head), ("key_length", head), ("value_length", head)):
        if keys.integer(f"attention.{name}", 1 << 12, same) != same:
            raise UnsupportedModel(keys.full(f"attention.{name}"), f"differs from {same}")
    pooling = keys.integer("pooling_type", 1 << 31, 1, least=0)
    if pooling not in POOLINGS:
        raise UnsupportedModel(keys.full("pooling_type"), f"{pooling} is none of mean, cls and last")
    context = keys.integer("context_length", 1 << 31, MAX_CONTEXT)
    return {
        "architecture": keys.architecture,
        "n_layer": keys.integer("block_count", 1 << 10),
        "n_embd": n_embd,
        "n_ff": keys.integer("feed_forward_length", 1 << 20),
        "n_head": n_head,
        "n_vocab": rows(keys, "token_embd.weight", 1 << 24),
        "n_ctx_train": min(context, MAX_CONTEXT),
        "eps": keys.number("attention.layer_norm_epsilon", least=0.0),
        "pooling": POOLINGS[pooling],
    }


def rows(keys: Keys, name: str, most: int) -> int:
    """Of a matrix that has to be there. Raises UnsupportedModel and BrokenModel."""
    tensor = keys.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise BrokenModel(name, "missing" if tensor is None else "not a matrix")
    if tensor.shape[1] > most:
        raise UnsupportedModel(name, f"{tensor.shape[1]} rows, at most {most}")
    return tensor.shape[1]


def types(keys: Keys) -> dict[str, Any]:
    """The table of token types, where there is one: its rows, and `whole` with it."""
    if "token_types.weight" not in keys.tensors:
        return {"whole": WHOLE}
    return {
        "whole": {**WHOLE, "token_types.weight": ("types",)},
        "n_types": rows(keys, "token_types.weight", 1 << 24),
    }


def rotated(keys: Keys, size: dict[str, Any]) -> int:
    """Columns of a head, all of which rotate. Raises UnsupportedModel."""
    head: int = size["n_embd"] // size["n_head"]
    if head % 2:
        raise UnsupportedModel(keys.full("attention.head_count"), f"heads of {head}, not even")
    if keys.integer("rope.dimension_count", MAX_HEAD, head) != head:
        raise UnsupportedModel(keys.full("rope.dimension_count"), f"differs from {head}")
    if not keys.has("context_length"):
        raise BrokenModel(keys.full("context_length"), "missing")
    return head
