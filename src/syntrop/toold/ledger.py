# SPDX-License-Identifier: Apache-2.0
"""Who asked for what, and what came of it: into the audit log, on disk where it matters, and into the journal."""

from __future__ import annotations

from syntrop.common import journal, loop
from syntrop.common.turn import Turn
from syntrop.toold import audit, events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


class Ledger:
    """The audit log for a service on the loop."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._log: audit.Log | None = None
        self._turn = Turn()

    async def note(
        self, event: str, message: str, message_id: str, fields: dict[str, Any], *, sync: bool, priority: int
    ) -> None:
        """Add an entry; with `sync` it is on disk on return. Raises OSError and BrokenChain: then stop."""
        entry = await self._alone(lambda log: log.append(event, fields, sync=sync))
        native = {f"TOOL_{name.upper()}": value for name, value in fields.items() if value is not None}
        journal.log(
            priority, message, message_id=message_id, AUDIT_SEQ=entry["seq"], AUDIT_HASH=entry["hash"], **native
        )

    async def recent(self, since_us: int) -> list[dict[str, Any]]:
        """Entries since a time, for the rates. Raises OSError and BrokenChain."""
        return await self._alone(lambda log: log.recent(since_us))

    async def _alone(self, work: Callable[[audit.Log], T]) -> T:
        """In a thread, and one after the other, since an entry holds its forerunner's digest."""

        async def run() -> T:
            if self._log is None:
                self._log = await loop.thread(self._open)
            return await loop.thread(work, self._log)

        return await self._turn.to_the_end(run, "audit log")

    def _open(self) -> audit.Log:
        try:
            return audit.Log(self._root)
        except audit.BrokenChain as error:
            journal.log(journal.CRIT, f"The audit log was tampered with: {error}", message_id=events.AUDIT_BROKEN)
            raise
