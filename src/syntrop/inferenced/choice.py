# SPDX-License-Identifier: Apache-2.0
"""Which plane a lease takes its memory from, where several would do."""

from __future__ import annotations

from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced import placement
from syntrop.inferenced.admission import INTERFACE, refuse
from syntrop.inferenced.lease import NoRoom
from syntrop.inferenced.meter import occupancy
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.lease import Lease
    from syntrop.inferenced.plane import Topology


def best(
    topology: Topology,
    room: Mapping[str, int],
    capacity: Mapping[str, int],
    tier: Tier,
    size: int,
    reserved: Collection[str],
    closed: Collection[str],
) -> str | None:
    """The plane for one lease; None where there is none at all.

    One that has the room before one whose weaker leases would have to go. An emergency takes a reserved plane
    first, then a processor, then the one with the most memory; others take the one with the most room that is not
    reserved. Planes whose memory is not known take no leases.
    """
    ranked = []
    for name, plane in topology.planes.items():
        memory = topology.memory(name)
        if name in closed or memory in closed or plane.total is None or memory not in room:
            continue
        if name in reserved and tier is not Tier.EMERGENCY:
            continue
        fits = room[memory] >= size
        possible = capacity[memory] >= size
        if tier is Tier.EMERGENCY:
            ranked.append((fits, possible, name in reserved, plane.kind == "cpu", capacity[memory], name))
        else:
            # Of planes in one memory the one that the memory is of: leases on others are for their users.
            ranked.append((fits, possible, plane.host is None, False, room[memory], name))
    return max(ranked)[-1] if ranked else None


async def choose(broker: Broker, tier: Tier, size: int, plane: str | None, kind: str | None = None) -> str:
    """The plane for one lease; where none is named, of any kind or of one.

    Raises PlaneNotFound, PlaneQuarantined, MemoryUnknown, ResourceExhaustion.
    """
    if plane is not None:
        _usable(broker, tier, plane, size)
        return plane
    topology = broker.topology
    if kind is not None:
        topology = topology.only([name for name, one in topology.planes.items() if one.kind == kind])
    memories = {topology.memory(name) for name in topology.planes}
    await broker.meter.refresh(memories, exact=False)
    table = broker.table
    found = best(
        topology,
        {name: table.room(name, tier) for name in memories},
        {name: table.capacity(name) for name in memories},
        tier,
        size,
        broker.settings.triage_planes,
        broker.meter.closed,
    )
    if found is None:
        refuse(NoRoom("", size, 0))  # there is no plane whose memory is known and which may be used
    return found


async def place(
    broker: Broker, tier: Tier, parts: Sequence[placement.Part], policy: str, *, waits: bool = False
) -> tuple[str, ...]:
    """The planes for a gang: with the room there is, else with the room there would be without weaker leases; for
    who `waits`, else with the room there would be without any. Raises what `choose()` does."""
    for part in parts:
        if part.plane is not None:
            _usable(broker, tier, part.plane, part.size)
    topology, table = broker.topology, broker.table
    reserved = () if tier is Tier.EMERGENCY else broker.settings.triage_planes
    names = [
        name
        for name, plane in topology.planes.items()
        if plane.total is not None
        and not {name, topology.memory(name)} & broker.meter.closed
        and name not in reserved
    ]
    memories = {topology.memory(name) for name in names}
    await broker.meter.refresh(memories, exact=False)
    usable = topology.only(names)
    fullness = occupancy(broker.meter.fills())
    room = {name: max(0, table.room(name, tier)) for name in memories}
    try:
        return placement.place(parts, usable, room, policy, fullness)
    except placement.NoPlacement:
        pass
    for one in table:
        if one.tier < tier:
            for given in one.slices:
                if given.memory in room:
                    room[given.memory] += given.charge(one.state)
    try:
        return placement.place(parts, usable, room, policy, fullness)
    except placement.NoPlacement:
        if waits:
            room = {name: table.capacity(name) for name in memories}
    try:
        return placement.place(parts, usable, room, policy, fullness)
    except placement.NoPlacement as error:
        part = error.part or max(parts, key=lambda one: one.size)
        most = max(room, key=lambda name: (room[name], name), default="")
        if error.part is None:
            size, there, memories = sum(one.size for one in parts), sum(room.values()), set(room)
        else:
            memories = {topology.memory(part.plane)} if part.plane is not None else {most}
            size, there = part.size, max((room.get(name, 0) for name in memories), default=0)
        refuse(NoRoom(part.plane or most, size, there, lambda: _holders(broker, memories)))


def _holders(broker: Broker, memories: Collection[str]) -> list[Lease]:
    """Leases that take memory of these planes, those of each once."""
    return list(dict.fromkeys(one for name in sorted(memories) for one in broker.table.holders(name)))


def _usable(broker: Broker, tier: Tier, plane: str, size: int) -> None:
    topology = broker.topology
    if plane not in topology.planes:
        raise VarlinkError(INTERFACE + "PlaneNotFound", plane=plane[:256])
    for name in (plane, topology.memory(plane)):
        if name in broker.meter.closed:
            raise VarlinkError(
                INTERFACE + "PlaneQuarantined", plane=name, reason=broker.quarantine.reasons.get(name, "")
            )
    if topology.planes[plane].total is None:
        raise VarlinkError(INTERFACE + "MemoryUnknown", plane=plane)
    if plane in broker.settings.triage_planes and tier is not Tier.EMERGENCY:
        refuse(NoRoom(plane, size, 0, lambda: _holders(broker, [topology.memory(plane)])))
