# SPDX-License-Identifier: Apache-2.0
"""The methods of `io.syntrop.Inference1` about leases: who may, what is meant, and what is answered."""

from __future__ import annotations

import os
from time import monotonic

from syntrop.common import authority, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced import holders, placement
from syntrop.inferenced.admission import (
    INTERFACE,
    SIZE_MAX,
    admit,
    barred,
    fresh_id,
    grant,
    infos,
    invalid,
    refuse,
    unit_of,
)
from syntrop.inferenced.choice import choose, place
from syntrop.inferenced.lease import Holder, Lease, NoRoom, NoSuchLease, Slice, State, WrongState
from syntrop.inferenced.standstill import FreezeError
from syntrop.inferenced.tier import NAMES, SPELLED, Tier
from syntrop.inferenced.watch import BEHIND_MAX, SIGNALS, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, NoReturn

    from syntrop.common.varlink.server import Call
    from syntrop.inferenced.broker import Broker

WAIT_MAX = 24 * 3600 * 1000  # milliseconds


class Leases:
    """`ready()` gives the broker; `endpoint` is the socket that the calls come by."""

    def __init__(self, ready: Callable[[], Awaitable[Broker]], endpoint: str) -> None:
        self._ready = ready
        self._endpoint = endpoint

    async def AcquireLease(
        self,
        call: Call,
        priority: str,
        memory_bytes: int,
        plane: str | None = None,
        unit: str | None = None,
        pid: int | None = None,
        wait_ms: int | None = None,
        expire_ms: int | None = None,
        bind_connection: bool | None = None,
        yield_signal: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        tier = await self._tier(call, priority)
        size = _size("memory_bytes", memory_bytes)
        wait = _milliseconds("wait_ms", wait_ms, 0, WAIT_MAX)
        lifetime = None if expire_ms is None else _milliseconds("expire_ms", expire_ms, 1, 1 << 40)
        if yield_signal is not None and yield_signal not in SIGNALS:
            raise invalid("yield_signal")
        holder = await self._holder(call, unit, pid, allowInteractiveAuthentication)
        broker = await self._ready()
        admit(broker, tier, call.peer.uid, size)
        name = await choose(broker, tier, size, plane)
        part = Slice(name, broker.topology.memory(name), size)
        lease = Lease(
            fresh_id(),
            tier,
            holder,
            (part,),
            0,
            lifetime=lifetime,
            signal=yield_signal,
            bound=bool(bind_connection),
        )
        await grant(broker, lease, wait, call.peer.pid)
        if lease.bound:
            call.connection.when_closed(lambda: _end_bound(broker, lease))
        return {"lease_id": lease.id, "plane_id": name, "allocated_memory": size}

    async def AcquireCompositeLease(
        self,
        call: Call,
        priority: str,
        policy: str | None = None,
        *,
        slices: list[dict[str, Any]],
        unit: str | None = None,
        pid: int | None = None,
        wait_ms: int | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        tier = await self._tier(call, priority)
        chosen = policy or placement.POLICIES[0]
        if chosen not in placement.POLICIES:
            raise invalid("policy")
        if not 1 <= len(slices) <= placement.PARTS_MAX:
            raise invalid("slices")
        parts = [
            placement.Part(one["role"], _size("slices", one["memory_bytes"]), one.get("plane")) for one in slices
        ]
        wait = _milliseconds("wait_ms", wait_ms, 0, WAIT_MAX)
        holder = await self._holder(call, unit, pid, allowInteractiveAuthentication)
        broker = await self._ready()
        admit(broker, tier, call.peer.uid, sum(part.size for part in parts))
        where = await place(broker, tier, parts, chosen, waits=wait > 0)
        topology = broker.topology
        lease = Lease(
            fresh_id(),
            tier,
            holder,
            tuple(
                Slice(name, topology.memory(name), part.size, part.role)
                for name, part in zip(where, parts, strict=True)
            ),
            0,
            policy=chosen,
        )
        await grant(broker, lease, wait, call.peer.pid)
        granted = []
        for part in lease.slices:
            plane = topology.planes[part.plane]
            granted.append(
                {
                    "plane_id": part.plane,
                    "role": part.role,
                    "allocated_memory": part.size,
                    "numa_node": plane.numa_node,
                    "device_path": f"/dev/{plane.device}" if plane.device else None,
                }
            )
        return {"lease_id": lease.id, "slices": granted, "priority": SPELLED[tier], "policy": chosen}

    async def ResizeLease(
        self,
        call: Call,
        lease_id: str,
        memory_bytes: int,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        size = _size("memory_bytes", memory_bytes)
        broker, lease = await self._own(call, lease_id, allowInteractiveAuthentication)
        if len(lease.slices) != 1:
            raise invalid("lease_id")  # a gang stands and falls as it is
        if size > lease.size:
            admit(broker, lease.tier, call.peer.uid, size - lease.size, leases=0)
        try:
            await broker.arbiter.resize(lease, size, lambda: barred(lease.holder))
        except NoRoom as error:
            refuse(error)
        except WrongState:
            raise VarlinkError(
                INTERFACE + "LeaseStandsStill", lease_id=lease_id, state=lease.state.value
            ) from None
        return {"lease_id": lease.id, "plane_id": lease.slices[0].plane, "allocated_memory": lease.size}

    async def RenewLease(
        self, call: Call, lease_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker, lease = await self._own(call, lease_id, allowInteractiveAuthentication)
        left = broker.table.renew(lease, monotonic())
        if left is None:
            raise invalid("lease_id")
        broker.plan_expiry()
        return {"expire_ms": int(left * 1000)}

    async def ReleaseLease(
        self, call: Call, lease_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker, lease = await self._own(call, lease_id, allowInteractiveAuthentication)
        broker.arbiter.end(lease, State.RELEASED, "its holder gave it back")
        return {}

    async def ReleaseCompositeLease(
        self, call: Call, lease_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker, lease = await self._own(call, lease_id, allowInteractiveAuthentication)
        if lease.policy is None:
            raise VarlinkError(INTERFACE + "LeaseNotFound", lease_id=lease_id)
        broker.arbiter.end(lease, State.RELEASED, "its holder gave it back")
        return {}

    async def Yield(
        self, call: Call, lease_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker, lease = await self._own(call, lease_id, allowInteractiveAuthentication)
        if lease.state is not State.PREEMPTED:
            try:
                broker.arbiter.yielded(lease)
            except WrongState:
                raise VarlinkError(
                    INTERFACE + "LeaseStandsStill", lease_id=lease_id, state=lease.state.value
                ) from None
        return {}

    async def Freeze(
        self, call: Call, lease_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker, lease = await self._any(call, lease_id, authority.FREEZE, allowInteractiveAuthentication)
        try:
            if lease.holder.target in barred(Holder(call.peer.uid, call.peer.pid)):
                raise FreezeError("the caller is among these processes", lease.holder.target)
            await broker.arbiter.freeze(lease)
        except FreezeError as error:
            self._refuse_freeze(lease, error.reason, error.unit)
        except WrongState as error:
            self._refuse_freeze(lease, str(error))
        broker.hold()
        return {}

    async def Thaw(
        self, call: Call, lease_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker, lease = await self._any(call, lease_id, authority.FREEZE, allowInteractiveAuthentication)
        try:
            await broker.arbiter.thaw(lease)
        except NoRoom as error:
            refuse(error)
        except WrongState:
            pass  # it runs, which is what was asked for
        return {}

    async def ListLeases(self, call: Call) -> dict[str, Any]:
        broker = await self._ready()
        return {"leases": [info for one in broker.table for info in infos(one)]}

    async def ListCompositeLeases(self, call: Call) -> dict[str, Any]:
        broker = await self._ready()
        return {"composite_leases": [one.id for one in broker.table if one.policy is not None]}

    async def ExplainLease(self, call: Call, lease_id: str) -> dict[str, Any]:
        broker = await self._ready()
        lease = broker.table.leases.get(lease_id) or broker.table.ended.get(lease_id)
        if lease is None:
            raise VarlinkError(INTERFACE + "LeaseNotFound", lease_id=lease_id)
        left = None
        if lease.deadline is not None and lease.id in broker.table.leases:
            left = lease.deadline if lease.state is State.FROZEN else lease.deadline - monotonic()
        memory = lease.slices[0].memory
        residents = [part.resident for part in lease.slices]
        return {
            "leases": list(infos(lease)),
            "reason": lease.reason or None,
            "expire_ms": None if left is None else max(0, int(left * 1000)),
            "capacity": broker.table.capacity(memory),
            "booked": broker.table.booked(memory),
            "resident": None if lease.state is not State.FROZEN or None in residents else residents,
            "asked": broker.watchers.asked(lease),
            "frozen_for": [
                cause
                for standstill in broker.arbiter.standing
                if lease.id in standstill.leases
                for cause in sorted(standstill.causes)
            ],
        }

    async def Watch(
        self, call: Call, lease_id: str | None = None, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        call.require_more()
        if lease_id is not None:
            broker, _ = await self._own(call, lease_id, allowInteractiveAuthentication)
            every = True
        else:
            broker = await self._ready()
            every = await self._holds(call, authority.FOREIGN, allowInteractiveAuthentication)
        uid = call.peer.uid
        unit = unit_of(call.peer.pid)
        watcher = Watcher(lease_id, call.peer.pid, unit, lambda one: every or one.holder.uid == uid)
        broker.watchers.add(watcher)
        try:
            await call.send({})
            while True:
                event = await watcher.queue.get()
                if event is None:
                    return {}
                await call.send({"event": event})
                if watcher.overrun and not len(watcher.queue):
                    raise VarlinkError(
                        INTERFACE + "QuotaExceeded", resource="events", requested=BEHIND_MAX + 1, limit=BEHIND_MAX
                    )
        finally:
            broker.watchers.remove(watcher)

    # --- inside --------------------------------------------------------------------------------------------

    async def _tier(self, call: Call, priority: str) -> Tier:
        tier = NAMES.get(priority)
        if tier is None:
            raise invalid("priority")
        await authority.authorize(call)
        if tier is Tier.EMERGENCY:
            await authority.authorize(call, authority.TRIAGE, endpoint=self._endpoint)
        return tier

    async def _holder(self, call: Call, unit: str | None, pid: int | None, interactive: bool | None) -> Holder:
        """Whom a lease is for. Another's process or unit wants the right to it."""
        peer = call.peer
        if unit is not None and pid is not None:
            raise invalid("unit")
        try:
            if unit is not None:
                if unit != unit_of(peer.pid):
                    about = {"unit": unit[:256]}
                    await authority.authorize(call, authority.FOREIGN, interactive=interactive, details=about)
                return holders.of_unit(peer.uid, unit)
            if pid is not None and pid != peer.pid:
                if not 0 < pid < 1 << 22:
                    raise invalid("pid")
                about = {"pid": str(pid)}
                await authority.authorize(call, authority.FOREIGN, interactive=interactive, details=about)
                broker = await self._ready()
                uid = os.stat(paths.proc(str(pid))).st_uid
                return holders.of_process(uid, pid, delegated=broker.freezer.delegated)
            found = peer.identity() if peer.known else None
            if found is None:
                raise invalid("pid")  # the caller cannot be told from others: on another host's socket, or gone
            broker = await self._ready()
            return broker.known(peer.uid, found[0], found[1])
        except (holders.Gone, FileNotFoundError):
            raise invalid("unit" if unit is not None else "pid") from None

    async def _own(self, call: Call, lease_id: str, interactive: bool | None) -> tuple[Broker, Lease]:
        """A lease that is the caller's, or that the caller may act on all the same."""
        broker = await self._ready()
        lease = self._find(broker, lease_id)
        if call.peer.known and call.peer.uid == lease.holder.uid:
            return broker, lease
        return await self._any(call, lease_id, authority.FOREIGN, interactive)

    async def _any(
        self, call: Call, lease_id: str, right: authority.Right, interactive: bool | None
    ) -> tuple[Broker, Lease]:
        broker = await self._ready()
        self._find(broker, lease_id)
        await authority.authorize(call, right, interactive=interactive, details={"lease": lease_id})
        return broker, self._find(broker, lease_id)  # it may have ended while somebody was asked

    @staticmethod
    def _find(broker: Broker, lease_id: str) -> Lease:
        try:
            return broker.table.get(lease_id)
        except NoSuchLease:
            raise VarlinkError(INTERFACE + "LeaseNotFound", lease_id=lease_id[:256]) from None

    @staticmethod
    async def _holds(call: Call, right: authority.Right, interactive: bool | None) -> bool:
        from syntrop.common.varlink.errors import PermissionDenied

        try:
            await authority.authorize(call, right, interactive=interactive)
        except PermissionDenied:
            return False
        return True

    @staticmethod
    def _refuse_freeze(lease: Lease, reason: str, unit: str | None = None) -> NoReturn:
        raise VarlinkError(
            INTERFACE + "FreezeRefused",
            lease_id=lease.id,
            unit=unit or lease.holder.unit or lease.holder.target or None,
            reason=reason,
        )


def _end_bound(broker: Broker, lease: Lease) -> None:
    if lease.id in broker.table.leases:
        broker.arbiter.end(lease, State.RELEASED, "its connection has ended")


def _size(parameter: str, value: int) -> int:
    if not 0 < value <= SIZE_MAX:
        raise invalid(parameter)
    return value


def _milliseconds(parameter: str, value: int | None, least: int, most: int) -> float:
    """Seconds."""
    if value is None:
        return 0.0
    if not least <= value <= most:
        raise invalid(parameter)
    return value / 1000
