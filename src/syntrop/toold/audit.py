# SPDX-License-Identifier: Apache-2.0
"""The audit log: one JSON object a line, each with the hash of the one before it. Plain functions and one writer.

    {"seq": 7, "time_us": …, "event": "…", …, "previous": "<hash of 6>", "hash": "<hash of this>"}

The hash is SHA-256 over the line's own object without `hash`, in canonical form, so that a line that is changed,
removed or put in breaks the chain from there on. Whoever may write the file can write a whole new chain: every
hash is in the journal too, with its own retention and, where it is forwarded, on another machine.

Files are `audit.log`, and older ones `audit.log.1` (the newest of them) and up; the chain runs on through all.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

NAME = "audit.log"
FILE_MAX = 4 << 20  # bytes after which a new file is begun
FILES_MAX = 8
GENESIS = "0" * 64
_TAIL = 1 << 20


class BrokenChain(Exception):
    """The log is not what was written: the text says where."""


def seal(entry: dict[str, Any]) -> str:
    """The hash of an entry, which must not have one yet."""
    import hashlib

    return hashlib.sha256(_canonical(entry)).hexdigest()


def _canonical(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parse(line: bytes) -> dict[str, Any]:
    """One entry, its hash checked. Raises BrokenChain."""
    try:
        entry: dict[str, Any] = json.loads(line)
        given = entry.pop("hash")
        sequence, previous = entry["seq"], entry["previous"]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise BrokenChain(f"not an entry: {line[:80]!r}") from None
    if not isinstance(sequence, int) or not isinstance(previous, str) or seal(entry) != given:
        raise BrokenChain(f"entry {sequence} was changed")
    entry["hash"] = given
    return entry


def check(lines: Iterator[bytes], *, previous: str | None = None) -> Iterator[dict[str, Any]]:
    """The entries, as long as each follows from the one before. Raises BrokenChain.

    Without `previous` the first may begin anywhere: older files are forgotten in time.
    """
    sequence = None
    for line in lines:
        entry = parse(line)
        if previous is not None and entry["previous"] != previous:
            raise BrokenChain(f"entry {entry['seq']} does not follow the one before it")
        if sequence is not None and entry["seq"] != sequence + 1:
            raise BrokenChain(f"entry {entry['seq']} follows {sequence}")
        previous, sequence = entry["hash"], entry["seq"]
        yield entry


def read(root: str) -> Iterator[dict[str, Any]]:
    """Every entry that is kept, oldest first. Raises BrokenChain and OSError."""

    def lines() -> Iterator[bytes]:
        for number in range(FILES_MAX, -1, -1):
            try:
                with open(_path(root, number), "rb") as file:
                    yield from file
            except FileNotFoundError:
                continue

    return check(lines())


class Log:
    """The writer. One at a time: toold serialises, and holds the state folder's lock."""

    __slots__ = ("_handle", "_root", "_size", "_unsafe", "previous", "sequence")

    def __init__(self, root: str) -> None:
        """Open the log, made if it is missing, and find its end. Lines that a crash damaged are taken away: nobody
        was told that they are safe. Raises BrokenChain when others are not sound, and OSError.
        """
        self._root = root
        self._handle = _open(root)
        self._size = os.fstat(self._handle).st_size
        self._unsafe = True  # whoever wrote last may not have come to sync it
        self.previous, self.sequence = GENESIS, 0
        start = max(0, self._size - _TAIL)
        tail = os.pread(self._handle, _TAIL, start)
        last, end = _end(tail, whole=start == 0)
        if end < len(tail):
            self._size = start + end
            os.ftruncate(self._handle, self._size)
        if last is None:
            try:
                with open(_path(root, 1), "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                    last = parse(file.read().rstrip(b"\n").rpartition(b"\n")[2])
            except FileNotFoundError:
                return
        self.previous, self.sequence = last["hash"], last["seq"]

    def append(self, event: str, fields: dict[str, Any], *, sync: bool) -> dict[str, Any]:
        """Add an entry; `sync` waits until it is on disk. Returns it with its hash. Raises OSError."""
        import time

        entry = {
            **fields,
            "seq": self.sequence + 1,
            "time_us": time.time_ns() // 1000,
            "event": event,
            "safe": sync,
            "previous": self.previous,
        }
        entry["hash"] = seal(entry)
        line = json.dumps(entry, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        if self._size + len(line) > FILE_MAX:
            self._rotate()
        try:
            if sync and self._unsafe:
                # A line that says it is safe is never on disk before those that it follows.
                os.fdatasync(self._handle)
            written = 0
            while written < len(line):
                written += os.write(self._handle, line[written:])
            if sync:
                os.fdatasync(self._handle)
        except OSError:
            # Half a line must not stay in the middle: the chain goes on from the last whole one.
            self._unsafe = True
            os.ftruncate(self._handle, self._size)
            raise
        self._size += len(line)
        self._unsafe = not sync
        self.previous, self.sequence = entry["hash"], entry["seq"]
        return entry

    def recent(self, since_us: int) -> list[dict[str, Any]]:
        """Entries of the present file since then, as far as its last mebibyte reaches. Raises OSError."""
        tail = os.pread(self._handle, _TAIL, max(0, self._size - _TAIL))
        found = []
        for line in reversed(tail.splitlines()):
            try:
                entry = parse(line)
            except BrokenChain:
                break  # the first line of the tail may be half of one
            if entry["time_us"] < since_us:
                break
            found.append(entry)
        return found[::-1]

    def close(self) -> None:
        os.close(self._handle)

    def _rotate(self) -> None:
        os.fsync(self._handle)
        for number in range(FILES_MAX - 1, -1, -1):
            try:
                os.rename(_path(self._root, number), _path(self._root, number + 1))
            except FileNotFoundError:
                continue
        os.close(self._handle)
        self._handle = _open(self._root)
        self._size = 0


def _end(tail: bytes, *, whole: bool) -> tuple[dict[str, Any] | None, int]:
    """The last sound entry of a tail, and where it ends. Raises BrokenChain.

    After a power loss, lines behind the last one that was synced may be missing, or hold zeros. What else is amiss
    is no crash's work: another entry in place of one, and damage before a line that was synced.
    """
    at = 0 if whole else tail.find(b"\n") + 1
    last: dict[str, Any] | None = None
    while (newline := tail.find(b"\n", at)) >= 0:
        try:
            [last] = check(iter([tail[at:newline]]), previous=None if last is None else last["hash"])
        except BrokenChain:
            break
        at = newline + 1
    for line in tail[at:].split(b"\n"):
        try:
            json.loads(line)
        except ValueError:
            continue
        if parse(line).get("safe"):
            raise BrokenChain("an entry that was synced follows one that is damaged")
    if last is None and not whole:
        raise BrokenChain("nothing sound in its last part")
    return last, at


def _path(root: str, number: int) -> str:
    return os.path.join(root, NAME if number == 0 else f"{NAME}.{number}")


def _open(root: str) -> int:
    path = _path(root, 0)
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return handle
