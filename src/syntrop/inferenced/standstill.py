# SPDX-License-Identifier: Apache-2.0
"""Who stands still, and for what: targets are frozen, squeezed, and thawed when no reason is left.

A target stands still for causes: leases, clients that were granted nothing, an operator. When the last of them is
over it goes on, as soon as there is room for what its leases were granted; the latest frozen goes on first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from syntrop.common import journal, loop
from syntrop.inferenced.lease import State
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator
    from typing import Any, Protocol

    from syntrop.inferenced.crowd import Crowd
    from syntrop.inferenced.lease import Lease
    from syntrop.inferenced.table import Claim, Table

    class Gauge(Protocol):
        """What the kernel tells of memory."""

        def refresh(self, planes: Iterable[str], *, exact: bool) -> Coroutine[Any, Any, None]:
            """Look at these planes' memory and `Table.lend()` what there is; `exact`: at holders' use too."""

        async def residents(self, lease: Lease, *, exact: bool = True) -> list[int | None]:
            """Bytes that the holder has in use of each slice; None where the kernel does not tell. Not `exact`: as
            of the last look, if there was one."""

        def pushes(self, lease: Lease) -> bool:
            """Whether the kernel could be had to take host memory from the holder while it is frozen."""

        async def push_out(self, lease: Lease, size: int, seconds: float) -> None:
            """Have the kernel reclaim about `size` bytes from a frozen holder; `residents` tells the outcome.

            Raises FreezeError if that holder runs now, and could not be stopped again.
            """

    class Freezer(Protocol):
        """Stops and continues units and control groups, and keeps a record of it that outlives this process."""

        def check(self, target: str) -> None:
            """Raises FreezeError if it may not be frozen."""

        def expect(self, target: str) -> None:
            """It may have to be frozen soon: what that takes is made ready meanwhile."""

        async def freeze(self, target: str, cause: str, seconds: float) -> None:
            """Return when all of its processes stand still. Raises FreezeError; then they run."""

        async def thaw(self, target: str, seconds: float) -> None:
            """Return when they run; a target that is gone is no error. Raises FreezeError."""


class FreezeError(Exception):
    """These processes may not be frozen, or could not be in time."""

    def __init__(self, reason: str, unit: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unit = unit


@dataclass(slots=True, eq=False)
class Standstill:
    """A frozen target: whose leases it holds up, and for which leases (or the operator) it stands still."""

    target: str
    leases: dict[str, Lease] = field(default_factory=dict)
    causes: set[str] = field(default_factory=set)

    def held(self) -> list[Lease]:
        """Leases whose memory it takes to go on: not those that had given it up before."""
        return [one for one in self.leases.values() if one.state is State.FROZEN]


class Standstills:
    """All that is frozen, in the order of freezing. Whoever waits in `crowd` is woken by what changes here."""

    def __init__(
        self, table: Table, gauge: Gauge, freezer: Freezer, crowd: Crowd, freeze_sec: float, push_out_sec: float
    ) -> None:
        self._table = table
        self._gauge = gauge
        self._freezer = freezer
        self._crowd = crowd
        self._freeze_sec = freeze_sec
        self._push_out_sec = push_out_sec
        self._frozen: dict[str, Standstill] = {}
        self._moving: set[str] = set()  # targets that are being frozen or thawed right now
        self._settling: loop.Task[None] | None = None
        self._unsettled = False
        self._thaw_claims: dict[str, Claim] = {}

    def __len__(self) -> int:
        return len(self._frozen)

    def __iter__(self) -> Iterator[Standstill]:
        return iter(list(self._frozen.values()))

    def get(self, target: str) -> Standstill | None:
        return self._frozen.get(target)

    def of_lease(self, lease_id: str) -> Standstill | None:
        """What holds a lease up."""
        return next((one for one in self._frozen.values() if lease_id in one.leases), None)

    def adopt(self, target: str, leases: Iterable[Lease], causes: Iterable[str]) -> None:
        """What was frozen before a restart: it goes on as soon as none of its causes is left."""
        self._frozen[target] = Standstill(target, {one.id: one for one in leases}, set(causes))
        self.wake()

    def wake(self) -> None:
        """Something changed: let those who wait look again, and those go on who have no reason to stand still."""
        self._crowd.wake()
        self._unsettled = True
        if self._settling is None and any(not one.causes or not one.leases for one in self._frozen.values()):
            self._settling = loop.spawn(self._settle(), "thaw what has no reason to stand still")

    # --- stopping ----------------------------------------------------------------------------------------

    async def freeze(self, target: str, cause: str, reason: str) -> None:
        """Freeze a target and book what its leases then really use. Raises FreezeError."""
        await self.settled(target)
        standstill = self._frozen.get(target)
        self._moving.add(target)  # until all is booked: who has no lease yet would be thawed for having none
        try:
            if standstill is None:
                standstill = Standstill(target)
                self._frozen[target] = standstill
                try:
                    await self._freezer.freeze(target, cause, self._freeze_sec)
                except BaseException:
                    del self._frozen[target]
                    raise
            standstill.causes.add(cause)
            try:
                for one in self._table.of_target(target):
                    residents = await self._gauge.residents(one)
                    if one.id in self._table.leases and one.state in (State.ACTIVE, State.PREEMPTING):
                        self._table.freeze(one, monotonic(), residents, reason)
                    if one.id in self._table.leases:
                        standstill.leases[one.id] = one
            except BaseException:
                standstill.causes.discard(cause)
                raise
        finally:
            self._moving.discard(target)
            self.wake()

    async def push_out(self, target: str, lease: Lease, short: int) -> None:
        """Have a frozen holder's memory reclaimed, and book what is left. It may run for a moment meanwhile."""
        await self.settled(target)
        self._moving.add(target)
        try:
            await self._gauge.push_out(lease, short, self._push_out_sec)
        except FreezeError as error:
            journal.error(f"{target} could not be stopped again: {error.reason}")
            standstill = self._frozen.get(target)
            for one in list(standstill.leases.values()) if standstill is not None else ():
                why = "its holder could not be stopped again while its memory was lent"
                self._table.end(one, State.REVOKED, why)
                self.ended(one.id)
        finally:
            self._moving.discard(target)
            self.wake()
        residents = await self._gauge.residents(lease)
        if lease.state is State.FROZEN:
            self._table.measured(lease, residents)

    async def settled(self, target: str) -> None:
        """Wait until nobody freezes or thaws it."""
        while target in self._moving:
            await self._crowd.changed(monotonic() + self._freeze_sec)

    # --- letting go --------------------------------------------------------------------------------------

    def over(self, cause: str) -> None:
        """Nobody needs to stand still for it any more. The caller wakes."""
        for standstill in self._frozen.values():
            standstill.causes.discard(cause)

    def ended(self, lease_id: str) -> None:
        """A lease has ended: nobody stands still for it, and it is held up no more. The caller wakes."""
        self.over(lease_id)
        for standstill in self._frozen.values():
            standstill.leases.pop(lease_id, None)

    def undo(self, targets: list[str], cause: str) -> None:
        """Targets were frozen for a cause in vain."""
        for target in targets:
            standstill = self._frozen.get(target)
            if standstill is not None:
                standstill.causes.discard(cause)
        if targets:  # else nothing has changed: whoever failed would wake itself, again and again
            self.wake()

    async def thaw(self, standstill: Standstill, reason: str) -> None:
        """Let a target go on; its leases are booked whole. What fails is tried again."""
        target = standstill.target
        waiting = self._thaw_claims.pop(target, None)
        if waiting is not None:
            self._table.withdraw(waiting)
        # What it gets back is kept for it while the manager works.
        claim = self._table.claim(Tier.EMERGENCY, _missing(standstill.held()), first=True)
        self._moving.add(target)
        try:
            await self._freezer.thaw(target, self._freeze_sec)
        except FreezeError as error:
            journal.error(f"{target} could not be thawed, trying again: {error.reason}")
            loop.call_later(1.0, self.wake)
            return
        finally:
            self._moving.discard(target)
            self._table.withdraw(claim)
        self._frozen.pop(target, None)
        for one in list(standstill.leases.values()):
            if one.id in self._table.leases and one.state is State.FROZEN:
                self._table.thaw_anyway(one, monotonic(), reason)
        self.wake()

    async def _settle(self) -> None:
        """Thaw, latest first, what has no cause left and whose memory is there again."""
        try:
            while self._unsettled:
                self._unsettled = False
                for standstill in reversed(list(self._frozen.values())):
                    target = standstill.target
                    if (standstill.causes and standstill.leases) or target in self._moving:
                        continue
                    held = standstill.held()
                    if self._table.can_thaw(held):
                        await self.thaw(standstill, "")
                    elif target in self._thaw_claims:
                        self._thaw_claims[target].needs = _missing(held)
                    else:
                        # Its room was lent while it stood still: it is the next to get some.
                        tier = max(one.tier for one in held)
                        self._thaw_claims[target] = self._table.claim(tier, _missing(held))
        finally:
            self._settling = None


def _missing(leases: Iterable[Lease]) -> dict[str, int]:
    """Bytes by plane of memory that these frozen leases lack to go on."""
    missing: dict[str, int] = {}
    for lease in leases:
        for part in lease.slices:
            missing[part.memory] = missing.get(part.memory, 0) + part.size - part.charge(lease.state)
    return {plane: size for plane, size in missing.items() if size > 0}
