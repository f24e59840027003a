# SPDX-License-Identifier: Apache-2.0
"""Append-only files of framed records, which survive a crash at any moment.

A record is a mark, its length, its CRC-32 and its payload. What `append()` returned from is on the disk. A crash
leaves at most a torn end, in any of its forms (cut short, zeros, old blocks): it fails the mark or the checksum,
and is cut off before the next append. Damage in the middle of a file loses what it covers and nothing behind it.
"""

from __future__ import annotations

import os
import struct
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK = b"\xa5SL\x01"
_HEAD = struct.Struct("<4sII")
RECORD_MAX = 16 << 20  # bytes; a longer one is damage

_settled: set[str] = set()  # folders in which this process has seen nothing that is not safe


def frame(payload: bytes) -> bytes:
    """A record with its frame. A payload is never empty, so that zeros are no record."""
    if not 0 < len(payload) <= RECORD_MAX:
        raise ValueError(f"a record of {len(payload)} bytes")
    return _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload


def records(data: bytes) -> list[tuple[int, bytes]]:
    """Offset and payload of every whole record, skipping damage."""
    found = []
    unpack, size, crc = _HEAD.unpack_from, _HEAD.size, zlib.crc32
    at = data.find(_MARK)
    while 0 <= at <= len(data) - size:
        _, length, checksum = unpack(data, at)
        start = at + size
        payload = data[start : start + length]
        if 0 < length <= RECORD_MAX and len(payload) == length and crc(payload) == checksum:
            found.append((at, payload))
            at = start + length
        else:
            at += 1
        at = data.find(_MARK, at)
    return found


def last(data: bytes, prefix: bytes) -> bytes | None:
    """The last whole record that begins so, found by looking for it alone; None where there may be none.

    `prefix` must not be found within a record's other bytes, or no answer is given where there may be one.
    """
    at = data.rfind(prefix) - _HEAD.size
    if at < 0:
        return None
    mark, length, checksum = _HEAD.unpack_from(data, at)
    payload = data[at + _HEAD.size : at + _HEAD.size + length]
    if mark != _MARK or len(payload) != length or zlib.crc32(payload) != checksum:
        return None
    return payload


def read(path: str) -> bytes:
    """The bytes of a ledger; none where there is no file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        pieces = []
        while piece := os.read(handle, 1 << 20):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)


def read_record(path: str, offset: int) -> bytes | None:
    """The payload of the record at an offset; None when it is gone or damaged."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        head = os.pread(handle, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            return None
        mark, length, checksum = _HEAD.unpack(head)
        if mark != _MARK or not 0 < length <= RECORD_MAX:
            return None
        payload = os.pread(handle, length, offset + _HEAD.size)
        return payload if len(payload) == length and zlib.crc32(payload) == checksum else None
    finally:
        os.close(handle)


def end(data: bytes) -> int:
    """Where the last whole record ends, and the next one belongs."""
    return load(data)[1]


def load(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Every whole record with its offset, and where the last one ends."""
    found = records(data)
    return found, found[-1][0] + _HEAD.size + len(found[-1][1]) if found else 0


def append(path: str, payloads: Sequence[bytes], size: int) -> list[int]:
    """Write records durably behind the first `size` bytes of a file, whatever follows those; their offsets.

    Raises OSError, and then the file holds what it held, or a torn end that the next append cuts off.
    """
    offsets = []
    at = size
    for payload in payloads:
        offsets.append(at)
        at += _HEAD.size + len(payload)
    data = b"".join(frame(payload) for payload in payloads)
    folder = os.path.dirname(path)
    try:
        settle(folder)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fresh = os.fstat(handle).st_size == 0
            if os.fstat(handle).st_size > size:
                os.ftruncate(handle, size)
            try:
                _write(handle, data, size)
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)
        if fresh:
            sync_folder(folder)
        _settled.add(path)
    except OSError:
        _settled.discard(folder)  # what came of it is unknown
        _settled.discard(path)
        raise
    return offsets


def _write(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, at)
        view = view[count:]
        at += count


def rewrite(path: str, payloads: Sequence[bytes]) -> int:
    """Replace a ledger by these records in one step; its new size."""
    from syntrop.common import atomic

    data = b"".join(frame(payload) for payload in payloads)
    try:
        atomic.write(path, data, mode=0o600)
    except OSError:
        _settled.discard(os.path.dirname(path))
        raise
    return len(data)


def sync_folder(folder: str) -> None:
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def settle(folder: str, *, named: bool = False) -> None:
    """Make a folder of ledgers with the folders above it, and make the names seen there safe, once in a process.

    Whoever wrote there last may have been killed before it came to a sync: its records and names are seen, and
    would be built upon, but a power loss could still take them away. Records: see `settle_file`.
    `named`: something in it tells that its own name is safe.
    """
    if folder in _settled:
        return
    parent = os.path.dirname(folder)
    fresh = make_folder(folder)
    known = not fresh and (named or parent in _settled)
    if not known:
        if parent not in _settled:
            _sync(os.path.dirname(parent), os.O_RDONLY | os.O_DIRECTORY)
        _sync(parent, os.O_RDONLY | os.O_DIRECTORY)
    sync_folder(folder)
    _settled.add(folder)


def settle_file(path: str) -> None:
    """Make the records that are seen in a ledger safe, once in a process, before anything is built on them.

    An append does so too; a ledger that is only read has to be settled where something durable follows from it.
    """
    if path not in _settled:
        try:
            _sync(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        _settled.add(path)


def trust(path: str) -> None:
    """Note that what is seen of a folder or a ledger is safe: something that was written after it says so."""
    _settled.add(path)


def make_folder(folder: str) -> bool:
    """Make a folder of ours, with the folders above it that are missing, and tell whether it was missing.

    `settle` makes its name safe.
    """
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return False
    except FileNotFoundError:
        os.makedirs(folder, 0o700, exist_ok=True)
    return True
