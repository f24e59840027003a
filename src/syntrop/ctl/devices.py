# SPDX-License-Identifier: Apache-2.0
"""`syntropctl devices`: what computes here, how much memory it has, and the ways between."""

from __future__ import annotations

import json

from syntrop.ctl import arbiter
from syntrop.ctl.models import size
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

UNKNOWN = "unknown"


async def devices(plane: str | None, *, links: bool, as_json: bool) -> int:
    """Print the planes, or one; the exit status."""
    found = await arbiter.ask("GetTopology")
    if plane is not None:
        found["planes"] = [one for one in found["planes"] if plane in names(one)]
        if not found["planes"]:
            return fail(f"there is no plane {plane}; `syntropctl devices` lists them")
    if as_json:
        print(json.dumps(found if plane is None else found["planes"][0], indent=2))
        return 0
    for line in table(found["planes"]):
        print(line)
    if plane is not None:
        for line in details(found["planes"][0]):
            print(line)
    if links or plane is not None:
        for line in ways(found["planes"], one_sided=plane is not None):
            print(line)
    if plane is None:
        free = f"{size(found['available_ram'])} of {size(found['total_ram'])} of host memory can be had"
        print(f"\n{found['cpu_cores']} cores; {free}")
    return 0


def names(plane: dict[str, Any]) -> set[str]:
    """What a plane may be asked for by: its identifier, its device file and that without folders."""
    path = plane.get("device_path") or ""
    return {plane["id"], path, path.removeprefix("/dev/"), path.rpartition("/")[2]} - {""}


def table(planes: list[dict[str, Any]]) -> Iterator[str]:
    """One line a plane, under a head."""
    width = max([len(one["id"]) for one in planes] + [5])
    yield f"{'PLANE':<{width}}  {'KIND':<4}  {'MEMORY':>10}  {'IN USE':>10}  {'AVAILABLE':>10}  DEVICE"
    for one in planes:
        figures = [one.get(name) for name in ("total_memory", "kernel_used_memory", "available_memory")]
        shown = "  ".join(f"{UNKNOWN if value is None else size(value):>10}" for value in figures)
        yield f"{one['id']:<{width}}  {one['kind']:<4}  {shown}  {one['name']}{_marks(one)}"


def details(plane: dict[str, Any]) -> Iterator[str]:
    """What else is known of one plane, a line each."""
    facts = {
        "driver": plane.get("driver"),
        "device": plane.get("device_path"),
        "NUMA node": plane.get("numa_node"),
        "cores": plane.get("cores"),
        "features": " ".join(plane.get("features") or ()) or None,
    }
    yield ""
    for name, value in facts.items():
        if value is not None:
            yield f"{name + ':':<11}{value}"


def ways(planes: list[dict[str, Any]], *, one_sided: bool) -> Iterator[str]:
    """The ways between planes, each once, or from one plane to all."""
    seen: set[tuple[str, str]] = set()
    for one in planes:
        for link in one.get("p2p_links") or ():
            other = link["peer_plane_id"]
            if one_sided or (other, one["id"]) not in seen:
                if not seen:
                    yield ""
                seen.add((one["id"], other))
                speed = link.get("bandwidth_bytes_sec")
                carries = "" if speed is None else f", {speed / 1e9:.1f} GB/s"
                yield f"{one['id']} – {other}: {link['link_type']}, distance {link.get('distance')}{carries}"


def _marks(plane: dict[str, Any]) -> str:
    words = []
    if plane.get("host_plane_id"):
        words.append(f"uses memory of {plane['host_plane_id']}")
    if plane["is_triage_reserved"]:
        words.append("kept for emergencies")
    if plane.get("is_quarantined"):
        words.append("in quarantine")
    return f" ({', '.join(words)})" if words else ""
