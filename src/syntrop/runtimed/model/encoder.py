# SPDX-License-Identifier: Apache-2.0
"""Encoders of the BERT family on the C kernels: texts in, unit vectors out, a batch in one call.

What architectures differ in is an Encoder (model/encoders). Tensors and metadata have the names that GGUF files
give them; `checkpoint` gives those of safetensors the same.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Any

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.encoders import Encoder, read_config
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, NoMemory
from syntrop.runtimed.model.plan import Place, check_extent, places

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf

    from syntrop.common.gguf import GGUF, Tensor
    from syntrop.runtimed.model.keys import Buffer

ffi = _kernels.ffi
lib = _kernels.lib

# Tokens that several texts of one batch have: what decoding streams beside it may have to wait for.
BATCH: int = lib.SY_ENC_TEXTS
POOLINGS: dict[str, int] = {"mean": lib.SY_POOL_MEAN, "cls": lib.SY_POOL_CLS, "last": lib.SY_POOL_LAST}
ACTIVATIONS: dict[str, int] = {"gelu": lib.SY_ENC_GELU, "silu": lib.SY_ENC_SILU}
MATRICES: dict[str, int] = {
    "attn_q": lib.SY_ENC_Q,
    "attn_k": lib.SY_ENC_K,
    "attn_v": lib.SY_ENC_V,
    "attn_output": lib.SY_ENC_O,
    "ffn_up": lib.SY_ENC_UP,
    "ffn_down": lib.SY_ENC_DOWN,
    "ffn_gate": lib.SY_ENC_GATE,
    "words": lib.SY_ENC_WORDS,
    "positions": lib.SY_ENC_POSITIONS,
    "types": lib.SY_ENC_TYPES,
}
VECTORS: dict[str, int] = {
    **{f"{name}_bias": slot for name, slot in MATRICES.items() if slot <= lib.SY_ENC_GATE},
    "attn_norm": lib.SY_ENC_ATTN_NORM,
    "attn_norm_bias": lib.SY_ENC_ATTN_NORM_BIAS,
    "ffn_norm": lib.SY_ENC_FFN_NORM,
    "ffn_norm_bias": lib.SY_ENC_FFN_NORM_BIAS,
    "embed_norm": lib.SY_ENC_EMBED_NORM,
    "embed_norm_bias": lib.SY_ENC_EMBED_NORM_BIAS,
    "output_norm": lib.SY_ENC_OUTPUT_NORM,
    "output_norm_bias": lib.SY_ENC_OUTPUT_NORM_BIAS,
}
_CONFIG_FIELDS = ("n_layer", "n_embd", "n_ff", "n_head", "n_vocab", "n_positions", "n_types", "eps")


class EncoderModel:
    """A loaded encoder. Every method may be called from any thread; batches run one at a time."""

    def __init__(self, handle: Any, config: Encoder, context: int, level: str, parameters: int) -> None:
        self._handle = handle
        self._lock = allocate_lock()
        self.config = config
        self.context = context
        self.level = level
        self.pooling = config.pooling
        self.dimensions = config.n_embd
        self.batch_tokens = BATCH  # of several texts; a longer one is alone
        self.parameter_count = parameters
        self.memory_bytes: int = lib.sy_encoder_bytes(handle)

    @classmethod
    def load(
        cls,
        gguf: GGUF,
        buffer: Buffer,
        *,
        threads: int,
        level: str = "auto",
        context: int | None = None,
    ) -> EncoderModel:
        """Check and repack the weights that `gguf` describes in `buffer`; the buffer is not used afterwards.

        `context` bounds texts, in tokens (default and maximum: what the model was trained for, or its table of
        positions). Raises UnsupportedModel, BrokenModel, BadRequest, NoMemory.
        """
        from syntrop.runtimed.model.llama import LEVELS, _choose_level

        config = read_config(gguf, buffer, context or 0)
        level = _choose_level(level)
        if context is None:
            context = config.n_ctx_train
        if not 1 <= context <= config.n_ctx_train:
            raise BadRequest("context", f"{context} is not between 1 and {config.n_ctx_train}")
        plan = _plan(config, gguf.tensors)
        weights = sum((one.packed_bytes + 63) // 64 * 64 for one in plan if one.slot in MATRICES)
        c = ffi.new("sy_encoder_config *", {name: getattr(config, name) for name in _CONFIG_FIELDS})
        c.n_ropes = len(config.ropes)
        c.context = context
        c.max_tokens = max(BATCH, context)
        c.activation = ACTIVATIONS[config.activation]
        c.gated = config.gated
        c.pre_norm = config.pre_norm
        with ffi.from_buffer(buffer) as data:
            for one in plan:
                check_extent(one.tensor, len(data))
            handle = lib.sy_encoder_new(c, LEVELS[level], threads, weights)
            if handle == ffi.NULL:
                raise NoMemory("model", f"no memory for {weights} bytes of weights or no {threads} threads")
            handle = ffi.gc(handle, lib.sy_encoder_free)
            for i, rope in enumerate(config.ropes):
                lib.sy_encoder_rope(handle, i, len(rope.frequencies), rope.frequencies, rope.magnitude)
            for i, layer in enumerate(config.layers):
                lib.sy_encoder_layer(handle, i, layer.span, layer.rope, layer.bare)
            for one in plan:
                _put(handle, one, data + one.tensor.offset + one.offset)
        return cls(handle, config, context, level, sum(tensor.elements for tensor in gguf.tensors.values()))

    def embed(
        self,
        texts: SequenceOf[SequenceOf[int]],
        pooling: str | None = None,
        adapter: None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> list[list[float]]:
        """The vector, of length 1, of each text: its tokens, begin and end included.

        At most `batch_tokens` tokens in all, or one text of at most `context`. Raises BadRequest. Encoders have no
        adapters, and a batch is one step: it is not asked whether it is still `wanted`.
        """
        starts, tokens = [0], list[int]()
        for text in texts:
            if not 0 < len(text) <= self.context:
                raise BadRequest("tokens", f"{len(text)} in a text, not between 1 and {self.context}")
            tokens += text
            starts.append(len(tokens))
        if not texts or (len(texts) > 1 and len(tokens) > self.batch_tokens):
            raise BadRequest("tokens", f"{len(tokens)} in a batch, not between 1 and {self.batch_tokens}")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.config.n_vocab:
            bad = low if low < 0 else high
            raise BadRequest("tokens", f"{bad} is not in the vocabulary of {self.config.n_vocab}")
        if (pooling or self.pooling) not in POOLINGS:
            raise BadRequest("pooling", f"{pooling!r} is none of {', '.join(POOLINGS)}")
        n = self.dimensions
        out = ffi.new("float[]", len(texts) * n)
        with self._lock:
            if self._handle is None:
                raise BadRequest("model", "closed")
            status = lib.sy_encode(
                self._handle,
                len(texts),
                ffi.new("int32_t[]", starts),
                ffi.new("int32_t[]", tokens),
                POOLINGS[pooling or self.pooling],
                out,
            )
        if status:
            raise BadRequest("batch", f"the kernels refused it ({status})")
        return [ffi.unpack(out + i * n, n) for i in range(len(texts))]

    def set_threads(self, threads: int) -> None:
        """How many threads the next batch uses."""
        with self._lock:
            if self._handle is None or lib.sy_encoder_threads(self._handle, threads):
                raise NoMemory("threads", f"no {threads} threads")

    def close(self) -> None:
        """Free the weights, after the batch that may be running. Closing twice is harmless."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                ffi.release(handle)


def _plan(c: Encoder, tensors: dict[str, Tensor]) -> list[Place]:
    """Where everything goes. Raises UnsupportedModel and BrokenModel, naming the tensor."""
    wanted = {name: (0, slots) for name, slots in c.whole.items()}
    for i in range(c.n_layer):
        bare = c.layers[i].bare if c.layers else False
        wanted |= {
            f"blk.{i}.{name}": (i, slots)
            for name, slots in c.tensors.items()
            if not (bare and slots[0].startswith("attn_norm"))
        }
    return places(c.architecture, wanted, _shapes(c), tensors, known=c.consumed)


def _shapes(c: Encoder) -> dict[str, tuple[int, ...]]:
    """Slot -> its shape in ne order."""
    tables = {"words": c.n_vocab, "positions": c.n_positions, "types": c.n_types}
    wide = ("ffn_up", "ffn_gate")
    shapes: dict[str, tuple[int, ...]] = {
        name: (c.n_ff if name == "ffn_down" else c.n_embd, tables.get(name, c.n_ff if name in wide else c.n_embd))
        for name in MATRICES
    }
    return shapes | {name: (c.n_ff if name.removesuffix("_bias") in wide else c.n_embd,) for name in VECTORS}


def _put(handle: Any, place: Place, source: Any) -> None:
    source, type = ffi.cast("void *", source), place.tensor.type
    if place.slot in MATRICES:
        columns, rows = place.shape
        status = lib.sy_encoder_matrix(handle, place.layer, MATRICES[place.slot], type, rows, columns, source)
    else:
        status = lib.sy_encoder_vector(handle, place.layer, VECTORS[place.slot], type, place.shape[0], source)
    if status:
        raise BrokenModel(place.tensor.name, f"the kernels refused it ({status})")
