# SPDX-License-Identifier: Apache-2.0
"""The parts of the arbiter put together: table, kernel, freezer, log and watchers, from the settings.

Made when the first call needs it, or at once where a log says that there are leases. While there are any, the
daemon stays; with none, it has nothing open but its sockets.
"""

from __future__ import annotations

import os
from time import monotonic

from syntrop.common import journal, loop, paths, peer
from syntrop.inferenced import aftermath, holders, records
from syntrop.inferenced.arbiter import Arbiter, Limits
from syntrop.inferenced.freezer import Freezer, Manager
from syntrop.inferenced.gauges import Gauges
from syntrop.inferenced.governing import Governing, watermarks
from syntrop.inferenced.lease import ENDS, Lease, State
from syntrop.inferenced.meter import Meter
from syntrop.inferenced.opens import Opens
from syntrop.inferenced.pressing import Pressing
from syntrop.inferenced.quarantine import Quarantine
from syntrop.inferenced.sight import Sight
from syntrop.inferenced.squeeze import Squeezer
from syntrop.inferenced.table import Table
from syntrop.inferenced.tier import NAMES, Tier
from syntrop.inferenced.topology import stated
from syntrop.inferenced.watch import Watchers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from syntrop.common.service import Busy, Daemon
    from syntrop.common.settings import Settings
    from syntrop.inferenced.arbiter import Barred
    from syntrop.inferenced.hotplug import Monitor
    from syntrop.inferenced.lease import Holder, Key
    from syntrop.inferenced.plane import Topology
    from syntrop.inferenced.table import Change

LINGER: Final = 1.0
"""Seconds for which the machine is still watched after the last lease: to end it may take the kernel 20 ms (of
pressure it waits for every processor), and the next lease may be about to come."""


def has_leases() -> bool:
    """Whether an earlier process left leases, or something frozen, behind."""
    try:
        return os.stat(aftermath.path()).st_size > 0
    except OSError:
        return False


class Broker:
    """Everything that there is to know of leases. `topology` changes when devices come and go."""

    def __init__(self, daemon: Daemon, gauges: Gauges) -> None:
        settings = daemon.settings
        self._busy: Busy = daemon.busy()
        self.settings = settings
        self.boot = peer.boot_id()
        self.table = Table(self._changed)
        self.manager = Manager()
        self.watchers = Watchers(self.manager)
        self.quarantine = Quarantine(paths.state("inferenced"))
        self.gauges = gauges
        self.log = records.Log(aftermath.path(), self.boot)
        self.squeezer = Squeezer(self.log, self.manager)
        self.sight = Sight()
        self.meter = Meter(gauges, self.table, self.squeezer, settings.host_reserve, self.sight.look)
        self.freezer = Freezer(self.log, self.manager, settings.delegated)
        self.freezer.thawed = self.squeezer.thawed
        self.arbiter = Arbiter(self.table, self.meter, self.freezer, self.watchers, _limits(settings))
        self.holders = holders.Watcher(self._holder_gone)
        self.degraded = ""
        """Why not all is well; empty when it is."""
        self.pressing = Pressing(settings, self.meter.lend)
        self.governing = Governing(self.table, self.watchers, watermarks(settings), self.meter.lend)
        self.meter.observe = self.governing.observe
        self.opens = Opens(
            lambda: self.topology,
            slice_tiers(settings.slice_tiers),
            self.on,
            self._stand_aside,
            self.arbiter.over,
            self.sight.look,
        )
        self._monitor: Monitor | None = None
        self._expiry: loop.Timer | None = None
        self._resting: loop.Timer | None = None
        self._leaving: loop.Timer | None = None
        self._close_planes()

    @property
    def topology(self) -> Topology:
        return self.gauges.topology

    # --- life ----------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take over what an earlier process left: leases of holders that still live, and what it froze."""
        past, wrong = await loop.thread(records.replay, aftermath.path(), self.boot)
        if wrong:
            journal.error(f"{wrong} lines of {aftermath.path()} make no sense; those leases are lost")
        lost = [one for one in past.leases.values() if not self._take_over(one)]
        await self.meter.refresh(self.topology.planes, exact=True)
        for one in list(self.table):
            if one.state is State.FROZEN and one.id in self.table.leases:
                self.table.measured(one, await self.meter.residents(one))
        now = monotonic()
        for one in sorted(self.table, key=lambda lease: (-lease.tier, lease.order)):
            if one.state is State.PREEMPTING:
                self.table.spare(one)  # whoever asked is gone
            elif one.state is State.FROZEN and one.holder.target not in past.frozen:
                # It was thawed when we ended, so it keeps what it has. What it never used may be lent by now.
                if self.table.can_thaw([one]):
                    self.table.thaw(one, now, "it went on when inferenced ended")
                else:
                    self.table.thaw_within(one, now, "what it had not used was lent when inferenced ended")
        for target, causes in past.frozen.items():
            self.freezer.take_over(target)
            self.arbiter.standing.adopt(
                target, self.table.of_target(target), [c for c in causes if c in self.table.leases]
            )
        for target in past.loose:
            self.freezer.let_go(target)
        self.squeezer.take_over(past.limits)
        self._start_log()
        if past.leases:
            journal.notice(f"Took over {len(self.table.leases)} leases; {len(lost)} had lost their holders")
        self.plan_expiry()
        self.hold()

    def _take_over(self, one: Lease) -> bool:
        try:
            self.holders.add(one.holder)
        except (holders.Gone, OSError):
            return False
        if one.bound or one.state in ENDS:
            self.holders.remove(one.holder)
            return False  # its connection ended with the earlier process
        self.table.restore(one)
        return True

    def retune(self, settings: Settings) -> None:
        """Other thresholds and watermarks. Raises ValueError for what makes no sense; then nothing has changed."""
        self.governing.retune(watermarks(settings))
        self.pressing.retune(settings)

    async def stop(self) -> None:
        """Nobody stands still while we are away. Leases stay on record for whoever comes next."""
        for target in reversed(list(self.freezer.standing)):
            try:
                await self.freezer.thaw(target, 5.0)
            except Exception as error:
                journal.exception(f"{target} is still frozen", error)
        self._rest()
        self.manager.close()
        self.holders.close()
        if self.table.leases or self.freezer.standing or self.squeezer.limits:
            self.log.close()  # what stands still, the aftermath thaws
        else:
            self.log.discard()
        self.gauges.close()

    # --- leases --------------------------------------------------------------------------------------------

    async def grant(self, one: Lease, wait: float, barred: Barred) -> None:
        """Acquire a lease and keep it: its holder is watched, and it is on record.

        Raises holders.Gone, OSError (no descriptor, or no record to be had), and what `Arbiter.acquire()` does.
        """
        self.holders.add(one.holder)
        try:
            await self.arbiter.acquire(one, wait, barred)
        except BaseException:
            self.holders.remove(one.holder)
            raise
        if one.holder not in self.holders:  # it ended while we waited for room
            self.arbiter.end(one, State.RELEASED, "its holder has ended")
            raise holders.Gone("its holder has ended")
        self.hold()
        try:
            self.log.lease(one)
        except OSError:
            self.arbiter.end(one, State.RELEASED, "it could not be put on record")
            raise
        if one.lifetime is not None:
            self.plan_expiry()
        loop.call_soon(self._expect, one)

    def _expect(self, one: Lease) -> None:
        """Who can hear is asked first, which is time enough to make a freeze ready; others are frozen at once."""
        if one.tier < Tier.EMERGENCY and one.id in self.table.leases and not self.watchers.reaches(one):
            self.freezer.expect(one.holder.target)

    def hold(self) -> None:
        """Stay while there is a lease or something frozen."""
        if self.table.leases or self.freezer.standing:
            if not self.log.started:
                self._start_log()
            self._busy.hold()
            if self._resting is not None:
                self._resting.cancel()
                self._resting = None
            self.pressing.watch()
            if any(plane.device and self.table.occupied(name) for name, plane in self.topology.planes.items()):
                self._watch_devices()
            elif self._leaving is None and self.sight.kept:
                self._leaving = loop.call_later(LINGER, self._leave_devices)
        else:
            self._busy.release()
            if self._resting is None:
                self._resting = loop.call_later(LINGER, self._rest)

    def known(self, uid: int, pid: int, start: int) -> Holder:
        """A living process as holder. Where it is in the tree of control groups is looked up once."""
        held = self.table.of_holder((pid, start))
        return held[0].holder if held else holders.of_process(uid, pid, start, self.freezer.delegated)

    def revoke(self, leases: Iterable[Lease], reason: str) -> list[str]:
        """Take leases away; their identifiers."""
        gone = []
        for one in list(leases):
            self.arbiter.end(one, State.REVOKED, reason)
            gone.append(one.id)
        return gone

    def on(self, plane: str) -> list[Lease]:
        """Leases with a part on a plane, or in its memory."""
        return [one for one in self.table if any(plane in (part.plane, part.memory) for part in one.slices)]

    def close_plane(self, plane: str, reason: str) -> list[str]:
        """After a plane was put into quarantine: nothing is lent of it, and what was is taken back."""
        self._close_planes()
        self.meter.lend()
        return self.revoke(self.on(plane), f"plane {plane} is in quarantine: {reason}")

    def open_plane(self) -> None:
        """After a plane was taken out of quarantine."""
        self._close_planes()
        self.meter.lend()
        self.arbiter.wake()

    def replace(self, gauges: Gauges) -> None:
        """Devices came or went. Leases on those that went are revoked."""
        from syntrop.inferenced.topology import gone

        old, self.gauges = self.gauges, gauges
        self.meter.replace(gauges)
        for plane in gone(old.topology, gauges.topology):
            self.revoke(self.on(plane), f"plane {plane} is gone")
            self.table.forget(plane)
        old.close()
        self.meter.lend()
        self.arbiter.wake()

    # --- inside --------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Nothing is held: nothing is watched, and no timer runs."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        self.pressing.rest()
        self.governing.rest()
        self._leave_devices()

    def _leave_devices(self) -> None:
        """Nobody holds memory of a device."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        self.opens.rest()
        self.sight.rest()
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def _watch_devices(self) -> None:
        """Somebody holds memory of a device: it may go, or be opened by others."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        self.sight.keep()
        self.opens.watch()
        if self._monitor is None:
            from syntrop.inferenced.hotplug import Monitor

            try:
                self._monitor = Monitor(lambda: loop.spawn(self._survey(), "devices that came or went"))
            except OSError as error:
                journal.notice(f"Devices that come or go are not seen: {error}")

    async def _survey(self) -> None:
        self.replace(await loop.thread(survey, self.settings))

    def _stand_aside(self, cause: str, leases: list[Lease], reason: str) -> None:
        loop.spawn(self.arbiter.stand_aside(cause, leases, reason), f"stand aside for {cause}")

    def _changed(self, change: Change) -> None:
        kind, one, reason = change
        try:
            if kind == "resized":
                self.log.size(one)
            if kind not in ("granted", "resized"):
                self.log.state(one)
        except OSError as error:
            # The table is right; a restart would not know of this. The next compaction sets it right.
            self._unwritten(error)
        if one.state in ENDS:
            self.holders.remove(one.holder)
            self.meter.forget(one.id)
            loop.call_soon(self.hold)
        elif kind != "granted":
            self.meter.changed(one)
        if kind == "thawed" and one.lifetime is not None:
            loop.call_soon(self.plan_expiry)
        if kind == "resized":
            self.watchers.tell(kind, one, reason, one.size)
        elif kind != "yield_requested":  # told with its numbers by whoever asks
            self.watchers.tell(kind, one, reason)
        if self.log.grown(len(self.table.leases)):
            self._compact(begin=True)

    def _start_log(self) -> None:
        try:
            self.log.start(self.table, self._standing(), self.squeezer.limits.items())
            self.degraded = ""
        except OSError as error:
            self._unwritten(error)

    def _compact(self, *, begin: bool = False) -> None:
        """Write the log anew, some leases a turn: nobody waits for ten thousand."""
        try:
            if begin:
                self.log.begin(self.table, self._standing(), self.squeezer.limits.items())
            if not self.log.go_on():
                loop.call_soon(self._compact)
            else:
                self.degraded = ""
        except OSError as error:
            self._unwritten(error)

    def _standing(self) -> list[tuple[str, list[str]]]:
        """What is frozen, in the order of freezing, each with its causes."""
        causes = {one.target: sorted(one.causes) for one in self.arbiter.standing}
        return [(target, causes.get(target) or [""]) for target in self.freezer.standing]

    def _unwritten(self, error: OSError) -> None:
        self.degraded = f"the log cannot be written: {error.strerror}"
        journal.error(f"{aftermath.path()}: {error.strerror}")

    def _holder_gone(self, key: Key) -> None:
        what = f"unit {key}" if isinstance(key, str) else f"process {key[0]}"
        for one in self.table.of_holder(key):
            self.arbiter.end(one, State.RELEASED, f"{what} has ended")

    def plan_expiry(self) -> None:
        """After a grant, a renewal or a thaw: wake when the next lease runs out."""
        due = self.table.next_expiry()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if due is not None:
            self._expiry = loop.call_later(max(0.0, due - monotonic()), self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self.arbiter.expire()
        self.plan_expiry()

    def _close_planes(self) -> None:
        self.meter.closed = frozenset(self.quarantine.reasons)


def _limits(settings: Settings) -> Limits:
    return Limits(
        yield_sec=settings.yield_ms / 1000,
        freeze_sec=settings.freeze_ms / 1000,
        push_out_sec=settings.push_out_ms / 1000,
        waiting_max=settings.waiting_max,
    )


def survey(settings: Settings) -> Gauges:
    """What there is of planes, with the memory that the operator states. Blocks."""
    gauges = Gauges()
    gauges.topology = stated(gauges.topology, plane_memory(settings.plane_memory))
    return gauges


def plane_memory(words: Iterable[str]) -> dict[str, int]:
    """The setting `plane_memory`. Raises ValueError for what is no PLANE=BYTES."""
    found = {}
    for word in words:
        name, equals, size = word.rpartition("=")
        if not equals or not name or not size.isdecimal():
            raise ValueError(f"{word!r} is no PLANE=BYTES")
        found[name] = int(size)
    return found


def slice_tiers(words: Iterable[str]) -> dict[str, Tier]:
    """The setting `slice_tiers`. Raises ValueError for what is no SLICE=TIER."""
    found = {}
    for word in words:
        name, equals, tier = word.partition("=")
        if not equals or not name.endswith(".slice") or tier not in NAMES:
            raise ValueError(f"{word!r} is no SLICE=TIER")
        found[name] = NAMES[tier]
    return found
