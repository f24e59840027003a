# SPDX-License-Identifier: Apache-2.0
"""What happens to leases, told to those who watch; and holders asked by them, or by a signal."""

from __future__ import annotations

import os
import signal

from syntrop.common import journal, loop
from syntrop.inferenced import holders, targets
from syntrop.inferenced.standstill import FreezeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final

    from syntrop.inferenced.freezer import Manager
    from syntrop.inferenced.lease import Lease

    Event = dict[str, Any]
    """`LeaseEvent` of the interface."""

BEHIND_MAX: Final = 1024
"""Events that a slow watcher may be behind."""
SIGNALS: Final = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGCONT", "SIGTERM")
"""Signals that a lease may name. None that could not be meant as a question."""

_ANSWERS: Final = frozenset(("spared", "yielded", "released", "revoked", "expired"))
"""Events after which a holder is no longer asked for memory."""


class Watcher:
    """One who watches: events of one lease, or of all that `sees` allows. `overrun` once it was too slow."""

    __slots__ = ("lease_id", "overrun", "pid", "queue", "sees", "unit")

    def __init__(self, lease_id: str | None, pid: int, unit: str, sees: Callable[[Lease], bool]) -> None:
        self.lease_id = lease_id
        self.pid = pid
        self.unit = unit
        self.sees = sees
        self.queue: loop.Queue[Event | None] = loop.Queue(BEHIND_MAX)
        """None at the end, when the daemon stops."""
        self.overrun = False

    def holds(self, lease: Lease) -> bool:
        """Whether it is the lease's holder that watches here, and so can be asked."""
        if self.lease_id is not None:
            return self.lease_id == lease.id
        holder = lease.holder
        return (holder.pid is not None and holder.pid == self.pid) or (
            holder.unit is not None and holder.unit == self.unit
        )


class Watchers:
    """All who watch. Also `arbiter.Asker`."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._all: set[Watcher] = set()
        self._asked: dict[str, int] = {}  # bytes that leases are asked to shrink to
        self._ended = False

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Watcher]:
        return iter(list(self._all))

    def add(self, watcher: Watcher) -> None:
        self._all.add(watcher)
        if self._ended:
            self.end()

    def end(self) -> None:
        """The daemon stops: who watches gets what has happened, and a last reply."""
        self._ended = True
        for watcher in list(self._all):
            self._put(watcher, None)

    def asked(self, lease: Lease) -> int | None:
        """Bytes that the holder was asked to shrink to, and has not."""
        return self._asked.get(lease.id)

    def remove(self, watcher: Watcher) -> None:
        self._all.discard(watcher)

    def tell(
        self,
        kind: str,
        lease: Lease,
        reason: str | None = None,
        size: int | None = None,
        deadline_ms: int | None = None,
    ) -> None:
        """Tell everybody whom it concerns."""
        if kind in _ANSWERS or (kind == "resized" and lease.size <= self._asked.get(lease.id, 0)):
            self._asked.pop(lease.id, None)
        if not self._all:
            return
        event: Event = {
            "lease_id": lease.id,
            "kind": kind,
            "memory_bytes": size,
            "deadline_ms": deadline_ms,
            "reason": reason or None,
        }
        for watcher in list(self._all):
            if watcher.lease_id not in (None, lease.id) or not watcher.sees(lease):
                continue
            self._put(watcher, event)

    def _put(self, watcher: Watcher, event: Event | None) -> None:
        try:
            watcher.queue.put_nowait(event)
        except loop.QueueFull:
            watcher.overrun = True
            self._all.discard(watcher)

    # --- arbiter.Asker -----------------------------------------------------------------------------------

    def reaches(self, lease: Lease) -> bool:
        return lease.signal is not None or any(watcher.holds(lease) for watcher in self._all)

    def ask(self, lease: Lease, size: int, deadline_ms: int | None, reason: str) -> None:
        self._asked[lease.id] = size
        self.tell("yield_requested", lease, reason, size, deadline_ms)
        if lease.signal is not None:
            loop.spawn(self._signal(lease, lease.signal), f"ask the holder of {lease.id}", eager=True)

    async def _signal(self, lease: Lease, name: str) -> None:
        holder = lease.holder
        if holder.pid is not None and holder.start is not None:
            try:
                fd = holders.open_process(holder.pid, holder.start)
            except (holders.Gone, OSError):
                return  # its lease ends in a moment
            try:
                signal.pidfd_send_signal(fd, signal.Signals[name])
                return
            except PermissionError:
                pass  # another user's: the manager may
            except OSError:
                return
            finally:
                os.close(fd)
        unit = holder.unit or holder.target
        if not unit or targets.is_group(unit):
            journal.notice(f"The holder of lease {lease.id} cannot be sent {name}")
            return
        try:
            await self._manager.call("KillUnit", "ssi", [unit, "main", int(signal.Signals[name])], 1.0)
        except FreezeError as error:
            journal.notice(f"{unit} could not be sent {name}: {error.reason}")
