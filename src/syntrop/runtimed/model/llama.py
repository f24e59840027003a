# SPDX-License-Identifier: Apache-2.0
"""The llama architecture on the C kernels: Python decides and checks, C computes a whole step in one call.

Keys and values live in blocks (kv.py). A step may carry tokens of several sequences, in any mixture of prompt
chunks and single tokens. The weights are repacked at load, so that the file's bytes are not needed afterwards.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, NamedTuple

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.config import MAX_CONTEXT, LlamaConfig, read_config
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, NoMemory, UnsupportedModel
from syntrop.runtimed.model.kv import Pool, Sequence

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf
    from mmap import mmap

    from syntrop.common.gguf import GGUF, Tensor

ffi = _kernels.ffi
lib = _kernels.lib

MAX_BATCH = 512  # tokens of one step
MAX_LOGITS = 64  # rows of logits of one step
MAX_THREADS = 256

LEVELS: dict[str, int] = {"scalar": lib.SY_SCALAR, "avx2": lib.SY_AVX2, "avx512": lib.SY_AVX512}

_FLOATS = {lib.SY_F32: 4, lib.SY_F16: 2, lib.SY_BF16: 2}  # bytes an element
_QUANTS = {lib.SY_Q4_0: 18, lib.SY_Q4_1: 20, lib.SY_Q8_0: 34}  # bytes a block of 32


class Piece(NamedTuple):
    """Consecutive tokens of one sequence in a step; `logits` asks for those of the last one."""

    sequence: Sequence
    tokens: SequenceOf[int]
    logits: bool = True


def levels() -> list[str]:
    """Names of the instruction-set levels that this processor can run, plainest first."""
    return [name for name, level in LEVELS.items() if lib.sy_level_supported(level)]


class LlamaModel:
    """A loaded model. Every method may be called from any thread; steps run one at a time."""

    def __init__(self, handle: Any, config: LlamaConfig, context: int, level: str, parameters: int) -> None:
        self._handle = handle
        self._lock = allocate_lock()
        self.config = config
        self.context = context
        self.level = level
        self.parameter_count = parameters
        self.memory_bytes: int = lib.sy_model_bytes(handle)
        self.kv = Pool(handle)

    @classmethod
    def load(
        cls,
        gguf: GGUF,
        buffer: bytes | bytearray | memoryview | mmap,
        *,
        threads: int,
        level: str = "auto",
        context: int | None = None,
        kv_f32: bool = False,
    ) -> LlamaModel:
        """Check and repack the weights that `gguf` describes in `buffer`; the buffer is not used afterwards.

        `context` bounds sequences (default and maximum: what the model was trained for). `kv_f32` keeps keys and
        values in F32 instead of F16. Raises UnsupportedModel, BrokenModel, BadRequest, NoMemory.
        """
        config = read_config(gguf)
        _check_threads(threads)
        level = _choose_level(level)
        if context is None:
            context = config.n_ctx_train
        if not 1 <= context <= min(config.n_ctx_train, MAX_CONTEXT):
            raise BadRequest("context", f"{context} is not between 1 and {config.n_ctx_train}")
        with ffi.from_buffer(buffer) as data:
            plan = _plan(gguf, config, len(data))
            weights = sum(
                (lib.sy_packed_bytes(t.type, t.shape[1], t.shape[0]) + 63) // 64 * 64
                for t, _, _ in plan
                if len(t.shape) == 2
            )
            c = ffi.new(
                "sy_config *",
                {
                    **{name: getattr(config, name) for name in _CONFIG_FIELDS},
                    "max_batch": min(MAX_BATCH, (context + 7) // 8 * 8),
                    "max_logits": MAX_LOGITS,
                    "kv_f32": kv_f32,
                },
            )
            handle = lib.sy_model_new(c, LEVELS[level], threads, weights)
            if handle == ffi.NULL:
                raise NoMemory("model", f"no memory for {weights} bytes of weights or no {threads} threads")
            handle = ffi.gc(handle, lib.sy_model_free)
            for tensor, layer, slot in plan:
                _put(handle, tensor, layer, slot, data + tensor.offset)
        if "output.weight" not in gguf.tensors:
            lib.sy_model_tie(handle)
        parameters = sum(t.elements for t, _, _ in plan)
        return cls(handle, config, context, level, parameters)

    def sequence(self, max_tokens: int) -> Sequence:
        """An empty sequence that can hold `max_tokens`. Its memory is taken as it grows."""
        if not 1 <= max_tokens <= self.context:
            raise BadRequest("max_tokens", f"{max_tokens} is not between 1 and the context of {self.context}")
        return Sequence(self.kv, max_tokens)

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
        self._check([Piece(sequence, tokens)])
        n = self.config.n_vocab
        rows: list[list[float]] = []
        for start in range(0, len(tokens), MAX_LOGITS):
            piece = Piece(sequence, tokens[start : start + MAX_LOGITS])
            rows += (ffi.unpack(row, n) for row in self._step([piece], last=False))
        return rows

    def step(self, batch: SequenceOf[Piece]) -> list[Any]:
        """One step over pieces of different sequences; for each piece its row of logits, or None.

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
        for sequence, tokens, _ in batch:
            if sequence.pool is not self.kv or sequence.closed:
                raise BadRequest("sequence", "closed, or of another model")
            if not tokens:
                raise BadRequest("tokens", "empty")
            if sequence.length + len(tokens) > sequence.max_tokens:
                raise BadRequest(
                    "tokens",
                    f"{len(tokens)} after {sequence.length} are more than the sequence's {sequence.max_tokens}",
                )
            low, high = min(tokens), max(tokens)
            if low < 0 or high >= self.config.n_vocab:
                bad = low if low < 0 else high
                raise BadRequest("tokens", f"{bad} is not in the vocabulary of {self.config.n_vocab}")

    def _step(self, batch: SequenceOf[Piece], *, last: bool) -> list[Any]:
        """Rows for the last token of the pieces that want it, or (not last) for every token."""
        tokens: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        wants = bytearray()
        for index, piece in enumerate(batch):
            count, start = len(piece.tokens), piece.sequence.length
            tokens += piece.tokens
            positions += range(start, start + count)
            owners += [index] * count
            if last:
                wants += bytes(count - 1) + bytes([piece.logits])
            else:
                wants += b"\1" * count
        with self._lock:
            handle = self._live()
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
            )
            if status:
                raise BadRequest("batch", f"the kernels refused it ({status})")
            for piece in batch:
                piece.sequence.extend(piece.tokens)
            logits, stride = lib.sy_model_logits(handle), lib.sy_model_logits_stride(handle)
        if not last:
            return [logits + i * stride for i in range(len(tokens))]
        rows: list[Any] = []
        at = 0
        for piece in batch:
            rows.append(logits + at * stride if piece.logits else None)
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
    "rms_eps",
    "rope_theta",
    "rope_scale",
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
        raise BadRequest("level", f"this processor does not run {level}, only {', '.join(names)}")
    return level


def _plan(gguf: GGUF, config: LlamaConfig, size: int) -> list[tuple[Tensor, int, int]]:
    """(tensor, layer, slot) of everything to load, each checked for presence, type, shape and extent."""
    c = config
    q, kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    layer: dict[str, tuple[int, tuple[int, ...]]] = {
        "attn_norm": (lib.SY_ATTN_NORM, (c.n_embd,)),
        "attn_q": (lib.SY_ATTN_Q, (c.n_embd, q)),
        "attn_k": (lib.SY_ATTN_K, (c.n_embd, kv)),
        "attn_v": (lib.SY_ATTN_V, (c.n_embd, kv)),
        "attn_output": (lib.SY_ATTN_O, (q, c.n_embd)),
        "ffn_norm": (lib.SY_FFN_NORM, (c.n_embd,)),
        "ffn_gate": (lib.SY_FFN_GATE, (c.n_embd, c.n_ff)),
        "ffn_up": (lib.SY_FFN_UP, (c.n_embd, c.n_ff)),
        "ffn_down": (lib.SY_FFN_DOWN, (c.n_ff, c.n_embd)),
    }
    wanted: dict[str, tuple[int, int, tuple[int, ...]]] = {
        "token_embd.weight": (0, lib.SY_EMBED, (c.n_embd, c.n_vocab)),
        "output_norm.weight": (0, lib.SY_OUTPUT_NORM, (c.n_embd,)),
    }
    for i in range(c.n_layer):
        for name, (slot, shape) in layer.items():
            wanted[f"blk.{i}.{name}.weight"] = (i, slot, shape)
    for name, slot, shape in (
        ("output.weight", lib.SY_OUTPUT, (c.n_embd, c.n_vocab)),
        ("rope_freqs.weight", lib.SY_ROPE_FACTORS, (c.rope_dim // 2,)),
    ):
        if name in gguf.tensors:
            wanted[name] = (0, slot, shape)
    # A tensor that is not understood would change the result: refuse rather than leave it out.
    for name in gguf.tensors:
        if name not in wanted:
            raise UnsupportedModel(name, "a tensor that this architecture is not known to have")
    plan = []
    for name, (index, slot, shape) in wanted.items():
        tensor = gguf.tensors.get(name)
        if tensor is None:
            raise BrokenModel(name, "missing")
        _check_tensor(tensor, shape, size)
        plan.append((tensor, index, slot))
    return plan


def _check_tensor(tensor: Tensor, shape: tuple[int, ...], size: int) -> None:
    if tuple(tensor.shape) != shape:
        raise BrokenModel(tensor.name, f"shape {list(tensor.shape)} where {list(shape)} is expected")
    elements = 1
    for extent in shape:
        elements *= extent
    if tensor.type in _FLOATS:
        nbytes = elements * _FLOATS[tensor.type]
    elif tensor.type not in _QUANTS or len(shape) == 1:
        raise UnsupportedModel(tensor.name, f"ggml type {tensor.type} is not supported here")
    elif shape[0] % 32:
        raise BrokenModel(tensor.name, f"rows of {shape[0]} are not whole blocks of 32")
    else:
        nbytes = elements // 32 * _QUANTS[tensor.type]
    if tensor.nbytes != nbytes or tensor.offset < 0 or tensor.offset + nbytes > size:
        raise BrokenModel(tensor.name, f"{nbytes} bytes at {tensor.offset} do not lie in a file of {size}")


def _put(handle: Any, tensor: Tensor, layer: int, slot: int, source: Any) -> None:
    source = ffi.cast("void *", source)
    if len(tensor.shape) == 2:
        cols, rows = tensor.shape
        status = lib.sy_model_matrix(handle, layer, slot, tensor.type, rows, cols, source)
    else:
        status = lib.sy_model_vector(handle, layer, slot, tensor.type, tensor.shape[0], source)
    if status:
        raise BrokenModel(tensor.name, f"the kernels refused it ({status})")
