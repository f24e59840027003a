# SPDX-License-Identifier: Apache-2.0
"""Models as the interface tells of them, and the list of all, of which a change has only its part made anew."""

from __future__ import annotations

import _thread
import json
import os
from bisect import bisect_left

from syntrop.common.varlink import idl
from syntrop.common.varlink.wire import Fixed, encode
from syntrop.modeld import listing, naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from syntrop.modeld.catalogue import Entry
    from syntrop.modeld.listing import Kept
    from syntrop.modeld.store import Store

    Stamp = tuple[int, ...]


def row(entry: Entry) -> dict[str, Any]:
    """A `ModelEntry`."""
    return {
        "id": entry.id,
        "digest": naming.digest_id(entry.digest),
        "name": entry.name,
        "tag": entry.tag,
        "size_bytes": entry.size,
        "pinned": entry.pinned,
        "format": entry.format,
    }


class Listing:
    """The answer to `List`. Blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = _thread.allocate_lock()
        self._known: tuple[Stamp, Fixed] | None = None
        self._kept: Kept | None = None
        """What the file says, with all changes in its answer."""
        self._loose: Collection[str] = ()
        self._unkept = False

    def answer(self) -> Fixed:
        """Raises OSError."""
        with self._guard:
            before = self._store.stamp()
            if self._known is not None and self._known[0] == before:
                return self._known[1]
            kept = self._store.kept(self._kept)
            stamp = self._store.stamp()
            amid = stamp != before or (stamp[0] % 2 == 1 and self._store.changing())
            if kept is not None and (amid or kept.times == stamp[1:]):
                # Amid a change, it is no older than the call, but soon true no more.
                answer = self.revised(kept)
            else:
                answer, kept = self._made(kept), None
                self._unkept = True
            if not amid and self._store.stamp() == stamp:
                self._remember(stamp, answer, kept)
            return answer

    @property
    def is_there(self) -> bool:
        """Whether one is kept, or there is nothing to be listed."""
        return os.path.exists(self._store.listing) or not os.path.isdir(self._store.blobs)

    @property
    def overdue(self) -> bool:
        """Whether it should be kept now, so that nobody has to wait for it later."""
        return self._unkept or self._store.overdue

    def keep(self) -> None:
        """Write it anew. Raises OSError."""
        if not os.path.isdir(self._store.blobs):
            return  # nothing was ever stored
        with self._store.locked():
            stamp = self._store.stamp()
            with self._guard:
                known, kept = self._known, self._store.kept(self._kept)
                if kept is not None and kept.times == stamp[1:]:
                    answer, self._loose = self.revised(kept), kept.loose
                elif known is not None and known[0][1:] == stamp[1:] and (known[0][0] + 1) | 1 == stamp[0]:
                    answer = known[1]  # nobody changed anything since, but that we took the lock
                else:
                    answer = self._made(kept)
                self._unkept = False
                loose = self._loose
            if answer.encoded is not None:
                self._store.keep(answer.encoded, loose)

    def revised(self, kept: Kept) -> Fixed:
        """What the file says, and what of it is to be looked at again as it is now."""
        if not kept.again and self._known is not None and self._known[1].encoded is kept.answer:
            return self._known[1]
        answer = Fixed({})
        answer.encoded = self._looked_at(kept) if kept.again else kept.answer
        return answer

    # --- inside ---

    def _remember(self, stamp: Stamp, answer: Fixed, kept: Kept | None) -> None:
        self._known, self._kept = (stamp, answer), kept
        if kept is not None and answer.encoded is not None:
            kept.answer, kept.again = answer.encoded, set()

    def _looked_at(self, kept: Kept) -> bytes:
        rows = listing.split(kept.answer)
        digests = set(filter(naming.is_hex, kept.again))
        names: dict[str, str] = {}
        fresh = kept.again - digests | kept.loose
        for name in fresh:  # also what they named before
            start = f'{{"id":"{name}"'.encode()
            at = bisect_left(rows, start)
            if at < len(rows) and rows[at].startswith(start):
                digests.add(listing.digest(rows[at]))
        others = digests
        while fresh or others:
            names.update((name, self._store.named(name)) for name in fresh)
            others = {names[name] for name in fresh if names[name]} - digests | others
            digests |= others
            rows, theirs = listing.without(rows, others) if others else (rows, [])
            fresh, others = {listing.identifier(one) for one in theirs} - names.keys(), set()
        named: dict[str, list[str]] = {}
        for name, digest in names.items():
            named.setdefault(digest, []).append(name)
        entries = [entry for digest in digests for entry in self._store.look(digest, named.get(digest, ()))]
        return listing.join(rows + _encoded(entries))

    def _made(self, kept: Kept | None) -> Fixed:
        """Made of all that is there, but that a file never changes its format. It may be long."""
        if kept is not None:
            rows = listing.split(kept.answer)
            self._store.know({listing.digest(one): json.loads(one)["format"] for one in rows})
        index = self._store.index()
        self._loose = index.loose
        answer = Fixed({})
        answer.encoded = listing.join(_encoded(self._store.entries(index)))
        return answer


def _encoded(entries: Iterable[Entry]) -> list[bytes]:
    """Checked and encoded here and not in the loop."""
    interface = idl.load("io.syntrop.Model1")
    checked = interface.check(interface.methods["List"].output, {"models": list(map(row, entries))})
    return [encode(one) for one in checked["models"]]
