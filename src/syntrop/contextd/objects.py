# SPDX-License-Identifier: Apache-2.0
"""Contents by their SHA-256, compressed, in 64 packs: what files were before they changed.

    objects/<first 6 bits of the digest, 2 hex digits>.pack

A pack's record is the digest (32 bytes) and the deflated content. Packs are rewritten only by `keep_only()`, in
one step each.
"""

from __future__ import annotations

import os
import zlib
from array import array

from syntrop.contextd import ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SHARDS = 64
_PREFIX = 16  # bytes of a digest that the index in memory goes by; the whole one is compared when it is read


class _Index:
    """Where the contents of one pack are: 24 bytes each, looked up by a search of C's own."""

    __slots__ = ("_offsets", "_prefixes", "size")

    def __init__(self, data: bytes) -> None:
        self._prefixes = bytearray()
        self._offsets = array("Q")
        found, self.size = ledger.load(data)
        for offset, payload in found:
            self.add(payload[:32], offset)

    def add(self, digest: bytes, offset: int) -> None:
        self._prefixes += digest[:_PREFIX]
        self._offsets.append(offset)

    def find(self, digest: bytes) -> int | None:
        at = self._prefixes.find(digest[:_PREFIX])
        while at >= 0 and at % _PREFIX:
            at = self._prefixes.find(digest[:_PREFIX], at + 1)
        return None if at < 0 else self._offsets[at // _PREFIX]


class Objects:
    """The packs below a folder. Not to be used by two threads at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._indexes: dict[int, _Index] = {}

    def put(self, contents: Iterable[bytes]) -> list[str]:
        """Keep contents durably; their digests in hexadecimal, in order."""
        from syntrop.common.digests import sha256

        digests = []
        fresh: dict[int, dict[bytes, bytes]] = {}
        for content in contents:
            digest = sha256(content).digest()
            digests.append(digest.hex())
            shard = digest[0] % SHARDS
            if self._index(shard).find(digest) is None and digest not in fresh.get(shard, {}):
                fresh.setdefault(shard, {})[digest] = digest + zlib.compress(content, 6)
        if digests:
            ledger.settle(self._folder)
        for shard in {int(digest[:2], 16) % SHARDS for digest in digests} - fresh.keys():
            ledger.settle_file(self._path(shard))  # what is there already is relied upon from now on
        for shard, found in fresh.items():
            index = self._indexes.pop(shard)  # until the append has worked, what is there is unknown
            payloads = list(found.values())
            offsets = ledger.append(self._path(shard), payloads, index.size)
            for digest, offset in zip(found, offsets, strict=True):
                index.add(digest, offset)
            index.size = offsets[-1] + len(ledger.frame(payloads[-1]))
            self._indexes[shard] = index
        return digests

    def get(self, digest: str) -> bytes | None:
        """A content; None when it is not kept any more, or damaged."""
        from syntrop.common.digests import sha256

        raw = bytes.fromhex(digest)
        shard = raw[0] % SHARDS
        offset = self._index(shard).find(raw)
        if offset is None:
            return None
        payload = ledger.read_record(self._path(shard), offset)
        if payload is None or payload[:32] != raw:
            return None
        try:
            content = zlib.decompress(payload[32:])
        except zlib.error:
            return None
        return content if sha256(content).digest() == raw else None

    def size(self) -> int:
        """Bytes on the disk."""
        total = 0
        for shard in range(SHARDS):
            try:
                total += os.stat(self._path(shard)).st_size
            except FileNotFoundError:
                pass
        return total

    def keep_only(self, digests: set[bytes]) -> int:
        """Forget all contents but these; the bytes given back. A pack with little to forget is left alone."""
        reclaimed = 0
        for shard in range(SHARDS):
            data = ledger.read(self._path(shard))
            kept = [payload for _, payload in ledger.records(data) if payload[:32] in digests]
            wanted = sum(len(payload) + 12 for payload in kept)
            if len(data) - wanted > len(data) // 4:
                self._indexes.pop(shard, None)
                ledger.rewrite(self._path(shard), kept)
                reclaimed += len(data) - wanted
        return reclaimed

    def _path(self, shard: int) -> str:
        return os.path.join(self._folder, f"{shard:02x}.pack")

    def _index(self, shard: int) -> _Index:
        found = self._indexes.get(shard)
        if found is None:
            found = self._indexes[shard] = _Index(ledger.read(self._path(shard)))
        return found
