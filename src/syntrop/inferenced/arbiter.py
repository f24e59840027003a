# SPDX-License-Identifier: Apache-2.0
"""Who gets what: grants, and the two ways to take memory back from the weaker.

First the holders are asked, and have a deadline; then those who gave too little are frozen, and what the kernel
reports that they do not use is lent. What a refused or abandoned request has begun is undone in reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import monotonic

from syntrop.common import journal
from syntrop.inferenced.crowd import Crowd
from syntrop.inferenced.lease import NoRoom, State, WrongState, needed
from syntrop.inferenced.standstill import FreezeError, Standstills
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from syntrop.inferenced.lease import Lease
    from syntrop.inferenced.standstill import Freezer, Gauge
    from syntrop.inferenced.table import Claim, Table

    class Asker(Protocol):
        """Tells holders that their memory is wanted."""

        def reaches(self, lease: Lease) -> bool:
            """Whether anybody listens: a watcher, or a signal that the lease named."""

        def ask(self, lease: Lease, size: int, deadline_ms: int | None, reason: str) -> None:
            """Ask the holder to shrink to `size` bytes; without a deadline nothing follows if it does not."""

    Barred = Callable[[], frozenset[str]]
    """Tells targets that must not be frozen; asked only when something is to be frozen."""


class Busy(Exception):
    """Too many requests wait already."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and numbers; see the settings."""

    yield_sec: float = 0.25
    freeze_sec: float = 2.0
    push_out_sec: float = 2.0
    waiting_max: int = 4096


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
        self._causes: set[str] = set()  # of those who were granted nothing
        self._crowd = Crowd(table, lambda planes: gauge.refresh(planes, exact=True))
        self.standing = Standstills(table, gauge, freezer, self._crowd, limits.freeze_sec, limits.push_out_sec)

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
                        if self._fits(claim):
                            return table.grant(lease, monotonic(), claim)
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
                self.standing.over(lease.id)
            self.standing.wake()

    async def resize(self, lease: Lease, size: int, barred: Barred = nobody) -> None:
        """Raises NoRoom, WrongState. More memory may be taken from weaker leases, as for a new one."""
        table = self.table
        part = lease.slices[0]
        more = size - part.charge(lease.state)
        if more <= 0:
            table.resize(lease, size)
            self.standing.wake()
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
            self.standing.undo(here, lease.id)
            raise
        finally:
            table.withdraw(claim)
            for victim in claim.victims.values():
                if victim.id in table.leases:
                    table.spare(victim, "no longer wanted")
            self.standing.wake()

    def end(self, lease: Lease, state: State, reason: str = "") -> None:
        """Take a lease out. What stood still for it goes on."""
        self.table.end(lease, state, reason)
        self.standing.ended(lease.id)
        self.standing.wake()

    def yielded(self, lease: Lease) -> None:
        """The holder has given its memory up. Raises WrongState for a frozen lease."""
        self.table.yielded(lease)
        self.standing.wake()

    def expire(self) -> None:
        """End what has run out."""
        for lease in self.table.expire(monotonic()):
            self.standing.ended(lease.id)
        self.standing.wake()

    async def freeze(self, lease: Lease) -> None:
        """Freeze a holder on somebody's word. Raises FreezeError, WrongState."""
        target = lease.holder.target
        self._freezer.check(target)
        standstill = self.standing.get(target)
        if standstill is not None:
            standstill.causes.add(OPERATOR)
            return
        if State.FROZEN is lease.state:
            raise WrongState(lease, State.FROZEN)
        await self.standing.freeze(target, OPERATOR, "an operator asked for it")

    async def thaw(self, lease: Lease) -> None:
        """Let a holder go on, whatever it was frozen for. Raises NoRoom where its memory is lent, WrongState."""
        await self.standing.settled(lease.holder.target)
        standstill = self.standing.of_lease(lease.id)
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
        await self.standing.thaw(standstill, "an operator asked for it")

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
                self._freezer.expect(one.holder.target)
                self._asker.ask(one, 0, int(seconds * 1000), reason)
            deadline = monotonic() + seconds
            while any(one.state is State.PREEMPTING for one in asked) and await self._crowd.changed(deadline):
                pass
            for target in dict.fromkeys(one.holder.target for one in asked if one.state is State.PREEMPTING):
                if cause not in self._causes:
                    return
                try:
                    self._freezer.check(target)
                    await self.standing.freeze(target, cause, reason)
                except FreezeError as error:
                    journal.notice(f"{target or 'A holder'} goes on: {error.reason}")
        finally:
            self.table.withdraw(claim)
            for one in asked:
                if one.id in self.table.leases:
                    self.table.spare(one)
            if cause not in self._causes:
                self.standing.over(cause)
            self.standing.wake()

    def over(self, cause: str) -> None:
        """Nobody needs to stand aside for it any more."""
        self._causes.discard(cause)
        self.standing.over(cause)
        self.standing.wake()

    def in_line(self) -> list[Claim]:
        """Requests that wait for room, and do nothing else."""
        return self._crowd.in_line()

    def close(self) -> None:
        """The daemon stops: nobody waits for room any more."""
        self._crowd.close()

    def wake(self) -> None:
        """Something changed outside, such as a plane's memory: let those who wait look again."""
        self.standing.wake()

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
            self._freezer.expect(one.holder.target)
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
            self.standing.undo(here, cause)
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
                await self.standing.freeze(target, cause, f"its memory is wanted at a higher priority ({cause})")
            except FreezeError as error:
                journal.warning(f"{target} could not be frozen: {error.reason}")
        if self._fits(claim):
            return
        for target in here:
            standstill = self.standing.get(target)
            for one in list(standstill.leases.values()) if standstill is not None else ():
                short = max((self._short(claim, part.memory) for part in one.slices), default=0)
                if short > 0 and one.state is State.FROZEN and self._gauge.pushes(one):
                    await self.standing.push_out(target, one, short)
                    if self._fits(claim):
                        return
        self.table.fits(claim.needs, claim.tier, claim)

    async def _might_fit(self, claim: Claim, targets: dict[str, list[Lease]]) -> None:
        """Raise NoRoom if freezing could not make enough room anyway: then nobody is stopped for nothing."""
        short = {plane: missing for plane in claim.needs if (missing := self._short(claim, plane)) > 0}
        for leases in targets.values():
            for one in leases:
                residents = await self._gauge.residents(one, exact=False)
                for part, resident in zip(one.slices, residents, strict=True):
                    if part.memory in short:
                        kept = part.size if resident is None else min(part.size, resident)
                        short[part.memory] -= part.size if self._gauge.pushes(one) else part.size - kept
        for plane, missing in short.items():
            if missing > 0:
                size = claim.needs[plane]
                raise NoRoom(plane, size, size - missing, partial(self.table.holders, plane))

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
