# SPDX-License-Identifier: Apache-2.0
"""Models as the interface tells of them, and the list of all, which is made once for as long as it is true."""

from __future__ import annotations

from syntrop.common.varlink import idl
from syntrop.common.varlink.wire import Fixed, encode
from syntrop.modeld import naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.modeld.catalogue import Entry
    from syntrop.modeld.store import Store


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
    """The answer to `List`: of this process, of the one before, or made now. Blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: tuple[tuple[int, ...], Fixed] | None = None
        self._made = False

    def answer(self) -> Fixed:
        """Raises OSError."""
        stamp = self._store.stamp()
        known = self._known
        if known is None or known[0] != stamp:
            answer = Fixed({})
            answer.encoded = self._store.kept(stamp)
            if answer.encoded is None:
                answer.encoded = self._make()
            self._known = known = stamp, answer
        return known[1]

    def keep(self) -> None:
        """Leave it to the next process, if somebody asked for it, now or before. Raises OSError."""
        if not self._made and not self._store.unlisted:
            return
        # What was changed since the last one who asked is not to be waited for by the next.
        answer = self.answer()
        if self._known is not None and answer.encoded is not None:
            self._store.keep(self._known[0], answer.encoded)

    def _make(self) -> bytes:
        """Checked and encoded here and not in the loop: it may be long."""
        self._made = True
        interface = idl.load("io.syntrop.Model1")
        parameters = {"models": [row(entry) for entry in self._store.entries()]}
        return encode({"parameters": interface.check(interface.methods["List"].output, parameters)})
