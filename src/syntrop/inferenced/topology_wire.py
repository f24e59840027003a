# SPDX-License-Identifier: Apache-2.0
"""Planes as `io.syntrop.Inference1` shows them. Pure; what is unknown is null."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from syntrop.inferenced.gauges import Fill
    from syntrop.inferenced.plane import Plane, Topology
    from syntrop.inferenced.processor import Memory


def planes(
    topology: Topology,
    fills: Mapping[str, Fill],
    booked: Mapping[str, int],
    *,
    reserved: Collection[str] = (),
    quarantined: Collection[str] = (),
) -> list[dict[str, Any]]:
    """`ComputePlane` of each plane: the reply of `ListPlanes`.

    `booked` are bytes that leases hold, or nobody may, by the plane whose memory it is (`Topology.memory()`);
    `reserved` and `quarantined` are planes kept for emergencies, and faulty ones.
    """
    found = []
    for id, plane in topology.planes.items():
        one: dict[str, Any] = {
            "id": id,
            "name": plane.name,
            "kind": plane.kind,
            "total_memory": plane.total,
            "available_memory": available(fills.get(id), booked.get(topology.memory(id), 0)),
            "is_triage_reserved": id in reserved,
            "features": list(plane.features),
            "p2p_links": [_link(topology, id, other) for other, _ in topology.links(id)],
            "kernel_used_memory": fills[id].used if id in fills else None,
            "is_quarantined": id in quarantined,
            "driver": plane.driver or None,
            "device_path": f"/dev/{plane.device}" if plane.device else None,
            "numa_node": plane.numa_node,
            "cores": plane.cores,
            "host_plane_id": plane.host,
        }
        found.append(one)
    return found


def available(fill: Fill | None, booked: int) -> int | None:
    """Bytes that a lease could really get; None where some use by others is not known."""
    if fill is None or fill.lendable is None or not fill.exact:
        return None
    return max(0, fill.lendable - booked)


def topology(
    topology: Topology, fills: Mapping[str, Fill], booked: Mapping[str, int], memory: Memory, **marks: Any
) -> dict[str, Any]:
    """The reply of `GetTopology`; `marks` as for `planes()`. Host memory that the kernel does not tell is the sum
    of what its nodes have, which it tells then."""
    processors = [plane for plane in topology.planes.values() if plane.kind == "cpu"]
    total = memory.total if memory.total is not None else sum(plane.total or 0 for plane in processors)
    return {
        "planes": planes(topology, fills, booked, **marks),
        "total_ram": total,
        "available_ram": memory.available if memory.available is not None else 0,
        "cpu_cores": sum(plane.cores or 0 for plane in processors),
    }


def watermarks(topology: Topology, fills: Mapping[str, Fill], device: str | None = None) -> list[dict[str, Any]]:
    """`DrmWatermarkInfo` of each device, or of the one that is asked for by its name or its plane's: the reply of
    `GetDrmWatermark`. None of that name: empty."""
    found = []
    for id, plane in topology.planes.items():
        if plane.device is not None and device in (None, name(plane), plane.device, f"/dev/{plane.device}", id):
            found.append(watermark(plane, fills.get(id)))
    return found


def watermark(plane: Plane, fill: Fill | None) -> dict[str, Any]:
    used = fill.used if fill is not None else None
    # Of a device in the host's memory no other driver tells a total; the plane's is what the host has.
    total = plane.total if plane.host is None or plane.driver == "amdgpu" else None
    whole = used is not None and total is not None and total > 0
    return {
        "device": name(plane),
        "vendor": plane.vendor if plane.vendor in ("amd", "intel", "nvidia") else plane.driver,
        "vram_used": used,
        "vram_total": total,
        "used_percentage": 100.0 * used / total if whole and used is not None and total is not None else None,
        "fallback_psi": not whole,
    }


def name(plane: Plane) -> str:
    """The device's name without its folder: `renderD128`, `accel0`."""
    return (plane.device or "").rpartition("/")[2]


def _link(topology: Topology, plane: str, other: str) -> dict[str, Any]:
    link = topology.link(plane, other)
    assert link is not None
    return {
        "peer_plane_id": other,
        "link_type": link.type,
        "bandwidth_bytes_sec": link.bandwidth,
        "latency_nanos": link.latency,
        "distance": link.distance,
    }
