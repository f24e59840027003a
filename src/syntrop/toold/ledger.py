# SPDX-License-Identifier: Apache-2.0
"""Who asked for what, and what came of it: into the audit log, on disk where it matters, and into the journal."""

from __future__ import annotations

from syntrop.common import journal, loop
from syntrop.toold import audit, events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lock:
    """One holder at a time, in the order of asking."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._held = False
        self._waiting: list[loop.Event] = []

    async def __aenter__(self) -> None:
        while self._held:
            turn = loop.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._held = False
        if self._waiting:
            self._waiting.pop(0).set()


class Ledger:
    """The audit log for a service on the loop."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._log: audit.Log | None = None
        self._lock = Lock()

    async def note(
        self, event: str, message: str, message_id: str, fields: dict[str, Any], *, sync: bool, priority: int
    ) -> None:
        """Add an entry; with `sync` it is on disk on return. Raises OSError and BrokenChain: then stop."""
        async with self._lock:
            if self._log is None:
                self._log = await loop.thread(self._open)
            entry = await loop.thread(lambda log: log.append(event, fields, sync=sync), self._log)
        native = {f"TOOL_{name.upper()}": value for name, value in fields.items() if value is not None}
        journal.log(
            priority, message, message_id=message_id, AUDIT_SEQ=entry["seq"], AUDIT_HASH=entry["hash"], **native
        )

    async def recent(self, since_us: int) -> list[dict[str, Any]]:
        """Entries since a time, for the rates. Raises OSError and BrokenChain."""
        async with self._lock:
            if self._log is None:
                self._log = await loop.thread(self._open)
            return await loop.thread(self._log.recent, since_us)

    def _open(self) -> audit.Log:
        try:
            return audit.Log(self._root)
        except audit.BrokenChain as error:
            journal.log(journal.CRIT, f"The audit log was tampered with: {error}", message_id=events.AUDIT_BROKEN)
            raise
