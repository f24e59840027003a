# SPDX-License-Identifier: Apache-2.0
"""What every watched file was when it was last looked at: 128 ledgers, of which only those asked for are read.

    baseline/<CRC-32 of the folder's path, low 7 bits, 2 hex digits>.log

A record is one file's path, a NUL, and its row (nothing when it is gone); the last one of a path holds. All files
of one folder are in one ledger, so a folder is compared without reading the others.
"""

from __future__ import annotations

import json
import os
import zlib

from syntrop.contextd import ledger
from syntrop.contextd.snapshot import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHARDS = 128
_CACHED = 12  # ledgers in memory: a unit's files are in about half of that


class _Shard:
    """Names and rows stay as they are on the disk until somebody asks for one: most never are."""

    __slots__ = ("folders", "live", "records", "size")

    def __init__(self, data: bytes = b"") -> None:
        self.folders: dict[bytes, dict[bytes, bytes]] = {}
        self.live = 0
        self.records = 0
        found, self.size = ledger.load(data)
        for _, payload in found:
            self.apply(payload)

    def apply(self, payload: bytes) -> None:
        path, _, row = payload.partition(b"\0")
        folder, _, name = path.rpartition(b"/")
        rows = self.folders.get(folder)
        if rows is None:
            rows = self.folders[folder] = {}
        if row:
            self.live += name not in rows
            rows[name] = row
        elif rows.pop(name, None) is not None:
            self.live -= 1
        if not rows:
            del self.folders[folder]
        self.records += 1


class Baseline:
    """The ledgers below a folder. Not to be used by two threads at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._shards: dict[int, _Shard] = {}

    def get(self, path: str) -> Snapshot | None:
        folder, name = os.path.split(path)
        number = shard_of(folder)
        if number not in self._shards:
            # To find one row is not worth taking the ledger apart.
            data = ledger.read(self._path(number))
            row = os.fsencode(path) + b"\0"
            if row not in data:
                return None
            found = ledger.last(data, row)
            if found is not None:
                return _decode(found[len(row) :])
        raw = self._rows(folder).get(os.fsencode(name))
        return None if raw is None else _decode(raw)

    def folder(self, path: str) -> dict[str, Snapshot]:
        """Names and rows of what a folder held."""
        found = {}
        for name, raw in self._rows(path).items():
            row = _decode(raw)
            if row is not None:
                found[os.fsdecode(name)] = row
        return found

    def folders(self) -> Iterator[str]:
        """Every folder that held anything, ledger by ledger."""
        for number in range(SHARDS):
            for folder in list(self._shard(number).folders):
                yield os.fsdecode(folder) or "/"

    def contents(self) -> set[bytes]:
        """Digests of all kept contents that rows name."""
        found = set()
        for number in range(SHARDS):
            for rows in self._shard(number).folders.values():
                for raw in rows.values():
                    row = _decode(raw)
                    if row is not None and row.content is not None:
                        found.add(bytes.fromhex(row.content))
        return found

    def put(self, changes: Mapping[str, Snapshot | None]) -> None:
        """Note what files are now, durably; None for one that is gone."""
        by_shard: dict[int, list[str]] = {}
        for path in changes:
            by_shard.setdefault(shard_of(os.path.dirname(path)), []).append(path)
        for number, names in by_shard.items():
            shard = self._shard(number)
            del self._shards[number]  # until the append has worked, what is there is unknown
            payloads = [_encode(path, changes[path]) for path in names]
            offsets = ledger.append(self._path(number), payloads, shard.size)
            shard.size = offsets[-1] + len(ledger.frame(payloads[-1]))
            for payload in payloads:
                shard.apply(payload)
            if shard.records > 2 * shard.live + 256:
                self._compact(number, shard)
            self._shards[number] = shard

    def settle(self) -> None:
        """Make everything that is seen safe: something is to be noted that follows from it."""
        ledger.settle(self._folder)
        for number in range(SHARDS):
            ledger.settle_file(self._path(number))

    def clear(self) -> None:
        """Forget everything."""
        self._shards = {}
        for number in range(SHARDS):
            try:
                os.unlink(self._path(number))
            except FileNotFoundError:
                pass
        if os.path.isdir(self._folder):
            ledger.sync_folder(self._folder)

    def _compact(self, number: int, shard: _Shard) -> None:
        payloads = [
            folder + b"/" + name + b"\0" + row
            for folder, rows in shard.folders.items()
            for name, row in rows.items()
        ]
        shard.size = ledger.rewrite(self._path(number), payloads)
        shard.records = len(payloads)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:02x}.log")

    def _rows(self, folder: str) -> Mapping[bytes, bytes]:
        """What is known of a folder's files. A ledger without its name is not taken apart to see that."""
        number = shard_of(folder)
        raw = os.fsencode(folder.rstrip("/"))
        if number in self._shards:
            return self._shard(number).folders.get(raw, {})
        data = ledger.read(self._path(number))
        if raw + b"/" not in data:
            return {}
        return self._shard(number, data).folders.get(raw, {})

    def _shard(self, number: int, data: bytes | None = None) -> _Shard:
        shard = self._shards.pop(number, None)
        if shard is None:
            shard = _Shard(ledger.read(self._path(number)) if data is None else data)
            while len(self._shards) >= _CACHED:
                del self._shards[next(iter(self._shards))]
        self._shards[number] = shard  # the one used last goes last
        return shard


def shard_of(folder: str) -> int:
    """Number of the ledger that a folder's files are in."""
    return zlib.crc32(os.fsencode(folder)) % SHARDS


def _encode(path: str, row: Snapshot | None) -> bytes:
    values = b"" if row is None else json.dumps(row.values(), separators=(",", ":")).encode("ascii")
    return os.fsencode(path) + b"\0" + values


def _decode(row: bytes) -> Snapshot | None:
    try:
        return Snapshot(*json.loads(row))
    except (ValueError, TypeError):
        return None  # of another version: the file is looked at anew
