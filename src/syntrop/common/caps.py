# SPDX-License-Identifier: Apache-2.0
"""How many connections a server holds at once, in all and for each user."""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, peer

_QUIET = 10.0  # seconds between two lines about refusals: who is at a cap could fill the journal with them


class Caps:
    """Counts connections by uid. Peers that the kernel does not name (TCP) share the total only."""

    __slots__ = ("_by_uid", "_logged", "_per_uid", "_refused", "_total", "held")

    def __init__(self, total: int, per_uid: int) -> None:
        self._total = total
        self._per_uid = per_uid
        self.held = 0
        """Connections that have a place."""
        self._by_uid: dict[int, int] = {}
        self._refused = 0
        self._logged = -_QUIET

    def admit(self, uid: int) -> bool:
        """Take a place for a connection of `uid`, for `release()` to give back; False where a cap forbids it."""
        mine = self._by_uid.get(uid, 0)
        if self.held >= self._total or (uid != peer.UNKNOWN and mine >= self._per_uid):
            self._refuse(uid, mine)
            return False
        self.held += 1
        self._by_uid[uid] = mine + 1
        return True

    def release(self, uid: int) -> None:
        self.held -= 1
        left = self._by_uid[uid] - 1
        if left:
            self._by_uid[uid] = left
        else:
            del self._by_uid[uid]

    def _refuse(self, uid: int, mine: int) -> None:
        self._refused += 1
        now = monotonic()
        if now - self._logged >= _QUIET:
            journal.warning(
                f"Refused {self._refused} connections, the last of uid {uid}: it has {mine} of {self._per_uid}, "
                f"all have {self.held} of {self._total}"
            )
            self._logged = now
            self._refused = 0
