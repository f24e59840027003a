# SPDX-License-Identifier: Apache-2.0
"""When the answer to `List` is written anew: while nobody waits for it."""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon
    from syntrop.modeld.rows import Listing

RETRY_SEC = 60.0  # after an attempt that failed


class Keeping:
    """Owns the task that writes, of which there is one at a time."""

    def __init__(self, daemon: Daemon, listing: Listing) -> None:
        self._daemon = daemon
        self._listing = listing
        self._task: loop.Task[None] | None = None
        self._failed_at = -RETRY_SEC
        daemon.on_stop(self._stop)

    def soon(self) -> None:
        """Begin, if it is due."""
        idle = self._task is None or self._task.done
        if self._listing.overdue and idle and monotonic() - self._failed_at >= RETRY_SEC:
            self._task = loop.spawn(self._run(), "keep the list of models")

    async def now(self) -> None:
        """If it is due, and wait until it is done."""
        self.soon()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        with self._daemon.busy():
            await self._write()

    async def _stop(self) -> None:
        if self._listing.overdue or not self._listing.is_there:
            await self._write()

    async def _write(self) -> None:
        try:
            await loop.thread(self._listing.keep)
        except OSError as error:
            journal.info(f"The list of models cannot be kept: {error}")
        if self._listing.overdue:
            self._failed_at = monotonic()
