# SPDX-License-Identifier: Apache-2.0
"""Keys and values of sequences, in blocks of 16 tokens: a sequence takes blocks as it grows."""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Any

from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import BadRequest, NoMemory

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from syntrop.runtimed.model.lora import Adapter

ffi = _kernels.ffi
lib = _kernels.lib

BLOCK: int = lib.SY_BLOCK  # tokens


class Pool:
    """The blocks of one model."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._lock = allocate_lock()
        self.block_bytes: int = lib.sy_block_bytes(handle)

    def new(self) -> int:
        """A block. Raises NoMemory."""
        with self._lock:
            block: int = lib.sy_block_new(self._handle) if self._handle is not None else -1
        if block < 0:
            raise NoMemory("sequence", f"no memory for a block of {self.block_bytes} bytes")
        return block

    def free(self, blocks: SequenceOf[int]) -> None:
        with self._lock:
            if self._handle is not None:
                for block in blocks:
                    lib.sy_block_free(self._handle, block)

    def close(self) -> None:
        """The model goes, and its blocks with it."""
        with self._lock:
            self._handle = None


class Sequence:
    """The cached keys and values of one sequence of at most `max_tokens` tokens."""

    def __init__(self, pool: Pool, max_tokens: int) -> None:
        self.pool = pool
        self.table = ffi.new("int32_t[]", (max_tokens + BLOCK - 1) // BLOCK)  # what the kernels read
        self.max_tokens = max_tokens
        self.length = 0
        self.closed = False
        self.adapter: Adapter | None = None  # what its tokens are computed with
        self._blocks: list[int] = []

    @property
    def kv_bytes(self) -> int:
        """Bytes of the blocks held now."""
        return len(self._blocks) * self.pool.block_bytes

    def reserve(self, length: int) -> None:
        """Have blocks for that many tokens. Raises NoMemory."""
        while len(self._blocks) * BLOCK < length:
            block = self.pool.new()
            self.table[len(self._blocks)] = block
            self._blocks.append(block)

    def extend(self, tokens: SequenceOf[int]) -> None:
        """The kernels have written the keys and values of these tokens."""
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if not 0 <= length <= self.length:
            raise BadRequest("length", f"{length} is not between 0 and {self.length}")
        self.length = length
        self._shrink((length + BLOCK - 1) // BLOCK)

    def close(self) -> None:
        """Give all blocks back. Closing twice is harmless."""
        self.closed = True
        self.length = 0
        self._shrink(0)

    def _shrink(self, blocks: int) -> None:
        self.pool.free(self._blocks[blocks:])
        del self._blocks[blocks:]

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
