# SPDX-License-Identifier: Apache-2.0
"""A download that is not whole yet: a file below `incoming/`, and beside it what is known of its source.

    incoming/<key>         what has arrived so far; locked (flock) by whoever writes
    incoming/<key>.json    {"source", "validator", "total", "safe"}

`safe` bytes were synced before that was written. Only they are used again: after a power failure a longer file may
end in zeros. The bytes are hashed as they come, so that the digest is known with the last of them. Everything here
blocks.
"""

from __future__ import annotations

import fcntl
import os

from syntrop.common import atomic
from syntrop.modeld import disk
from syntrop.modeld.faults import InUse, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

CHECKPOINT = 64 << 20  # bytes that a crash may cost
STALE_SEC = 14 * 86400.0  # age after which nobody is thought to come back for one


class Incoming:
    """An open one. The folder must be there. Raises InUse when another process writes it."""

    def __init__(self, folder: str, source: str) -> None:
        import hashlib

        self.folder = folder
        self.source = source
        self.path = os.path.join(folder, key(source))
        self.handle = _open_locked(self.path)
        self.validator: str | None = None
        self.total: int | None = None
        self.size = 0
        self._safe = 0
        self._current = False
        self._hash = hashlib.sha256()

    def resume(self, wanted: Callable[[], bool]) -> int:
        """Take up what is there; how many bytes that are. Raises Stopped, with all kept, when no longer wanted."""
        state = self._state()
        safe = min(state.get("safe", 0), os.fstat(self.handle).st_size)
        os.truncate(self.handle, safe)
        self.validator, self.total = state.get("validator"), state.get("total")
        if not safe:
            # What was said of other bytes may only seem to be gone, and must not come back to these.
            self._write_state()
        while self.size < safe:
            if not wanted():
                raise Stopped
            data = os.pread(self.handle, min(disk.CHUNK, safe - self.size), self.size)
            if not data:
                break
            self._hash.update(data)
            self.size += len(data)
        self._safe = self.size
        self._current = True
        return self.size

    def restart(self) -> None:
        """Forget what has arrived."""
        import hashlib

        self.validator = self.total = None
        self.size = self._safe = 0
        self._hash = hashlib.sha256()
        self._current = True
        # First what is said of it, durably: it must not be believed of other bytes.
        self._write_state()
        os.truncate(self.handle, 0)

    def append(self, data: bytes) -> None:
        disk.write(self.handle, memoryview(data), self.size)
        self._hash.update(data)
        self.size += len(data)
        if self.size - self._safe >= CHECKPOINT:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make what has arrived safe to go on from."""
        os.fsync(self.handle)
        self._safe = self.size
        self._write_state()

    def _write_state(self) -> None:
        state = {
            "source": self.source,
            "validator": self.validator,
            "total": self.total,
            "safe": self._safe,
        }
        atomic.write_json(self.path + ".json", state)

    def digest(self) -> str:
        """SHA-256 of what has arrived, in hexadecimal."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Leave it for another time."""
        try:
            if self._current and self.size > self._safe:
                self.checkpoint()
        finally:
            os.close(self.handle)

    def discard(self) -> None:
        """Remove it, after it was stored under another name or found wrong."""
        try:
            disk.unlink(self.path + ".json")
            disk.unlink(self.path)
        finally:
            os.close(self.handle)

    def _state(self) -> dict[str, Any]:
        import json

        try:
            with open(self.path + ".json", "rb") as file:
                state = json.loads(file.read())
        except (FileNotFoundError, ValueError):
            return {}
        if not isinstance(state, dict) or state.get("source") != self.source:
            return {}
        good = type(state.get("safe")) is int and state["safe"] >= 0
        good = good and (state.get("validator") is None or isinstance(state["validator"], str))
        return state if good and (state.get("total") is None or type(state["total"]) is int) else {}


def key(source: str) -> str:
    """File name of a download: its source is an address, or the digest of what it is to be."""
    import hashlib

    return hashlib.sha256(source.encode()).hexdigest()


def left(folder: str) -> int:
    """Bytes of downloads that nobody is at: they count as stored, and are the first to go when room is needed."""
    return sum(os.fstat(handle).st_size for _, handle in _abandoned(folder, None))


def clear(folder: str, excess: int) -> int:
    """Remove downloads that nobody is at, the oldest first, until that gave back `excess` bytes, or less."""
    reclaimed = 0
    if excess > 0:
        for path, handle in _abandoned(folder, None):
            reclaimed += os.fstat(handle).st_size
            disk.unlink(path + ".json")
            disk.unlink(path)
            if reclaimed >= excess:
                break
    return reclaimed


def sweep(folder: str, now: float) -> int:
    """Remove what nobody has touched for long; the bytes that this gave back. `now` is in wall-clock seconds."""
    reclaimed = 0
    for path, handle in _abandoned(folder, now - STALE_SEC):
        reclaimed += os.fstat(handle).st_size
        disk.unlink(path)
    return reclaimed


def _abandoned(folder: str, before: float | None) -> Iterator[tuple[str, int]]:
    """Downloads that nobody is at, the oldest first: paths and descriptors, which are locked for one step each.

    With `before` (wall-clock seconds) everything that was last touched before that, be it a download or not.
    """
    found = []
    for name in disk.names(folder):
        path = os.path.join(folder, name)
        try:
            touched = os.stat(path).st_mtime
        except OSError:
            continue
        if touched < before if before is not None else len(name) == 64:
            found.append((touched, path))
    for _, path in sorted(found):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path, handle
        except BlockingIOError:
            pass  # somebody is at it
        finally:
            os.close(handle)


def _open_locked(path: str) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(handle)
            # Its last owner may have removed it between the two calls, or may have been killed after it had given
            # the file its place in the store: that one is never written again.
            if status.st_nlink > 1:
                disk.unlink(path)
            elif os.path.samestat(status, os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(handle)
            raise InUse(path) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
