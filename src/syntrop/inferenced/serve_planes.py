# SPDX-License-Identifier: Apache-2.0
"""The methods of `io.syntrop.Inference1` about planes: what there is, how full, how pressed, what is faulty."""

from __future__ import annotations

from syntrop import __version__
from syntrop.common import authority, loop, pressure
from syntrop.common.turn import Turn
from syntrop.common.varlink.errors import VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from syntrop.common.varlink.server import Call
    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.gauges import Fill

_INTERFACE = "io.syntrop.Inference1."
REASON_MAX = 1024


class Planes:
    """`ready()` gives the broker."""

    def __init__(self, ready: Callable[[], Awaitable[Broker]]) -> None:
        self._ready = ready
        self._closing = Turn()

    async def GetStatus(self, call: Call) -> dict[str, Any]:
        broker = await self._ready()
        return {
            "status": "degraded" if broker.degraded else "ok",
            "version": __version__,
            "daemon": "inferenced",
            "planes_count": len(broker.topology.planes),
            "leases_count": len(broker.table.leases),
            "pressure": broker.pressing.level(),
        }

    async def GetPressure(self, call: Call) -> dict[str, Any]:
        broker = await self._ready()
        level = broker.pressing.level()
        found = broker.pressing.readings
        if level == pressure.UNKNOWN:
            from syntrop.common import psi

            missing = ", ".join(name for name in psi.RESOURCES if name not in found)
            raise VarlinkError(_INTERFACE + "PressureUnavailable", reason=f"the kernel does not tell {missing}")
        return {
            "level": level,
            "cpu_some": found["cpu"].some.avg10,
            "memory_some": found["memory"].some.avg10,
            "io_some": found["io"].some.avg10,
        }

    async def ListPlanes(self, call: Call) -> dict[str, Any]:
        from syntrop.inferenced import topology_wire

        broker = await self._ready()
        fills, booked, marks = await self._figures(broker)
        return {"planes": topology_wire.planes(broker.topology, fills, booked, **marks)}

    async def GetTopology(self, call: Call) -> dict[str, Any]:
        from syntrop.inferenced import topology_wire

        broker = await self._ready()
        fills, booked, marks = await self._figures(broker)
        return topology_wire.topology(broker.topology, fills, booked, broker.gauges.memory, **marks)

    async def GetDrmWatermark(self, call: Call, device: str | None = None) -> dict[str, Any]:
        from syntrop.inferenced import topology_wire

        broker = await self._ready()
        fills, _, _ = await self._figures(broker)
        found = topology_wire.watermarks(broker.topology, fills, device)
        if device is not None and not found:
            raise VarlinkError(_INTERFACE + "PlaneNotFound", plane=device[:256])
        return {"watermarks": found}

    async def QuarantinePlane(
        self,
        call: Call,
        plane: str,
        reason: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        why = reason or "no reason was given"
        if len(why) > REASON_MAX:
            raise VarlinkError(_INTERFACE + "InvalidParameter", parameter="reason")
        broker = await self._permitted(call, plane, allowInteractiveAuthentication)
        if plane not in broker.topology.planes:
            raise VarlinkError(_INTERFACE + "PlaneNotFound", plane=plane[:256])

        async def close() -> list[str]:
            await loop.thread(broker.quarantine.add, plane, why)
            return broker.close_plane(plane, why)

        # Also when the caller leaves: a plane that is on record as faulty is one that nobody holds.
        return {"revoked_leases": await self._closing.to_the_end(close, f"quarantine of {plane}")}

    async def ClearQuarantine(
        self, call: Call, plane: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        broker = await self._permitted(call, plane, allowInteractiveAuthentication)
        if plane in broker.quarantine.reasons:  # also one that is not there any more

            async def open_again() -> None:
                await loop.thread(broker.quarantine.clear, plane)
                broker.open_plane()

            await self._closing.to_the_end(open_again, f"end of the quarantine of {plane}")
        elif plane not in broker.topology.planes:
            raise VarlinkError(_INTERFACE + "PlaneNotFound", plane=plane[:256])
        return {}

    async def _permitted(self, call: Call, plane: str, interactive: bool | None) -> Broker:
        await authority.authorize(call, interactive=interactive, details={"plane": plane[:256]})
        return await self._ready()

    @staticmethod
    async def _figures(broker: Broker) -> tuple[dict[str, Fill], dict[str, int], dict[str, Any]]:
        fills = await broker.meter.fresh()
        table = broker.table
        booked = {name: table.booked(name) + broker.meter.withheld(name) for name in broker.topology.planes}
        marks = {"reserved": broker.settings.triage_planes, "quarantined": broker.quarantine.reasons}
        return fills, booked, marks
