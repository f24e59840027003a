# SPDX-License-Identifier: Apache-2.0
"""Keys and values in blocks of 16 tokens: who holds a block, who shares it, and what all of it may cost.

A sequence has a table of blocks and takes more as it grows. A block that is full goes into its model's index of
prefixes under a hash chain: the hash of its predecessor's key and its own tokens. From then on it never changes,
and a sequence that begins with the same tokens adopts it instead of computing it. An entry is believed only if its
predecessor is the very block that was found before it and its tokens are equal, so a collision of hashes costs a
computation, never an answer. The kernels compute a token to the same bits whatever stands beside it in a batch, so
an adopted block holds exactly what would have been computed (tests/unit/runtimed/test_batch_invariance.py).

Who writes into a block that others can see copies it first. Blocks that no sequence holds stay in the index, least
recently used first out, until the budget wants their bytes. A sequence gives its blocks back from its end to its
beginning, so that a block leaves before its predecessor does.

A second tier (host memory below the memory of a device) has two places to hook into: `Pool._leave`, the only way
out of the index, and `Pool._find`, the only look into it.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import OrderedDict
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from syntrop.runtimed import _kernels, ration
from syntrop.runtimed.model.errors import BadRequest, NoMemory, OverBudget

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as SequenceOf

    from syntrop.runtimed.model.lora import Adapter

ffi = _kernels.ffi
lib = _kernels.lib

BLOCK: int = lib.SY_BLOCK  # tokens
UNLIMITED = 1 << 62
ANSWER_MAX = 1.0  # seconds: whoever asks inferenced gives up before


class Block:
    """A block of one pool, by its number there. `users` counts the sequences that hold it."""

    __slots__ = ("key", "number", "parent", "pool", "serial", "tokens", "users")

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool = pool
        self.number = number
        self.users = 1
        # In the index: its key, its tokens, its own and its predecessor's serial number there.
        self.key: int | None = None
        self.tokens: tuple[int, ...] = ()
        self.serial = 0
        self.parent = 0


class Budget:
    """Bytes that the weights and blocks of several models may take, counted exactly.

    `idle_max` bounds the part of them in blocks that no sequence holds. One lock guards the budget and its pools.

    `leased` of them are leased of inferenced (leases.py). `hungry` is called, in any thread, when blocks come near
    that; the answer is waited for where a block would go beyond.
    """

    def __init__(self, limit: int = UNLIMITED, idle_max: int = UNLIMITED) -> None:
        self.lock = allocate_lock()
        self.limit = limit
        self.ceiling = limit  # which the limit may rise to again
        self.leased = UNLIMITED
        self.hungry: Callable[[], object] = lambda: None
        self.need = 0  # bytes that are to be leased, when it is called
        self._asked = False
        self._answer = Condition(self.lock)
        self.idle_max = idle_max
        self.weights = 0
        self.used = 0  # weights and blocks
        self.idle = 0  # the part of it that is in `_idle`
        self._idle: OrderedDict[Block, None] = OrderedDict()  # the least recently used first

    @property
    def held(self) -> int:
        """Bytes that somebody has a use for."""
        return self.used - self.idle

    @property
    def is_short(self) -> bool:
        """Whether inferenced has refused more, for the time being."""
        return self.limit < self.ceiling

    def take_weights(self, size: int) -> None:
        """Count weights in, which are leased already. Raises OverBudget."""
        with self.lock:
            self._count(size)
            self.weights += size

    def give_weights(self, size: int) -> None:
        with self.lock:
            self.used -= size
            self.weights -= size

    def compact(self, size: int = 0) -> int:
        """Give up blocks that no sequence holds, until no more than `size` bytes are used; their bytes."""
        with self.lock:
            before = self.used
            self._fit(size)
            return before - self.used

    def allow(self, leased: int, limit: int) -> None:
        """So much is leased, and so much may be used for the time being."""
        with self.lock:
            self.leased, self.limit = leased, limit
            self._answer.notify_all()

    def lease_is_unknown(self) -> None:
        """Nobody leases anything: what the settings allow may be used."""
        self.allow(UNLIMITED, self.ceiling)

    def answered(self) -> None:
        """What `hungry` set going has come to its end."""
        with self.lock:
            self._asked = False
            self._answer.notify_all()

    # For pools, which hold the lock:

    def take(self, size: int) -> None:
        if self.held + size <= self.limit and self.used + size + ration.LOW > self.leased < self.limit:
            self._lease(size)
        self._count(size)

    def _lease(self, size: int) -> None:
        """Have more leased, and wait for it where it is needed now."""
        patience = monotonic() + ANSWER_MAX
        while self.leased < self.limit:
            need = min(self.used + size, self.limit)
            if not self._asked and need + ration.LOW > self.leased:
                self._asked, self.need = True, need
                self.hungry()
            if need <= self.leased or monotonic() > patience:
                return
            self._answer.wait(ANSWER_MAX)

    def _count(self, size: int) -> None:
        if self.held + size > self.limit:
            raise OverBudget(size, self.held, self.limit)
        while self.used + size > self.limit:
            self._evict()
        self.used += size

    def rest(self, block: Block) -> None:
        """Nobody holds a block of an index any more. It may be kept where there is room for it: the limit may have
        fallen while it was held."""
        self._idle[block] = None
        self.idle += block.pool.block_bytes
        self._trim(self.idle_max)
        self._fit(self.limit)

    def wake(self, block: Block) -> None:
        del self._idle[block]
        self.idle -= block.pool.block_bytes

    def _fit(self, size: int) -> None:
        while self._idle and self.used > size:
            self._evict()

    def _trim(self, most: int) -> None:
        while self.idle > most:
            self._evict()

    def _evict(self) -> None:
        block = next(iter(self._idle))
        self.wake(block)
        block.pool.evicted(block)


class Pool:
    """The blocks of one model, and its index of prefixes. `hashing` is for tests."""

    def __init__(self, handle: Any, hashing: Callable[[tuple[Any, ...]], int] = hash) -> None:
        self._handle = handle
        self._hash = hashing
        self._index: dict[int, Block] = {}
        self._serial = 0
        self.budget = Budget()
        self.blocks = 0  # idle ones included
        self._roots: WeakKeyDictionary[Adapter, int] = WeakKeyDictionary()
        self.block_bytes: int = lib.sy_block_bytes(handle)

    def join(self, budget: Budget) -> None:
        """Count against this budget. Before the first block."""
        if self.blocks:
            raise BadRequest("budget", "the pool has blocks already")
        self.budget = budget

    @property
    def room(self) -> int:
        """Bytes that blocks can have at most, beside the weights that are loaded."""
        return self.budget.limit - self.budget.weights

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes, rounded up."""
        return -(-self.block_bytes // BLOCK)

    def cost(self, tokens: int) -> int:
        """Bytes that so many tokens of one sequence take."""
        return blocks_of(tokens) * self.block_bytes

    def fits(self, tokens: int) -> bool:
        """Whether so many tokens of one sequence could be held at all."""
        return self.cost(tokens) <= self.room

    def close(self) -> None:
        """The model goes, and its blocks with it."""
        with self.budget.lock:
            for block in self._index.values():
                if not block.users:
                    self.budget.wake(block)
            self._index.clear()
            self._handle = None
            self.budget.used -= self.blocks * self.block_bytes
            self.blocks = 0

    # --- for sequences, which hold the budget's lock ----------------------------------------------------------

    def new(self) -> Block:
        """A block of the caller's own. Raises NoMemory."""
        if self._handle is None:
            raise BadRequest("model", "closed")
        self.budget.take(self.block_bytes)
        number = lib.sy_block_new(self._handle)
        if number < 0:
            self.budget.used -= self.block_bytes
            raise NoMemory("sequence", f"the system has no memory for a block of {self.block_bytes} bytes")
        self.blocks += 1
        return Block(self, number)

    def copy(self, block: Block) -> Block:
        """A block of the caller's own with the same content. Raises NoMemory."""
        twin = self.new()
        lib.sy_block_copy(self._handle, twin.number, block.number)
        return twin

    def memory(self, block: Block) -> Any:
        """The block's keys and values as a buffer: those of a block of the caller's own may be written."""
        return ffi.buffer(lib.sy_block_memory(self._handle, block.number), self.block_bytes)

    def hold(self, block: Block) -> None:
        if not block.users:
            self.budget.wake(block)
        block.users += 1

    def release(self, block: Block) -> None:
        block.users -= 1
        if block.users or self._handle is None:
            return
        if block.key is None:
            self._free(block)
        else:
            self.budget.rest(block)

    def evicted(self, block: Block) -> None:
        self._leave(block)
        self._free(block)

    def root(self, adapter: Adapter | None) -> tuple[int, int]:
        """Key and serial number that stand before the first block of a sequence: each adapter has its own."""
        serial = 0
        if adapter is not None:
            if adapter not in self._roots:
                self._serial += 1
                self._roots[adapter] = self._serial
            serial = self._roots[adapter]
        return self._hash(("prefix", serial)), serial

    def find(self, before: tuple[int, int], tokens: tuple[int, ...]) -> Block | None:
        """The block with these tokens after that one (key, serial); the caller holds it from now on."""
        block = self._find(before, tokens)
        if block is not None:
            self.hold(block)
        return block

    def enter(self, block: Block, before: tuple[int, int], tokens: tuple[int, ...]) -> Block | None:
        """Put a full block into the index. The block to go on with, which is another one if its like is there
        already; None where a collision of hashes keeps it out."""
        known = self._find(before, tokens)
        if known is not None:
            self.hold(known)
            self.release(block)
            return known
        key = self._hash((before[0], tokens))
        if key in self._index:
            return None
        self._serial += 1
        block.key, block.tokens, block.serial, block.parent = key, tokens, self._serial, before[1]
        self._index[key] = block
        return block

    def _find(self, before: tuple[int, int], tokens: tuple[int, ...]) -> Block | None:
        block = self._index.get(self._hash((before[0], tokens)))
        if block is None or block.parent != before[1] or block.tokens != tokens:
            return None
        return block

    def _leave(self, block: Block) -> None:
        assert block.key is not None
        del self._index[block.key]
        block.key = None

    def _free(self, block: Block) -> None:
        lib.sy_block_free(self._handle, block.number)
        self.blocks -= 1
        self.budget.used -= self.block_bytes


class Sequence:
    """The cached keys and values of one sequence of at most `max_tokens` tokens. One thread at a time uses it."""

    def __init__(self, pool: Pool, max_tokens: int) -> None:
        self.pool = pool
        self.table = ffi.new("int32_t[]", blocks_of(max_tokens))  # what the kernels read
        self.max_tokens = max_tokens
        self.closed = False
        self._adapter: Adapter | None = None
        self._tokens: list[int] = []
        self._blocks: list[Block] = []
        self._root = pool.root(None)
        # Key and serial of the last block in the index; None once a block could not go there.
        self._chain: tuple[int, int] | None = self._root
        self._entered = 0  # blocks in the index: the first so many of `_blocks`

    @property
    def adapter(self) -> Adapter | None:
        """What its tokens are computed with. To be set while it is empty."""
        return self._adapter

    @adapter.setter
    def adapter(self, adapter: Adapter | None) -> None:
        if self._blocks:
            raise BadRequest("adapter", "the sequence is not empty")
        with self.pool.budget.lock:
            self._root = self._chain = self.pool.root(adapter)
        self._adapter = adapter

    @property
    def length(self) -> int:
        """Tokens whose keys and values are there."""
        return len(self._tokens)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the blocks held now, shared ones included."""
        return len(self._blocks) * self.pool.block_bytes

    def adopt(self, tokens: SequenceOf[int]) -> int:
        """Of an empty sequence: take over what is known of these tokens, all but the last; how many that are."""
        if self._blocks or not tokens:
            raise BadRequest("sequence", "not empty, or nothing to adopt")
        with self.pool.budget.lock:
            for start in range(0, min(len(tokens), self.max_tokens) - BLOCK + 1, BLOCK):
                assert self._chain is not None
                block = self.pool.find(self._chain, tuple(tokens[start : start + BLOCK]))
                if block is None:
                    break
                self._append(block)
                self._entry(block)
        self._tokens = list(tokens[: min(len(self._blocks) * BLOCK, len(tokens) - 1)])
        return len(self._tokens)

    def fork(self) -> Sequence:
        """Another sequence that begins with what this one has. Both share the blocks until one writes there."""
        twin = Sequence(self.pool, self.max_tokens)
        twin.adapter = self.adapter
        with self.pool.budget.lock:
            for block in self._blocks[: blocks_of(self.length)]:
                self.pool.hold(block)
                twin._append(block)
        twin._tokens = self._tokens.copy()
        twin._chain, twin._entered = self._chain, self._entered
        return twin

    def reserve(self, length: int) -> None:
        """Have blocks of its own for the tokens from here up to that many. Raises NoMemory."""
        count, at = blocks_of(length), self.length // BLOCK
        # Only the block that is written next can be another's too: those behind it are empty.
        shared = at < len(self._blocks) and not self._mine(at)
        if len(self._blocks) >= count and not shared:
            return
        with self.pool.budget.lock:
            if shared:
                block = self._blocks[at]
                self._blocks[at] = self.pool.copy(block)
                self.table[at] = self._blocks[at].number
                self.pool.release(block)
                self._unenter(at)
            while len(self._blocks) < count:
                self._append(self.pool.new())

    def extend(self, tokens: SequenceOf[int]) -> None:
        """The kernels have written the keys and values of these tokens."""
        self._tokens += tokens
        full = len(self._tokens) // BLOCK
        if full <= self._entered or self._chain is None:
            return
        with self.pool.budget.lock:
            while self._entered < full and self._chain is not None:
                self._enter(self._entered)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if not 0 <= length <= self.length:
            raise BadRequest("length", f"{length} is not between 0 and {self.length}")
        del self._tokens[length:]
        self._shrink(blocks_of(length))

    def close(self) -> None:
        """Give all blocks back. Closing twice is harmless."""
        self.closed = True
        self._tokens = []
        self._shrink(0)

    # --- with the lock held ------------------------------------------------------------------------------------

    def _mine(self, index: int) -> bool:
        block = self._blocks[index]
        return block.users == 1 and block.key is None

    def _append(self, block: Block) -> None:
        self.table[len(self._blocks)] = block.number
        self._blocks.append(block)

    def _enter(self, index: int) -> None:
        assert self._chain is not None
        tokens = tuple(self._tokens[index * BLOCK : (index + 1) * BLOCK])
        block = self.pool.enter(self._blocks[index], self._chain, tokens)
        if block is None:
            self._chain = None
            return
        self._blocks[index] = block
        self.table[index] = block.number
        self._entry(block)

    def _entry(self, block: Block) -> None:
        assert block.key is not None
        self._chain = block.key, block.serial
        self._entered += 1

    def _unenter(self, count: int) -> None:
        """Only the first `count` blocks count as entered."""
        if count < self._entered:
            self._entered = count
            self._chain = self._root
            if count:
                last = self._blocks[count - 1]
                assert last.key is not None
                self._chain = last.key, last.serial

    def _shrink(self, count: int) -> None:
        with self.pool.budget.lock:
            self._unenter(count)
            while len(self._blocks) > count:
                self.pool.release(self._blocks.pop())

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def blocks_of(tokens: int) -> int:
    """Blocks that so many tokens take."""
    return (tokens + BLOCK - 1) // BLOCK
