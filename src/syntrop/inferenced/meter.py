# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of planes and holders, brought to the table: `standstill.Gauge` over `gauges.Gauges`.

What our holders use is theirs already and must not count as use by others. To look at every holder at
every request would be slow: they are looked at only when the room that is known without it would not do.
"""

from __future__ import annotations

from heapq import nlargest
from time import monotonic

from syntrop.common import cgroup, loop, paths
from syntrop.inferenced import fdinfo, holders, targets
from syntrop.inferenced.lease import Holder, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
    from typing import Any, Final

    from syntrop.inferenced.gauges import Fill, Gauges
    from syntrop.inferenced.lease import Key, Lease
    from syntrop.inferenced.squeeze import Squeezer
    from syntrop.inferenced.table import Table

FRESH: Final = 0.1
"""Seconds for which figures of planes are good enough to grant by."""
LOOKS_MAX: Final = 256
"""Holders that are looked at for one request, largest leases first; of others the last look counts."""
AT_ONCE: Final = 16
"""Holders of host memory that are looked at without a thread."""
_PAGE: Final = 4096


class Meter:
    """`reserve`: bytes of host memory that are never lent, to keep the host going. `look` tells who has devices
    open: of some processes, or of all."""

    def __init__(
        self,
        gauges: Gauges,
        table: Table,
        squeezer: Squeezer,
        reserve: int,
        look: Callable[[Collection[int] | None], Coroutine[Any, Any, fdinfo.Look]],
    ) -> None:
        self._gauges = gauges
        self._table = table
        self._squeezer = squeezer
        self._reserve = reserve
        self._look = look
        self._looked = 0.0
        self._usage: fdinfo.Usage | None = None
        self._use: dict[str, list[int | None]] = {}  # bytes in use by slice, of leases as they were last looked at
        self._own: dict[str, int] = {}  # of them, by plane of memory, what counts as ours
        self._counted: dict[str, tuple[tuple[str, int], ...]] = {}  # by lease, its part in that
        self._members: dict[Key, frozenset[int]] = {}  # processes of units, as they were last looked at
        self._wanted: set[str] = set()
        self._next: loop.Task[None] | None = None
        self._last: loop.Task[None] | None = None
        self.observe: Callable[[Mapping[str, Fill]], None] | None = None
        """Told of each new sample."""
        self.closed: frozenset[str] = frozenset()
        """Planes on which nothing is placed: quarantined ones."""

    # --- standstill.Gauge --------------------------------------------------------------------------------

    async def refresh(self, planes: Iterable[str], *, exact: bool) -> None:
        if exact:
            await self._look_at_holders(set(planes))
        elif monotonic() - self._looked >= FRESH:
            self.lend()

    async def residents(self, lease: Lease, *, exact: bool = True) -> list[int | None]:
        if not exact and lease.id in self._use:
            return self._use[lease.id]
        used = await self._measured([(lease.holder, {part.plane for part in lease.slices})])
        self._deal_out(lease.holder.key, used)
        return self._use.get(lease.id) or [None] * len(lease.slices)

    def pushes(self, lease: Lease) -> bool:
        target = lease.holder.target
        return all(part.plane.startswith("cpu") for part in lease.slices) and _accounts(target)

    async def push_out(self, lease: Lease, size: int, seconds: float) -> None:
        await self._squeezer.push_out(lease.holder.target, size, seconds)

    # --- figures -----------------------------------------------------------------------------------------

    def lend(self) -> None:
        """Sample the planes, and set what the table may lend of each."""
        self._sample()
        fills = self.fills()
        for name, plane in self._gauges.topology.planes.items():
            if plane.host is not None:
                continue
            fill = fills[name]
            self._table.lend(name, max(0, (fill.lendable or 0) - self.withheld(name)))
        if self.observe is not None and self._table.leases:
            self.observe(fills)

    def withheld(self, name: str) -> int:
        """Bytes of a plane that are never lent: all of one in quarantine, and what keeps the host going."""
        plane = self._gauges.topology.planes[name]
        if name in self.closed:
            return plane.total or 0
        return self._reserve if plane.kind == "cpu" else 0

    def fills(self) -> dict[str, Fill]:
        """How full each plane is, as of the last sample."""
        own = self._own
        pids = self._pids() if self._usage is not None else frozenset()
        return {
            name: self._gauges.fill(plane, self._usage, pids, own.get(plane.host or name, 0))
            for name, plane in self._gauges.topology.planes.items()
        }

    async def fresh(self) -> dict[str, Fill]:
        """The same after a new look, at holders and what processes use of devices, too. May take milliseconds."""
        await self._look_at_holders(set(self._gauges.topology.planes))
        return self.fills()

    def replace(self, gauges: Gauges) -> None:
        """Other devices are there now. The old gauges stay their owner's to close."""
        self._gauges = gauges
        self._usage = None

    def forget(self, lease_id: str) -> None:
        """The lease has ended."""
        self._use.pop(lease_id, None)
        self._discount(lease_id)

    def changed(self, lease: Lease) -> None:
        """It has another state or size."""
        if lease.id in self._use:
            self._count(lease)

    # --- inside ------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._gauges.sample()
        self._gauges.look()
        self._looked = monotonic()

    def _count(self, lease: Lease) -> None:
        """Keep the sums of what holders use within what they were granted."""
        self._discount(lease.id)
        if lease.state is not State.PREEMPTED:
            counted = [
                (part.memory, min(part.size, size))
                for part, size in zip(lease.slices, self._use[lease.id], strict=True)
                if size
            ]
            if counted:
                self._counted[lease.id] = tuple(counted)
                for memory, size in counted:
                    self._own[memory] = self._own.get(memory, 0) + size

    def _discount(self, lease_id: str) -> None:
        for memory, size in self._counted.pop(lease_id, ()):
            self._own[memory] -= size

    def _pids(self) -> frozenset[int]:
        """Processes of our holders; of units, as of the last look at them."""
        found: set[int] = set()
        for key in self._table.holding():
            if isinstance(key, tuple):
                found.add(key[0])
            else:
                found |= self._members.get(key, frozenset())
        return frozenset(found)

    async def _look_at_holders(self, planes: set[str]) -> None:
        """One look at a time: who comes during one shares the next."""
        self._wanted |= planes
        if self._next is None:
            self._next = loop.spawn(self._look_after(self._last), "look at holders")
        await self._next

    async def _look_after(self, last: loop.Task[None] | None) -> None:
        if last is not None and not last.done:
            ended: loop.Future[None] = loop.Future()
            last.when_done(lambda _: ended.set_result(None))
            await ended
        self._last, self._next = self._next, None
        planes, self._wanted = self._wanted, set()
        await self._look_at(planes)

    async def _look_at(self, planes: set[str]) -> None:
        largest: dict[Key, int] = {}
        wanted: dict[Key, tuple[Holder, set[str]]] = {}
        for one in self._table:
            key = one.holder.key
            if key is None:
                continue
            for part in one.slices:
                if part.memory in planes:
                    size = one.size
                    if size > largest.get(key, -1):
                        largest[key] = size
                    wanted.setdefault(key, (one.holder, set()))[1].add(part.plane)
        looked = nlargest(LOOKS_MAX, largest, key=largest.__getitem__) if len(largest) > LOOKS_MAX else largest
        used = await self._measured([wanted[key] for key in looked])
        for key in looked:
            self._deal_out(key, used)
        topology = self._gauges.topology
        if any(
            plane.device is not None and (plane.host or name) in planes for name, plane in topology.planes.items()
        ):
            units = [key for key in self._table.holding() if isinstance(key, str)]
            self._usage = fdinfo.usage(await self._look(None))
            self._members = await loop.thread(_processes, units)
        self.lend()

    async def _measured(self, wanted: Collection[tuple[Holder, set[str]]]) -> dict[tuple[object, str], int | None]:
        """Bytes in use by holder and plane."""
        if len(wanted) <= AT_ONCE and all(plane.startswith("cpu") for _, planes in wanted for plane in planes):
            return self._measure(wanted, None)  # a read each: a thread would cost the loop more
        told = self._gauges.topology.planes
        drm = [holder for holder, planes in wanted if any(name in told and told[name].device for name in planes)]
        pids = await loop.thread(_all_pids, drm) if drm else ()
        usage = fdinfo.usage(await self._look(pids)) if drm else None
        return await loop.thread(self._measure, wanted, usage)

    def _measure(
        self, wanted: Collection[tuple[Holder, set[str]]], usage: fdinfo.Usage | None
    ) -> dict[tuple[object, str], int | None]:
        """In a worker thread, mostly: it looks at nothing but the kernel's files."""
        return {
            (holder.key, plane): self._in_use(holder, plane, usage)
            for holder, planes in wanted
            for plane in planes
        }

    def _deal_out(self, key: Key | None, used: dict[tuple[object, str], int | None]) -> None:
        """What a holder uses is shared by all of its leases: it is dealt out in the order of granting."""
        left = {plane: size for (owner, plane), size in used.items() if owner == key}
        for one in self._table.of_holder(key):
            found = []
            for part in one.slices:
                rest = left.get(part.plane)
                taken = None if rest is None else min(rest, part.size)
                if rest is not None and taken is not None:
                    left[part.plane] = rest - taken
                found.append(taken)
            self._use[one.id] = found
            self._count(one)

    def _in_use(self, holder: Holder, name: str, usage: fdinfo.Usage | None) -> int | None:
        """Bytes of a plane that a holder's processes use, by `usage` of devices; None where nobody tells."""
        plane = self._gauges.topology.planes.get(name)
        if plane is None:
            return None
        if plane.kind == "cpu":
            return _memory(holder)
        pids = holders.pids(holder)
        by_process = self._gauges.processes(plane)
        if by_process is not None:
            sizes = [by_process[pid] for pid in pids if pid in by_process]
            return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)
        if plane.slot is None or usage is None or not usage.complete(plane.slot):
            return None
        return usage.of(plane.slot, pids, host=plane.host is not None)


def _all_pids(some: Iterable[Holder]) -> list[int]:
    """Processes of these holders. In a worker thread."""
    return [pid for holder in some for pid in holders.pids(holder)]


def _processes(units: Iterable[str]) -> dict[Key, frozenset[int]]:
    """Which processes are those of units. In a worker thread."""
    return {unit: frozenset(holders.pids(Holder(0, unit=unit))) for unit in units}


def _accounts(target: str) -> bool:
    """Whether the kernel accounts memory for a target's group."""
    try:
        group = cgroup.Group(target) if targets.is_group(target) else cgroup.of_unit(target)
        group.memory_current()
    except cgroup.CgroupError:
        return False
    return True


def _memory(holder: Holder) -> int | None:
    """Host memory of a holder: its group's where the kernel accounts it, else the resident sets of its processes,
    in which pages that they share count for each of them."""
    if holder.unit is not None:
        try:
            return cgroup.of_unit(holder.unit).memory_in_use()
        except cgroup.CgroupError:
            pass
    total = 0
    for pid in holders.pids(holder):
        try:
            with open(paths.proc(str(pid), "statm"), "rb") as file:
                total += int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            continue  # gone meanwhile
    return total


def occupancy(fills: Mapping[str, Fill]) -> dict[str, float]:
    """Share of each plane's memory in use, 0 to 1, where it is known."""
    return {
        name: fill.used / fill.total
        for name, fill in fills.items()
        if fill.used is not None and fill.total is not None and fill.total > 0
    }
