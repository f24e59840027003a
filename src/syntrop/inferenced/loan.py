# SPDX-License-Identifier: Apache-2.0
"""A lease for the time of one call of the engine, which is broken off when the lease is wanted back.

The memory is the engine's, so that to freeze the caller would free none of it. Whoever wants it asks us: we hang
up on the engine, which frees the cache of the call within one step, and then the lease ends.
"""

from __future__ import annotations

from syntrop.common import cgroup, loop
from syntrop.inferenced import admission
from syntrop.inferenced.choice import choose
from syntrop.inferenced.lease import Lease, Slice, State
from syntrop.inferenced.tier import Tier, of_group
from syntrop.inferenced.watch import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeVar

    from syntrop.common.peer import Peer
    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.watch import Event

    T = TypeVar("T")

_ENDS = {"released": "the lease of this call has ended", "expired": "the lease of this call has run out"}


class Lost(Exception):
    """The lease of a call is no more; the text says why."""


class Loan:
    """A lease that was granted for one call. `lost` says why it is wanted back; empty while it holds."""

    def __init__(self, broker: Broker, lease: Lease) -> None:
        self.lease = lease
        self.lost = ""
        self.hang_up: Callable[[], Awaitable[None]] | None = None
        """Ends what the lease is for; called once, when it is lost."""
        self._broker = broker
        self._limit: loop.deadline | None = None
        self._watcher = Watcher(lease.id, 0, "", lambda _: True)
        broker.watchers.add(self._watcher)
        self._listening = loop.spawn(self._listen(), f"lease {lease.id} of a call")

    async def within(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do one thing that needs the lease. Raises Lost as soon as it is lost, and what the work raises."""
        if self.lost:
            raise Lost(self.lost)
        try:
            with loop.deadline(None) as self._limit:
                return await work()
        except TimeoutError:
            if self.lost:
                raise Lost(self.lost) from None
            raise
        finally:
            self._limit = None

    def close(self) -> None:
        """The call has ended: give the lease back."""
        self._broker.watchers.remove(self._watcher)
        self._listening.cancel()
        self._end()

    def _end(self) -> None:
        if self.lease.id in self._broker.table.leases:
            self._broker.arbiter.end(self.lease, State.RELEASED, self.lost or "its call has ended")

    async def _listen(self) -> None:
        while not self.lost:
            event = await self._watcher.queue.get()
            if event is None:
                return  # the daemon stops, and lets calls end before
            self.lost = why_lost(event)
        if self._limit is not None:
            self._limit.expire()
        if self.hang_up is not None:
            await self.hang_up()
        self._end()


def why_lost(event: Event) -> str:
    """Why a call cannot go on after an event of its lease; empty where it can.

    A request to spill has no deadline, and a call has nothing that it could spill. A caller that stands still is
    booked by what it uses itself, while what its call uses is the engine's.
    """
    kind, reason = event["kind"], event["reason"]
    if kind == "yield_requested":
        return "" if event["deadline_ms"] is None else reason or "its memory is wanted at a higher priority"
    if kind == "frozen":
        return "its caller stands still"
    if kind == "revoked":
        return reason or "the lease of this call was taken back"
    return _ENDS.get(kind, "")


def tier_of(pid: int, slices: Mapping[str, Tier], lowered: Tier | None = None) -> Tier:
    """The tier of a process's calls: what its slices stand for, else Interactive, and never more than that; a call
    may be `lowered`."""
    try:
        found = of_group(cgroup.of_pid(pid).path, slices)
    except cgroup.CgroupError:
        found = None
    tier = Tier.INTERACTIVE if found is None else min(found, Tier.INTERACTIVE)
    return tier if lowered is None else min(tier, lowered)


async def borrow(
    broker: Broker, who: Peer, tier: Tier, size: int, *, plane: str | None, kind: str, wait: float
) -> Loan:
    """A lease for a call of the process at the other end of a socket: on `plane`, else on the best of its kind.

    Raises VarlinkError, as AcquireLease tells its refusals.
    """
    found = who.identity() if who.known else None
    if found is None:
        raise admission.invalid("pid")
    admission.admit(broker, tier, who.uid, size)
    name = await choose(broker, tier, size, plane, kind)
    part = Slice(name, broker.topology.memory(name), size)
    # Bound: after a crash of ours the call is no more.
    lease = Lease(admission.fresh_id(), tier, broker.known(who.uid, found[0], found[1]), (part,), 0, bound=True)
    await admission.grant(broker, lease, wait, who.pid)
    return Loan(broker, lease)
