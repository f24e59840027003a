# SPDX-License-Identifier: Apache-2.0
"""Fixed texts on disk: what a model made of a prompt, so that nobody waits for it to be read again after the model
was out of memory. For worker threads.

A file holds the keys and values of whole blocks, for one model, context, kernel level and build: what would be
computed, to the bit (model/kv.py). It is put into the index of prefixes before the prompt is looked for there. The
folder is a cache: what is missing, torn or stale is computed, and the least recently used goes first.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from typing import TYPE_CHECKING

from syntrop import __version__
from syntrop.common import atomic, journal
from syntrop.runtimed import _kernels
from syntrop.runtimed.model.errors import ModelError
from syntrop.runtimed.model.kv import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.runtimed.loading import Loaded
    from syntrop.runtimed.model.kv import Block, Pool

TOKENS_MAX = 1024  # of a text that is kept
FILES_MAX, BYTES_MAX = 32, 256 << 20  # in the folder
_MAGIC = b"syntrop-kv-1\0\0\0\0"
_CHECK = 4  # bytes of the checksum behind it
_SUFFIX = ".kv"


class Prefixes:
    """The folder is the daemon's own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writing = allocate_lock()
        self._told = False
        build = os.stat(_kernels.__file__)
        self._build = f"{__version__} {build.st_size} {build.st_mtime_ns}"

    def restore(self, loaded: Loaded, tokens: Sequence[int]) -> bool:
        """Have the model know these tokens, if they were kept; whether they were. What does not fit into memory is
        left."""
        pool: Pool = loaded.model.kv
        with pool.budget.lock:
            held = _held(pool, tokens)
            _release(pool, held)
        path = self._path(loaded, tokens)
        if len(held) == len(tokens) // BLOCK:
            return os.path.exists(path)
        data = self._read(path)
        if len(data) != len(tokens) // BLOCK * pool.block_bytes:
            return False
        put(pool, tokens, data)
        return True

    def keep(self, loaded: Loaded, tokens: Sequence[int]) -> None:
        """Keep what the model knows of these tokens."""
        if not BLOCK <= len(tokens) <= TOKENS_MAX:
            return
        data = taken(loaded.model.kv, tokens)
        if not data:
            return
        try:
            with self._writing:
                self._make_room(len(data))
                whole = b"".join((_MAGIC, _sum(data), data))
                atomic.write(self._path(loaded, tokens), whole, mode=0o600, sync=False)
        except OSError as error:
            if not self._told:
                self._told = True
                journal.warning(f"Prompts cannot be kept in {self._folder}: {error.strerror}", ERRNO=error.errno)

    def _path(self, loaded: Loaded, tokens: Sequence[int]) -> str:
        from hashlib import sha256

        model = loaded.model
        what = (self._build, loaded.digest, model.level, model.context, model.kv.block_bytes, list(tokens))
        return os.path.join(self._folder, sha256(repr(what).encode()).hexdigest() + _SUFFIX)

    def _read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                whole = file.read(BYTES_MAX)
            os.utime(path)
        except OSError:
            return b""
        head, check, data = whole[: len(_MAGIC)], whole[len(_MAGIC) :][:_CHECK], whole[len(_MAGIC) + _CHECK :]
        return data if head == _MAGIC and check == _sum(data) else b""

    def _make_room(self, size: int) -> None:
        """Raises OSError."""
        kept = []
        for one in os.scandir(self._folder):
            if one.name.endswith(_SUFFIX):
                about = one.stat(follow_symlinks=False)
                kept.append((about.st_mtime_ns, about.st_size, one.path))
            elif one.name.endswith(".tmp"):
                os.unlink(one.path)  # a write that our end cut off: there is one writer at a time
        kept.sort(reverse=True)
        used = size
        for number, (_, bytes_, path) in enumerate(kept, 2):
            used += bytes_
            if number > FILES_MAX or used > BYTES_MAX:
                os.unlink(path)


def taken(pool: Pool, tokens: Sequence[int]) -> bytes:
    """Keys and values of the whole blocks of these tokens; empty where not all are known (any more)."""
    with pool.budget.lock:
        held = _held(pool, tokens)
        whole = len(held) == len(tokens) // BLOCK
        data = b"".join(pool.memory(block)[:] for block in held) if whole else b""
        _release(pool, held)
    return data


def put(pool: Pool, tokens: Sequence[int], data: bytes) -> None:
    """Put what `taken` gave into the index, as far as memory goes. No sequence holds it."""
    size = pool.block_bytes
    with pool.budget.lock:
        held = _held(pool, tokens)
        try:
            for index in range(len(held), len(tokens) // BLOCK):
                block = pool.new()
                pool.memory(block)[:] = data[index * size : (index + 1) * size]
                entered = pool.enter(block, _chain(pool, held), _piece(tokens, index))
                if entered is None:
                    pool.release(block)
                    break
                held.append(entered)
        except ModelError:
            pass  # no memory: what is missing is computed, where there is some by then
        finally:
            _release(pool, held)


# --- with the budget's lock held -----------------------------------------------------------------------------


def _held(pool: Pool, tokens: Sequence[int]) -> list[Block]:
    """The blocks of these tokens, from the first one to the last that is known; to be released."""
    held: list[Block] = []
    for index in range(len(tokens) // BLOCK):
        block = pool.find(_chain(pool, held), _piece(tokens, index))
        if block is None:
            break
        held.append(block)
    return held


def _release(pool: Pool, held: Sequence[Block]) -> None:
    for block in reversed(held):
        pool.release(block)


def _chain(pool: Pool, held: Sequence[Block]) -> tuple[int, int]:
    if not held:
        return pool.root(None)
    last = held[-1]
    assert last.key is not None
    return last.key, last.serial


def _piece(tokens: Sequence[int], index: int) -> tuple[int, ...]:
    return tuple(tokens[index * BLOCK : (index + 1) * BLOCK])


def _sum(data: bytes) -> bytes:
    from zlib import crc32

    return crc32(data).to_bytes(_CHECK, "little")
