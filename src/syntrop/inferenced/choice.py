# SPDX-License-Identifier: Apache-2.0
"""Which plane a lease takes its memory from, where several would do."""

from __future__ import annotations

from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced import placement
from syntrop.inferenced.meter import occupancy
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.plane import Topology

_INTERFACE = "io.syntrop.Inference1."


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
        _usable(broker, tier, plane)
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
        raise VarlinkError(_INTERFACE + "ResourceExhaustion", plane="", requested=size, available=0, holders=[])
    return found


async def place(
    broker: Broker, tier: Tier, parts: Sequence[placement.Part], policy: str, *, waits: bool = False
) -> tuple[str, ...]:
    """The planes for a gang: with the room there is, else with the room there would be without weaker leases; for
    who `waits`, else with the room there would be without any. Raises what `choose()` does."""
    for part in parts:
        if part.plane is not None:
            _usable(broker, tier, part.plane)
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
        raise VarlinkError(
            _INTERFACE + "ResourceExhaustion",
            plane=part.plane or most,
            requested=part.size if error.part is not None else sum(one.size for one in parts),
            available=room.get(part.plane or most, 0) if error.part is not None else sum(room.values()),
            holders=[],
        ) from None


def _usable(broker: Broker, tier: Tier, plane: str) -> None:
    topology = broker.topology
    if plane not in topology.planes:
        raise VarlinkError(_INTERFACE + "PlaneNotFound", plane=plane[:256])
    for name in (plane, topology.memory(plane)):
        if name in broker.meter.closed:
            raise VarlinkError(
                _INTERFACE + "PlaneQuarantined", plane=name, reason=broker.quarantine.reasons.get(name, "")
            )
    if topology.planes[plane].total is None:
        raise VarlinkError(_INTERFACE + "MemoryUnknown", plane=plane)
    if plane in broker.settings.triage_planes and tier is not Tier.EMERGENCY:
        raise VarlinkError(_INTERFACE + "ResourceExhaustion", plane=plane, requested=0, available=0, holders=[])
