# SPDX-License-Identifier: Apache-2.0
"""Encoders of the BERT family on the C kernels: texts in, unit vectors out, a batch in one call.

Tensors and metadata have the names that GGUF files give them; `checkpoint` gives those of safetensors the same.
"""

from __future__ import annotations

from _thread import allocate_lock
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, NoMemory, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as SequenceOf
    from mmap import mmap

    from syntrop.common.gguf import GGUF, Tensor

ffi = _kernels.ffi
lib = _kernels.lib

ARCHITECTURE = "bert"
# Tokens of one batch: what decoding streams beside it may have to wait for.
BATCH = 512
POOLINGS: dict[str, int] = {"mean": lib.SY_POOL_MEAN, "cls": lib.SY_POOL_CLS, "last": lib.SY_POOL_LAST}
POOLING_TYPES = {1: "mean", 2: "cls", 3: "last"}  # `pooling_type` of GGUF metadata
_MAX_HEAD = 256
_MATRICES = {
    "attn_q": lib.SY_ENC_Q,
    "attn_k": lib.SY_ENC_K,
    "attn_v": lib.SY_ENC_V,
    "attn_output": lib.SY_ENC_O,
    "ffn_up": lib.SY_ENC_UP,
    "ffn_down": lib.SY_ENC_DOWN,
}
_NORMS = {"attn_output_norm": lib.SY_ENC_ATTN_NORM, "layer_output_norm": lib.SY_ENC_OUTPUT_NORM}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes in elements; `pooling` is what the model was made for."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_vocab: int
    n_positions: int
    n_types: int
    eps: float
    pooling: str


class EncoderModel:
    """A loaded encoder. Every method may be called from any thread; batches run one at a time."""

    batch_tokens: int

    def __init__(self, handle: Any, config: EncoderConfig, context: int, level: str, parameters: int) -> None:
        self._handle = handle
        self._lock = allocate_lock()
        self.config = config
        self.context = context
        self.level = level
        self.pooling = config.pooling
        self.dimensions = config.n_embd
        self.batch_tokens = max(BATCH, config.n_positions)
        self.parameter_count = parameters
        self.memory_bytes: int = lib.sy_encoder_bytes(handle)

    @classmethod
    def load(
        cls,
        gguf: GGUF,
        buffer: bytes | bytearray | memoryview | mmap,
        *,
        threads: int,
        level: str = "auto",
        context: int | None = None,
    ) -> EncoderModel:
        """Check and repack the weights that `gguf` describes in `buffer`; the buffer is not used afterwards.

        `context` bounds texts, in tokens (default and maximum: the table of positions). Raises UnsupportedModel,
        BrokenModel, BadRequest, NoMemory.
        """
        from syntrop.runtimed.model.llama import LEVELS, _choose_level

        config = read_config(gguf)
        level = _choose_level(level)
        if context is None:
            context = config.n_positions
        if not 1 <= context <= config.n_positions:
            raise BadRequest("context", f"{context} is not between 1 and {config.n_positions}")
        with ffi.from_buffer(buffer) as data:
            plan = _plan(gguf, config, len(data))
            weights = sum(
                (lib.sy_packed_bytes(t.type, t.shape[1], t.shape[0]) + 63) // 64 * 64
                for t, _, _ in plan
                if len(t.shape) == 2
            )
            sizes = {name: getattr(config, name) for name in EncoderConfig.__slots__ if name != "pooling"}
            given = ffi.new("sy_encoder_config *", {**sizes, "max_tokens": max(BATCH, config.n_positions)})
            handle = lib.sy_encoder_new(given, LEVELS[level], threads, weights)
            if handle == ffi.NULL:
                raise NoMemory("model", f"no memory for {weights} bytes of weights or no {threads} threads")
            handle = ffi.gc(handle, lib.sy_encoder_free)
            for tensor, layer, slot in plan:
                _put(handle, tensor, layer, slot, data + tensor.offset)
        return cls(handle, config, context, level, sum(t.elements for t, _, _ in plan))

    def embed(
        self,
        texts: SequenceOf[SequenceOf[int]],
        pooling: str | None = None,
        adapter: None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> list[list[float]]:
        """The vector, of length 1, of each text: its tokens, begin and end included.

        At most `batch_tokens` tokens in all, `context` in one text. Raises BadRequest. Encoders have no adapters,
        and a batch is one step: it is not asked whether it is still `wanted`.
        """
        starts, tokens = [0], list[int]()
        for text in texts:
            if not 0 < len(text) <= self.context:
                raise BadRequest("tokens", f"{len(text)} in a text, not between 1 and {self.context}")
            tokens += text
            starts.append(len(tokens))
        if not texts or len(tokens) > self.batch_tokens:
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


def read_config(gguf: GGUF) -> EncoderConfig:
    """The configuration of a `bert` GGUF. Raises UnsupportedModel or BrokenModel, naming the key."""
    metadata = gguf.metadata
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedModel("general.architecture", f"{architecture!r} is no encoder that is known")
    if metadata.get("bert.attention.causal"):
        raise UnsupportedModel("bert.attention.causal", "an encoder sees its whole text")
    n_embd = _int(metadata, "embedding_length", 1 << 16)
    n_head = _int(metadata, "attention.head_count", 1 << 12)
    if n_embd % n_head:
        raise BrokenModel("bert.attention.head_count", f"{n_embd} is not a multiple of {n_head}")
    if n_embd // n_head > _MAX_HEAD:
        raise UnsupportedModel("bert.attention.head_count", f"heads of {n_embd // n_head}, at most {_MAX_HEAD}")
    eps = metadata.get("bert.attention.layer_norm_epsilon")
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not isfinite(eps) or eps < 0:
        raise BrokenModel("bert.attention.layer_norm_epsilon", f"{eps!r} is no small number")
    pooling = metadata.get("bert.pooling_type", 1)
    if pooling == 0:  # stated as "none": the vectors of the tokens. The mean is what such models are used with.
        pooling = 1
    if not isinstance(pooling, int) or pooling not in POOLING_TYPES:
        raise UnsupportedModel("bert.pooling_type", f"{pooling!r} is none of mean, cls and last")
    types = gguf.tensors.get("token_types.weight")
    return EncoderConfig(
        n_layer=_int(metadata, "block_count", 1 << 10),
        n_embd=n_embd,
        n_ff=_int(metadata, "feed_forward_length", 1 << 20),
        n_head=n_head,
        n_vocab=_rows(gguf, "token_embd.weight", 1 << 24),
        n_positions=min(_rows(gguf, "position_embd.weight", 1 << 20), 1 << 20),
        n_types=types.shape[1] if types is not None and len(types.shape) == 2 else 0,
        eps=float(eps),
        pooling=POOLING_TYPES[pooling],
    )


def _int(metadata: Mapping[str, object], name: str, most: int) -> int:
    key = f"bert.{name}"
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BrokenModel(key, "missing" if value is None else f"{value!r} is not between 1 and {most}")
    return value


def _rows(gguf: GGUF, name: str, most: int) -> int:
    tensor = gguf.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise BrokenModel(name, "missing" if tensor is None else "not a matrix")
    if tensor.shape[1] > most:
        raise UnsupportedModel(name, f"{tensor.shape[1]} rows, at most {most}")
    return tensor.shape[1]


def _plan(gguf: GGUF, c: EncoderConfig, size: int) -> list[tuple[Tensor, int, int]]:
    """(tensor, layer, slot) of everything to load, each checked for presence, type, shape and extent."""
    wanted: dict[str, tuple[int, int, tuple[int, ...]]] = {
        "token_embd.weight": (0, lib.SY_ENC_WORDS, (c.n_embd, c.n_vocab)),
        "position_embd.weight": (0, lib.SY_ENC_POSITIONS, (c.n_embd, c.n_positions)),
        "token_embd_norm.weight": (0, lib.SY_ENC_EMBED_NORM, (c.n_embd,)),
        "token_embd_norm.bias": (0, lib.SY_ENC_EMBED_NORM_BIAS, (c.n_embd,)),
    }
    if "token_types.weight" in gguf.tensors:
        wanted["token_types.weight"] = (0, lib.SY_ENC_TYPES, (c.n_embd, c.n_types))
    for i in range(c.n_layer):
        for name, slot in _MATRICES.items():
            rows = c.n_ff if name == "ffn_up" else c.n_embd
            cols = c.n_ff if name == "ffn_down" else c.n_embd
            wanted[f"blk.{i}.{name}.weight"] = (i, slot, (cols, rows))
            wanted[f"blk.{i}.{name}.bias"] = (i, slot, (rows,))
        for name, slot in _NORMS.items():
            wanted[f"blk.{i}.{name}.weight"] = (i, slot, (c.n_embd,))
            wanted[f"blk.{i}.{name}.bias"] = (i, slot + 1, (c.n_embd,))
    # A tensor that is not understood would change the result: refuse rather than leave it out.
    for name in gguf.tensors:
        if name not in wanted:
            raise UnsupportedModel(name, "a tensor that this architecture is not known to have")
    plan = []
    for name, (index, slot, shape) in wanted.items():
        tensor = gguf.tensors.get(name)
        if tensor is None:
            raise BrokenModel(name, "missing")
        if tuple(tensor.shape) != shape:
            raise BrokenModel(name, f"shape {list(tensor.shape)} where {list(shape)} is expected")
        plain = tensor.type in (lib.SY_F32, lib.SY_F16, lib.SY_BF16)
        if not (plain if len(shape) == 1 else lib.sy_packed_bytes(tensor.type, shape[1], shape[0])):
            raise UnsupportedModel(name, f"ggml type {tensor.type} is not supported here")
        if tensor.offset < 0 or tensor.offset + tensor.nbytes > size:
            raise BrokenModel(name, f"{tensor.nbytes} bytes at {tensor.offset} do not lie in {size}")
        plan.append((tensor, index, slot))
    return plan


def _put(handle: Any, tensor: Tensor, layer: int, slot: int, source: Any) -> None:
    source = ffi.cast("void *", source)
    if len(tensor.shape) == 2:
        cols, rows = tensor.shape
        status = lib.sy_encoder_matrix(handle, layer, slot, tensor.type, rows, cols, source)
    else:
        status = lib.sy_encoder_vector(handle, layer, slot, tensor.type, tensor.shape[0], source)
    if status:
        raise BrokenModel(tensor.name, f"the kernels refused it ({status})")
