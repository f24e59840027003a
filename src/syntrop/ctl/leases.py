# SPDX-License-Identifier: Apache-2.0
"""`syntropctl leases`, `explain-lease` and `pressure`: who holds memory, what became of it, how scarce it is."""

from __future__ import annotations

import json
import time

from syntrop.common import paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import VarlinkError
from syntrop.ctl import arbiter
from syntrop.ctl.devices import UNKNOWN
from syntrop.ctl.models import size
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


async def leases(*, watch: bool, as_json: bool) -> int:
    """Print the leases that are held, or what happens to them from now on; the exit status."""
    if watch:
        return await _watch(as_json=as_json)
    found = (await arbiter.ask("ListLeases"))["leases"]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        print("nobody holds a lease")
        return 0
    for line in table(found):
        print(line)
    return 0


async def explain(lease: str, *, as_json: bool) -> int:
    """Print what became of a lease, and why; the exit status."""
    try:
        found = await arbiter.ask("ExplainLease", {"lease_id": lease})
    except VarlinkError as error:
        if error.error != f"{arbiter.ENDPOINT}.LeaseNotFound":
            raise
        return fail(f"there is no lease {lease}, nor was there one lately; `syntropctl leases` lists them")
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    for line in [*table(found["leases"]), "", *explanation(found)]:
        print(line)
    return 0


async def pressure(*, as_json: bool) -> int:
    """Print how pressed the machine is, and how full its planes are; the exit status."""
    found: dict[str, Any] = {"level": UNKNOWN}
    why = ""
    try:
        found = await arbiter.ask("GetPressure")
    except VarlinkError as error:
        if error.error != f"{arbiter.ENDPOINT}.PressureUnavailable":
            raise
        why = f" ({error.parameters['reason']})"
    planes = (await arbiter.ask("ListPlanes"))["planes"]
    if as_json:
        print(json.dumps({**found, "planes": planes}, indent=2))
        return 0
    print(f"pressure is {found['level']}{why}")
    if not why:
        for name in ("cpu", "memory", "io"):
            print(f"  {name + ':':<8}{found[name + '_some']:6.2f} % of the last ten seconds some task waited")
    print()
    for line in fullness(planes):
        print(line)
    return 0


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """One line a part of a lease, under a head."""
    wide = {
        name: max([len(str(one[name])) for one in found] + [len(head)])
        for name, head in (("id", "LEASE"), ("plane_id", "PLANE"), ("priority", "PRIORITY"), ("state", "STATE"))
    }
    yield (
        f"{'LEASE':<{wide['id']}}  {'PLANE':<{wide['plane_id']}}  {'MEMORY':>10}  "
        f"{'PRIORITY':<{wide['priority']}}  {'STATE':<{wide['state']}}  HOLDER"
    )
    for one in found:
        yield (
            f"{one['id']:<{wide['id']}}  {one['plane_id']:<{wide['plane_id']}}  "
            f"{size(one['allocated_memory']):>10}  {one['priority']:<{wide['priority']}}  "
            f"{one['state']:<{wide['state']}}  {holder(one)}"
        )


def holder(lease: dict[str, Any]) -> str:
    """Whom a lease is for."""
    if lease.get("client_unit"):
        return str(lease["client_unit"])
    return f"process {lease['client_pid']}" if lease.get("client_pid") is not None else UNKNOWN


def explanation(found: dict[str, Any]) -> Iterator[str]:
    """What else is told of a lease, a line each."""
    first = found["leases"][0]
    if found.get("reason"):
        yield f"{first['state']} because {found['reason']}"
    if found.get("frozen_for"):
        yield f"It stands still for {', '.join(found['frozen_for'])}"
    if found.get("resident") is not None:
        yield f"While it stands still it is booked with {size(sum(found['resident']))}, which the kernel reports"
    elif first["state"] == "Frozen":
        yield "While it stands still it is booked whole: the kernel does not tell what it uses"
    if found.get("expire_ms") is not None:
        still = ", and its time stands still, too" if first["state"] == "Frozen" else " unless it is renewed"
        yield f"It ends in {found['expire_ms'] / 1000:.1f} s{still}"
    yield f"Of {size(found['capacity'])} that can be leased of this memory, {size(found['booked'])} are"


def fullness(planes: list[dict[str, Any]]) -> Iterator[str]:
    """How full each plane is, a line each."""
    width = max([len(one["id"]) for one in planes] + [5])
    yield f"{'PLANE':<{width}}  {'IN USE':>10}  {'OF':>10}  SHARE"
    for one in planes:
        used, total = one.get("kernel_used_memory"), one.get("total_memory")
        share = f"{100 * used / total:.0f} %" if used is not None and total else UNKNOWN
        shown = [UNKNOWN if value is None else size(value) for value in (used, total)]
        yield f"{one['id']:<{width}}  {shown[0]:>10}  {shown[1]:>10}  {share}"


def event_line(event: dict[str, Any]) -> str:
    """One event for people."""
    words = [event["lease_id"], event["kind"].replace("_", " ")]
    if event.get("memory_bytes") is not None:
        words.append(f"to {size(event['memory_bytes'])}")
    if event.get("deadline_ms") is not None:
        words.append(f"within {event['deadline_ms']} ms")
    return " ".join(words) + (f": {event['reason']}" if event.get("reason") else "")


async def _watch(*, as_json: bool) -> int:
    client = await varlink.connect(paths.endpoint(arbiter.ENDPOINT))
    try:
        async for reply in client.stream(f"{arbiter.ENDPOINT}.Watch", {}):
            with reply:
                event = reply.parameters.get("event")
            if event is None:
                continue
            if as_json:
                print(json.dumps(event), flush=True)
            else:
                print(time.strftime("%H:%M:%S"), event_line(event), flush=True)
    finally:
        client.close()
    return 0
