# SPDX-License-Identifier: Apache-2.0
"""Decoders on the C kernels: Python decides and checks, C computes a whole step in one call.

What architectures differ in is a Config (model/arch). Keys and values live in blocks (kv.py). A step may carry
tokens of several sequences, in any mixture of prompt chunks and single tokens, with and without adapters. The
weights are repacked at load, so that the file's bytes are not needed afterwards.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, NamedTuple

from syntrop.runtimed import _kernels
from syntrop.runtimed.model import hidden, lora
from syntrop.runtimed.model.config import MAX_CONTEXT, Config, read_config
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, NoMemory
from syntrop.runtimed.model.kv import Pool, Sequence
from syntrop.runtimed.model.plan import MATRICES, VECTORS, Place, check_extent, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as SequenceOf

    from syntrop.common.gguf import GGUF
    from syntrop.runtimed.model.keys import Buffer
    from syntrop.runtimed.model.lora import Adapter

ffi = _kernels.ffi
lib = _kernels.lib

MAX_BATCH = 512  # tokens of one step
MAX_LOGITS = 64  # rows of logits of one step
MAX_THREADS = 256

LEVELS: dict[str, int] = {
    "scalar": lib.SY_SCALAR,
    "avx2": lib.SY_AVX2,
    "avx512": lib.SY_AVX512,
    "amx": lib.SY_AMX,
}

KV_TYPES: dict[str, int] = {"f16": lib.SY_KV_F16, "q8": lib.SY_KV_Q8, "f32": lib.SY_KV_F32}


class Piece(NamedTuple):
    """Consecutive tokens of one sequence in a step; `logits` asks for those after so many of the last ones."""

    sequence: Sequence
    tokens: SequenceOf[int]
    logits: int = True


def levels() -> list[str]:
    """Names of the instruction-set levels that this processor can run, plainest first."""
    return [name for name, level in LEVELS.items() if lib.sy_level_supported(level)]


class LlamaModel:
    """A loaded model. Every method may be called from any thread; steps run one at a time."""

    def __init__(self, handle: Any, config: Config, context: int, level: str, parameters: int) -> None:
        self._handle = handle
        self._lock = allocate_lock()
        self.config = config
        self.context = context
        self.level = level
        self.parameter_count = parameters
        self.pooling = "last"  # of `embed`, where nothing else is asked for
        self.dimensions = config.n_embd
        self.batch_tokens = min(MAX_BATCH, context)  # of `embed`; a longer text takes several steps
        self.adapters: list[Adapter] = []
        self._own_bytes: int = lib.sy_model_bytes(handle)
        self.kv = Pool(handle)

    @property
    def memory_bytes(self) -> int:
        """Weights, adapters and workspace, without keys and values."""
        return self._own_bytes + sum(adapter.memory_bytes for adapter in tuple(self.adapters))

    @classmethod
    def load(
        cls,
        gguf: GGUF,
        buffer: Buffer,
        *,
        threads: int,
        level: str = "auto",
        context: int | None = None,
        kv_type: str = "f16",
    ) -> LlamaModel:
        """Check and repack the weights that `gguf` describes in `buffer`; the buffer is not used afterwards.

        `context` bounds sequences (default and maximum: what the model was trained for). `kv_type` is what
        keys and values are kept in: f16, q8 or, for tests, f32. Raises UnsupportedModel, BrokenModel, BadRequest,
        NoMemory.
        """
        config = read_config(gguf, buffer, context or 0)
        pooling = hidden.pooling_of(gguf)
        _check_threads(threads)
        level = _choose_level(level)
        if context is None:
            context = config.n_ctx_train
        if not 1 <= context <= min(config.n_ctx_train, MAX_CONTEXT):
            raise BadRequest("context", f"{context} is not between 1 and {config.n_ctx_train}")
        places = plan(config, gguf.tensors)
        weights = sum((place.packed_bytes + 63) // 64 * 64 for place in places)
        c = ffi.new("sy_config *", {name: getattr(config, name) for name in _CONFIG_FIELDS})
        c.activation = {"silu": lib.SY_SILU, "gelu": lib.SY_GELU}[config.activation]
        c.n_ropes = len(config.ropes)
        c.max_batch = min(MAX_BATCH, (context + 7) // 8 * 8)
        c.max_logits = MAX_LOGITS
        if kv_type not in KV_TYPES:
            raise BadRequest("kv_type", f"{kv_type!r} is none of {', '.join(KV_TYPES)}")
        c.kv_type = KV_TYPES[kv_type]
        with ffi.from_buffer(buffer) as data:
            for place in places:
                check_extent(place.tensor, len(data))
            handle = lib.sy_model_new(c, LEVELS[level], threads, weights)
            if handle == ffi.NULL:
                raise NoMemory("model", f"no memory for {weights} bytes of weights or no {threads} threads")
            handle = ffi.gc(handle, lib.sy_model_free)
            for i, rope in enumerate(config.ropes):
                lib.sy_model_rope(handle, i, len(rope.frequencies), rope.frequencies, rope.magnitude)
            for i, layer in enumerate(config.layers):
                lib.sy_model_layer(handle, i, layer.window, layer.rope)
            for place in places:
                _put(handle, place, data + place.tensor.offset + place.offset)
        if "output.weight" not in gguf.tensors:
            lib.sy_model_tie(handle)
        parameters = sum(tensor.elements for tensor in gguf.tensors.values())
        model = cls(handle, config, context, level, parameters)
        model.pooling = pooling
        return model

    def sequence(self, max_tokens: int, adapter: Adapter | None = None) -> Sequence:
        """An empty sequence that can hold `max_tokens`, computed with `adapter`. It takes memory as it grows."""
        if not 1 <= max_tokens <= self.context:
            raise BadRequest("max_tokens", f"{max_tokens} is not between 1 and the context of {self.context}")
        sequence = Sequence(self.kv, max_tokens)
        sequence.adapter = adapter
        return sequence

    def attach(self, gguf: GGUF, buffer: Buffer) -> Adapter:
        """A LoRA adapter out of a GGUF file, for sequences to go with. The buffer is not used afterwards.

        Raises UnsupportedModel, BrokenModel, NoMemory.
        """
        with self._lock:
            adapter = lora.load(self._live(), self.config, gguf, buffer)
            self.adapters.append(adapter)
        return adapter

    def detach(self, adapter: Adapter) -> None:
        """Forget an adapter, after the step that may be running. Sequences that use it can go no further."""
        with self._lock:
            if adapter in self.adapters:
                self.adapters.remove(adapter)
            adapter.close()

    def forward(self, sequence: Sequence, tokens: SequenceOf[int], *, logits: bool = True) -> Any:
        """Append tokens to a sequence; a `float *` to the n_vocab logits after the last one.

        The row is valid until the model's next step. None without `logits`.
        """
        self._check([Piece(sequence, tokens, logits)])
        row = None
        for start in range(0, len(tokens), MAX_BATCH):
            part = tokens[start : start + MAX_BATCH]
            row = self._step([Piece(sequence, part, logits and start + MAX_BATCH >= len(tokens))], last=True)[0]
        return row

    def forward_all(self, sequence: Sequence, tokens: SequenceOf[int]) -> list[list[float]]:
        """Append tokens; the logits after each of them."""
        return [ffi.unpack(row, self.config.n_vocab) for row in self.forward_rows(sequence, tokens)]

    def forward_rows(self, sequence: Sequence, tokens: SequenceOf[int]) -> Iterator[Any]:
        """Append tokens; for each of them a `float *` to the logits after it, good until the next is asked for."""
        self._check([Piece(sequence, tokens)])
        for start in range(0, len(tokens), MAX_LOGITS):
            yield from self._step([Piece(sequence, tokens[start : start + MAX_LOGITS])], last=False)

    def embed(
        self,
        texts: SequenceOf[SequenceOf[int]],
        pooling: str | None = None,
        adapter: Adapter | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> list[list[float]]:
        """For each text, its tokens, the last hidden states made one vector of length 1: `mean`, `cls` or `last`.

        It ends with BadRequest before the first step for which `wanted` is false.
        """
        return hidden.embed(self, texts, pooling or self.pooling, adapter, wanted)

    def step(self, batch: SequenceOf[Piece]) -> list[Any]:
        """One step over pieces of different sequences; for each piece its row of logits, a list of them where it
        asks for more than one, or None.

        At most MAX_BATCH tokens and MAX_LOGITS rows; each sequence at most once. Rows are valid until the next
        step.
        """
        self._check(batch)
        if sum(len(piece.tokens) for piece in batch) > MAX_BATCH:
            raise BadRequest("batch", f"more than {MAX_BATCH} tokens")
        if sum(piece.logits for piece in batch) > MAX_LOGITS:
            raise BadRequest("batch", f"more than {MAX_LOGITS} rows of logits")
        if len({id(piece.sequence) for piece in batch}) != len(batch):
            raise BadRequest("batch", "a sequence stands in it twice")
        return self._step(batch, last=True)

    def set_threads(self, threads: int) -> None:
        """How many threads the next step uses."""
        _check_threads(threads)
        with self._lock:
            if lib.sy_model_threads(self._live(), threads):
                raise NoMemory("threads", f"no {threads} threads")

    def close(self) -> None:
        """Free weights and all sequences, after the step that may be running. Closing twice is harmless."""
        with self._lock:
            handle, self._handle = self._handle, None
            for adapter in self.adapters:
                adapter.close()
            self.adapters.clear()
            if handle is not None:
                self.kv.close()
                ffi.release(handle)

    def _live(self) -> Any:
        if self._handle is None:
            raise BadRequest("model", "closed")
        return self._handle

    def _check(self, batch: SequenceOf[Piece]) -> None:
        if not batch:
            raise BadRequest("batch", "empty")
        for sequence, tokens, logits in batch:
            if sequence.pool is not self.kv or sequence.closed:
                raise BadRequest("sequence", "closed, or of another model")
            if sequence.adapter is not None and sequence.adapter not in self.adapters:
                raise BadRequest("adapter", "detached, or of another model")
            if not tokens:
                raise BadRequest("tokens", "empty")
            if not 0 <= logits <= len(tokens):
                raise BadRequest("logits", f"{logits} rows of {len(tokens)} tokens")
            if sequence.length + len(tokens) > sequence.max_tokens:
                raise BadRequest(
                    "tokens",
                    f"{len(tokens)} after {sequence.length} are more than the sequence's {sequence.max_tokens}",
                )
            low, high = min(tokens), max(tokens)
            if low < 0 or high >= self.config.n_vocab:
                bad = low if low < 0 else high
                raise BadRequest("tokens", f"{bad} is not in the vocabulary of {self.config.n_vocab}")

    def _step(
        self, batch: SequenceOf[Piece], *, last: bool, pool: Callable[[Any, int], None] | None = None
    ) -> list[Any]:
        """Rows for the last token of the pieces that want it, or (not last) for every token.

        With `pool`, rows of the last hidden state in place of logits, and only for its call: rows and their
        stride.
        """
        tokens: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        wants = bytearray()
        want: int = 1 if pool is None else lib.SY_HIDDEN
        for index, piece in enumerate(batch):
            count, start = len(piece.tokens), piece.sequence.length
            tokens += piece.tokens
            positions += range(start, start + count)
            owners += [index] * count
            if last:
                wants += bytes(count - piece.logits) + bytes([want]) * piece.logits
            else:
                wants += bytes([want]) * count
        with self._lock:
            handle = self._live()
            adapters = ffi.NULL
            if any(piece.sequence.adapter is not None for piece in batch):
                used = [piece.sequence.adapter for piece in batch]
                adapters = ffi.new("sy_adapter *[]", [ffi.NULL if one is None else one.live() for one in used])
            for piece in batch:
                piece.sequence.reserve(piece.sequence.length + len(piece.tokens))
            status = lib.sy_forward(
                handle,
                len(tokens),
                ffi.new("int32_t[]", tokens),
                ffi.new("int32_t[]", positions),
                ffi.new("int32_t[]", owners),
                ffi.new("int32_t *[]", [piece.sequence.table for piece in batch]),
                len(batch),
                ffi.from_buffer("uint8_t[]", wants),
                adapters,
            )
            if status:
                raise BadRequest("batch", f"the kernels refused it ({status})")
            for piece in batch:
                piece.sequence.extend(piece.tokens)
            if pool is not None:
                pool(lib.sy_model_hidden(handle), lib.sy_model_hidden_stride(handle))
                return []
            logits, stride = lib.sy_model_logits(handle), lib.sy_model_logits_stride(handle)
        if not last:
            return [logits + i * stride for i in range(len(tokens))]
        rows: list[Any] = []
        at = 0
        for piece in batch:
            own = [logits + (at + i) * stride for i in range(piece.logits)]
            rows.append(own if len(own) > 1 else own[0] if own else None)
            at += piece.logits
        return rows


_CONFIG_FIELDS = (
    "n_layer",
    "n_embd",
    "n_ff",
    "n_head",
    "n_head_kv",
    "head_dim",
    "rope_dim",
    "n_vocab",
    "rope_halves",
    "rms_eps",
    "embed_scale",
    "attn_scale",
    "residual_scale",
    "logit_scale",
    "logit_cap",
)


def _check_threads(threads: int) -> None:
    if not 1 <= threads <= MAX_THREADS:
        raise BadRequest("threads", f"{threads} is not between 1 and {MAX_THREADS}")


def _choose_level(level: str) -> str:
    names = levels()
    if level == "auto":
        return names[-1]
    if level not in LEVELS:
        raise BadRequest("level", f"{level!r} is none of auto, {', '.join(LEVELS)}")
    if level not in names:
        missing = ffi.string(lib.sy_level_missing(LEVELS[level])).decode()
        raise BadRequest("level", f"{level} needs {missing}, which this host lacks; it runs {', '.join(names)}")
    return level


def _put(handle: Any, place: Place, source: Any) -> None:
    source, type = ffi.cast("void *", source), place.tensor.type
    if place.slot in MATRICES:
        columns, rows = place.shape
        slot = MATRICES[place.slot]
        status = lib.sy_model_matrix(handle, place.layer, slot, type, rows, columns, source)
    else:
        status = lib.sy_model_vector(handle, place.layer, VECTORS[place.slot], type, place.shape[0], source)
    if status:
        raise BrokenModel(place.tensor.name, f"the kernels refused it ({status})")
