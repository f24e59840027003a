# SPDX-License-Identifier: Apache-2.0
"""Who gets what: grants, and the two ways to take memory back from the weaker.

First the holders are asked, and have a deadline; then those who gave too little are frozen, and what the kernel
reports that they do not use is lent. What a refused or abandoned request has begun is undone in reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from syntrop.common import journal, loop
from syntrop.inferenced.crowd import Crowd
from syntrop.inferenced.lease import NoRoom, State, WrongState, needed
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from typing import Any, Protocol

    from syntrop.inferenced.lease import Lease
    from syntrop.inferenced.table import Claim, Table

    class Gauge(Protocol):
        """What the kernel tells of memory."""

        def refresh(self, planes: Iterable[str], *, exact: bool) -> Coroutine[Any, Any, None]:
            """Look at these planes' memory and `Table.lend()` what there is; `exact`: at holders' use too."""

        async def residents(self, lease: Lease) -> list[int | None]:
            """Bytes that the holder has in use of each slice; None where the kernel does not tell."""

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

        async def freeze(self, target: str, cause: str, seconds: float) -> None:
            """Return when all of its processes stand still. Raises FreezeError; then they run."""

        async def thaw(self, target: str, seconds: float) -> None:
            """Return when they run; a target that is gone is no error. Raises FreezeError."""

    class Asker(Protocol):
        """Tells holders that their memory is wanted."""

        def reaches(self, lease: Lease) -> bool:
            """Whether anybody listens: a watcher, or a signal that the lease named."""

        def ask(self, lease: Lease, size: int, deadline_ms: int | None, reason: str) -> None:
            """Ask the holder to shrink to `size` bytes; without a deadline nothing follows if it does not."""

    Barred = Callable[[], frozenset[str]]
    """Tells targets that must not be frozen; asked only when something is to be frozen."""


class FreezeError(Exception):
    """These processes may not be frozen, or could not be in time."""

    def __init__(self, reason: str, unit: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unit = unit


class Busy(Exception):
    """Too many requests wait already."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and numbers; see the settings."""

    yield_sec: float = 0.25
    freeze_sec: float = 2.0
    push_out_sec: float = 2.0
    waiting_max: int = 4096


@dataclass(slots=True, eq=False)
class Standstill:
    """A frozen target: whose leases it holds up, and for which leases (or the operator) it stands still."""

    target: str
    leases: dict[str, Lease] = field(default_factory=dict)
    causes: set[str] = field(default_factory=set)

    def held(self) -> list[Lease]:
        """Leases whose memory it takes to go on: not those that had given it up before."""
        return [one for one in self.leases.values() if one.state is State.FROZEN]


PAUSE = 0.5
PAUSE_MAX = 8.0
"""Seconds between attempts of one request to preempt, when holders were frozen in vain."""
OPERATOR = "operator"
"""The cause of a freeze that somebody asked for by name."""


def nobody() -> frozenset[str]:
    """No target that must not be frozen."""
    return frozenset()


class Arbiter:
    """Runs requests against the table. Everything happens in the loop's thread; a request may wait in between."""

    def __init__(self, table: Table, gauge: Gauge, freezer: Freezer, asker: Asker, limits: Limits) -> None:
        self.table = table
        self.limits = limits
        self._gauge = gauge
        self._freezer = freezer
        self._asker = asker
        self._frozen: dict[str, Standstill] = {}  # in the order of freezing
        self._causes: set[str] = set()  # of those who were granted nothing
        self._moving: set[str] = set()  # targets that are being frozen or thawed right now
        self._crowd = Crowd(table, lambda planes: gauge.refresh(planes, exact=True))
        self._settling: loop.Task[None] | None = None
        self._unsettled = False
        self._thaw_claims: dict[str, Claim] = {}

    # --- requests ----------------------------------------------------------------------------------------

    async def acquire(self, lease: Lease, wait: float = 0.0, barred: Barred = nobody) -> Lease:
        """Grant a lease, if need be at the cost of weaker ones; all of its slices or none.

        Waits up to `wait` seconds for room. `barred` tells targets that must not be frozen: the requester's own
        and its ancestors'. Raises NoRoom, Busy.
        """
        table = self.table
        needs = needed(lease.slices)
        await self._gauge.refresh(needs, exact=False)
        try:
            return table.grant(lease, monotonic())
        except NoRoom:
            pass
        if len(table.claims) >= self.limits.waiting_max:
            raise Busy
        claim = table.claim(lease.tier, needs)
        patience = monotonic() + wait
        refusal: NoRoom | None = None
        again, pause = 0.0, PAUSE  # when to try to preempt once more, after all that was frozen would not do
        try:
            while True:
                await self._gauge.refresh(needs, exact=True)
                try:
                    return table.grant(lease, monotonic(), claim)
                except NoRoom as error:
                    refusal = error
                if monotonic() >= again:
                    here: list[str] = []
                    try:
                        await self._preempt(claim, lease.id, barred, here)
                    except NoRoom as error:
                        refusal = error
                        if here:
                            again, pause = monotonic() + pause, min(2 * pause, PAUSE_MAX)
                    else:
                        continue
                late = self._crowd.closed or monotonic() >= patience
                if late or not await self._crowd.changed(patience, claim):
                    assert refusal is not None
                    raise refusal
                await self._gauge.refresh(needs, exact=False)
                if self._fits(claim):  # often enough, and at once: a look at all holders takes its time
                    return table.grant(lease, monotonic(), claim)
        finally:
            refusal = None  # its traceback has this frame: a ring for the collector, with each refusal
            # Also when the caller hung up in between: then the lease never came to be, and nobody stands still
            # for it any more.
            table.withdraw(claim)
            for victim in claim.victims.values():
                if victim.id in table.leases:
                    table.spare(victim, "no longer wanted")
            if lease.id not in table.leases:
                self._uncause(lease.id)
            self._wake()

    async def resize(self, lease: Lease, size: int, barred: Barred = nobody) -> None:
        """Raises NoRoom, WrongState. More memory may be taken from weaker leases, as for a new one."""
        table = self.table
        part = lease.slices[0]
        more = size - part.charge(lease.state)
        if more <= 0:
            table.resize(lease, size)
            self._wake()
            return
        await self._gauge.refresh((part.memory,), exact=False)
        try:
            table.resize(lease, size)
        except NoRoom:
            pass
        else:
            return
        claim = table.claim(lease.tier, {part.memory: more})
        here: list[str] = []
        try:
            await self._gauge.refresh((part.memory,), exact=True)
            try:
                table.resize(lease, size, claim)
                return
            except NoRoom:
                await self._preempt(claim, lease.id, barred, here)
            if lease.id not in table.leases:
                raise WrongState(lease, State.ACTIVE)
            table.resize(lease, size, claim)
        except BaseException:
            self._undo(here, lease.id)
            raise
        finally:
            table.withdraw(claim)
            for victim in claim.victims.values():
                if victim.id in table.leases:
                    table.spare(victim, "no longer wanted")
            self._wake()

    def end(self, lease: Lease, state: State, reason: str = "") -> None:
        """Take a lease out. What stood still for it goes on."""
        self.table.end(lease, state, reason)
        self._uncause(lease.id)
        for standstill in self._frozen.values():
            standstill.leases.pop(lease.id, None)
        self._wake()

    def yielded(self, lease: Lease) -> None:
        """The holder has given its memory up. Raises WrongState for a frozen lease."""
        self.table.yielded(lease)
        self._wake()

    def expire(self) -> None:
        """End what has run out."""
        for lease in self.table.expire(monotonic()):
            self._uncause(lease.id)
            for standstill in self._frozen.values():
                standstill.leases.pop(lease.id, None)
        self._wake()

    async def freeze(self, lease: Lease) -> None:
        """Freeze a holder on somebody's word. Raises FreezeError, WrongState."""
        target = lease.holder.target
        self._freezer.check(target)
        standstill = self._frozen.get(target)
        if standstill is not None:
            standstill.causes.add(OPERATOR)
            return
        if State.FROZEN is lease.state:
            raise WrongState(lease, State.FROZEN)
        await self._freeze(target, OPERATOR, "an operator asked for it")

    async def thaw(self, lease: Lease) -> None:
        """Let a holder go on, whatever it was frozen for. Raises NoRoom where its memory is lent, WrongState."""
        await self._settled(lease.holder.target)
        standstill = next((one for one in self._frozen.values() if lease.id in one.leases), None)
        if standstill is None:
            raise WrongState(lease, State.ACTIVE)
        if not self.table.can_thaw(standstill.held()):
            part = lease.slices[0]
            raise NoRoom(
                part.memory,
                part.size,
                self.table.room(part.memory),
                partial(self.table.holders, part.memory),
            )
        standstill.causes.clear()
        await self._thaw(standstill, "an operator asked for it")

    async def stand_aside(self, cause: str, leases: Sequence[Lease], reason: str) -> None:
        """Have holders give up or stand still for somebody who was granted nothing, until `over(cause)`.

        They are asked, and frozen after the deadline; who may not be frozen keeps running.
        """
        claim = self.table.claim(Tier.BATCH, {})
        asked = [one for one in leases if one.state is State.ACTIVE]
        self._causes.add(cause)
        try:
            reachable = any(self._asker.reaches(one) for one in asked)
            seconds = self.limits.yield_sec if reachable else 0.0
            for one in asked:
                self.table.ask(one, claim, reason)
                self._asker.ask(one, 0, int(seconds * 1000), reason)
            deadline = monotonic() + seconds
            while any(one.state is State.PREEMPTING for one in asked) and await self._crowd.changed(deadline):
                pass
            for target in dict.fromkeys(one.holder.target for one in asked if one.state is State.PREEMPTING):
                if cause not in self._causes:
                    return
                try:
                    self._freezer.check(target)
                    await self._freeze(target, cause, reason)
                except FreezeError as error:
                    journal.notice(f"{target or 'A holder'} goes on: {error.reason}")
        finally:
            self.table.withdraw(claim)
            for one in asked:
                if one.id in self.table.leases:
                    self.table.spare(one)
            if cause not in self._causes:
                self._uncause(cause)
            self._wake()

    def over(self, cause: str) -> None:
        """Nobody needs to stand aside for it any more."""
        self._causes.discard(cause)
        self._uncause(cause)
        self._wake()

    def adopt(self, target: str, leases: Iterable[Lease], causes: Iterable[str]) -> None:
        """What was frozen before a restart: it goes on as soon as none of its causes is left."""
        standstill = Standstill(target, {one.id: one for one in leases}, set(causes))
        self._frozen[target] = standstill
        self._wake()

    def standstills(self) -> list[Standstill]:
        """What is frozen, in the order of freezing."""
        return list(self._frozen.values())

    def close(self) -> None:
        """The daemon stops: nobody waits for room any more."""
        self._crowd.close()

    def wake(self) -> None:
        """Something changed outside, such as a plane's memory: let those who wait look again."""
        self._wake()

    # --- taking back -------------------------------------------------------------------------------------

    async def _preempt(self, claim: Claim, cause: str, barred: Barred, here: list[str]) -> None:
        """Make room for a claim, or raise NoRoom; what holders gave by themselves meanwhile stays given.

        `here` gets the targets that were to stand still for it.
        """
        table = self.table
        victims = table.victims(claim)
        asked = [one for one in victims if one.id not in claim.victims]
        # Nobody is waited for who cannot hear.
        seconds = self.limits.yield_sec if any(self._asker.reaches(one) for one in asked) else 0.0
        reason = f"wanted at a higher priority ({cause})"
        for one in asked:
            table.ask(one, claim, reason)
            self._asker.ask(one, self._shrunk(one, claim), int(seconds * 1000), reason)
        deadline = monotonic() + seconds
        while not self._fits(claim):
            if not any(one.state is State.PREEMPTING for one in victims) or not await self._crowd.changed(
                deadline
            ):
                break
        if self._fits(claim):
            return
        try:
            await self._freeze_some(claim, victims, cause, barred, here)
        except BaseException:
            self._undo(here, cause)
            raise

    async def _freeze_some(
        self, claim: Claim, victims: Sequence[Lease], cause: str, barred: Barred, here: list[str]
    ) -> None:
        """Freeze victims one by one until the claim can be met. `here` gets their targets."""
        targets: dict[str, list[Lease]] = {}
        never = barred() if any(one.state is State.PREEMPTING for one in victims) else frozenset()
        for one in victims:
            if one.state is not State.PREEMPTING:
                continue
            target = one.holder.target
            try:
                self._freezer.check(target)
            except FreezeError as error:
                journal.notice(f"Lease {one.id} keeps its memory: {error.reason}")
                continue
            if target not in never and all(other.tier < claim.tier for other in self.table.of_target(target)):
                targets.setdefault(target, []).append(one)  # else the requester or its equals would stop too
        await self._might_fit(claim, targets)
        for target, leases in targets.items():
            if self._fits(claim):
                return
            if not any(one.state is State.PREEMPTING for one in leases):
                continue  # it gave in after all
            here.append(target)
            try:
                await self._freeze(target, cause, f"its memory is wanted at a higher priority ({cause})")
            except FreezeError as error:
                journal.warning(f"{target} could not be frozen: {error.reason}")
        if self._fits(claim):
            return
        for target in here:
            for one in list(self._frozen[target].leases.values()) if target in self._frozen else ():
                short = max((self._short(claim, part.memory) for part in one.slices), default=0)
                if short > 0 and one.state is State.FROZEN and self._gauge.pushes(one):
                    await self._push_out(target, one, short)
                    if self._fits(claim):
                        return
        self.table.fits(claim.needs, claim.tier, claim)

    async def _push_out(self, target: str, lease: Lease, short: int) -> None:
        """Have a frozen holder's memory reclaimed, and book what is left. It may run for a moment meanwhile."""
        await self._settled(target)
        self._moving.add(target)
        try:
            await self._gauge.push_out(lease, short, self.limits.push_out_sec)
        except FreezeError as error:
            journal.error(f"{target} could not be stopped again: {error.reason}")
            standstill = self._frozen.get(target)
            for one in list(standstill.leases.values()) if standstill is not None else ():
                self.end(one, State.REVOKED, "its holder could not be stopped again while its memory was lent")
        finally:
            self._moving.discard(target)
            self._wake()
        residents = await self._gauge.residents(lease)
        if lease.state is State.FROZEN:
            self.table.measured(lease, residents)

    async def _might_fit(self, claim: Claim, targets: dict[str, list[Lease]]) -> None:
        """Raise NoRoom if freezing could not make enough room anyway: then nobody is stopped for nothing."""
        short = {plane: missing for plane in claim.needs if (missing := self._short(claim, plane)) > 0}
        for leases in targets.values():
            for one in leases:
                residents = await self._gauge.residents(one)
                for part, resident in zip(one.slices, residents, strict=True):
                    if part.memory in short:
                        kept = part.size if resident is None else min(part.size, resident)
                        short[part.memory] -= part.size if self._gauge.pushes(one) else part.size - kept
        for plane, missing in short.items():
            if missing > 0:
                size = claim.needs[plane]
                raise NoRoom(plane, size, size - missing, partial(self.table.holders, plane))

    async def _freeze(self, target: str, cause: str, reason: str) -> None:
        """Freeze a target and book what its leases then really use."""
        await self._settled(target)
        standstill = self._frozen.get(target)
        self._moving.add(target)  # until all is booked: who has no lease yet would be thawed for having none
        try:
            if standstill is None:
                standstill = Standstill(target)
                self._frozen[target] = standstill
                try:
                    await self._freezer.freeze(target, cause, self.limits.freeze_sec)
                except BaseException:
                    del self._frozen[target]
                    raise
            standstill.causes.add(cause)
            try:
                for one in self.table.of_target(target):
                    residents = await self._gauge.residents(one)
                    if one.id in self.table.leases and one.state in (State.ACTIVE, State.PREEMPTING):
                        self.table.freeze(one, monotonic(), residents, reason)
                    if one.id in self.table.leases:
                        standstill.leases[one.id] = one
            except BaseException:
                standstill.causes.discard(cause)
                raise
        finally:
            self._moving.discard(target)
            self._wake()

    async def _settled(self, target: str) -> None:
        """Wait until nobody freezes or thaws it."""
        while target in self._moving:
            await self._crowd.changed(monotonic() + self.limits.freeze_sec)

    def _undo(self, targets: list[str], cause: str) -> None:
        for target in targets:
            standstill = self._frozen.get(target)
            if standstill is not None:
                standstill.causes.discard(cause)
        if targets:  # else nothing has changed: whoever failed would wake itself, again and again
            self._wake()

    # --- letting go --------------------------------------------------------------------------------------

    def _uncause(self, lease_id: str) -> None:
        for standstill in self._frozen.values():
            standstill.causes.discard(lease_id)

    def _settle_soon(self) -> None:
        self._unsettled = True
        if self._settling is None and any(not one.causes or not one.leases for one in self._frozen.values()):
            self._settling = loop.spawn(self._settle(), "thaw what has no reason to stand still")

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
                    if self.table.can_thaw(held):
                        await self._thaw(standstill, "")
                    elif target in self._thaw_claims:
                        self._thaw_claims[target].needs = _missing(held)
                    else:
                        # Its room was lent while it stood still: it is the next to get some.
                        tier = max(one.tier for one in held)
                        self._thaw_claims[target] = self.table.claim(tier, _missing(held))
        finally:
            self._settling = None

    async def _thaw(self, standstill: Standstill, reason: str) -> None:
        target = standstill.target
        waiting = self._thaw_claims.pop(target, None)
        if waiting is not None:
            self.table.withdraw(waiting)
        # What it gets back is kept for it while the manager works.
        claim = self.table.claim(Tier.EMERGENCY, _missing(standstill.held()), first=True)
        self._moving.add(target)
        try:
            await self._freezer.thaw(target, self.limits.freeze_sec)
        except FreezeError as error:
            journal.error(f"{target} could not be thawed, trying again: {error.reason}")
            loop.call_later(1.0, self._wake)
            return
        finally:
            self._moving.discard(target)
            self.table.withdraw(claim)
        self._frozen.pop(target, None)
        for one in list(standstill.leases.values()):
            if one.id in self.table.leases and one.state is State.FROZEN:
                self.table.thaw_anyway(one, monotonic(), reason)
        self._wake()

    # --- small things ------------------------------------------------------------------------------------

    def _fits(self, claim: Claim) -> bool:
        return all(self._short(claim, plane) <= 0 for plane in claim.needs)

    def _short(self, claim: Claim, plane: str) -> int:
        return claim.needs.get(plane, 0) - self.table.room(plane, claim.tier, claim)

    def _shrunk(self, lease: Lease, claim: Claim) -> int:
        """Bytes that a lease may keep if it alone made the room."""
        if len(lease.slices) != 1:
            return 0  # a gang gives all or nothing
        part = lease.slices[0]
        return max(0, part.size - max(0, self._short(claim, part.memory)))

    def _wake(self) -> None:
        self._crowd.wake()
        self._settle_soon()


def _missing(leases: Iterable[Lease]) -> dict[str, int]:
    missing: dict[str, int] = {}
    for lease in leases:
        for part in lease.slices:
            missing[part.memory] = missing.get(part.memory, 0) + part.size - part.charge(lease.state)
    return {plane: size for plane, size in missing.items() if size > 0}
