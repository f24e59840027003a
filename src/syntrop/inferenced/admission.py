# SPDX-License-Identifier: Apache-2.0
"""Whether a lease may be had at all, and its grant or refusal as `io.syntrop.Inference1` tells it."""

from __future__ import annotations

import os

from syntrop.common import journal, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced import holders
from syntrop.inferenced.arbiter import Busy
from syntrop.inferenced.lease import Holder, Lease, NoRoom, OverQuota
from syntrop.inferenced.tier import SPELLED, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from syntrop.inferenced.broker import Broker

INTERFACE = "io.syntrop.Inference1."
SIZE_MAX = 1 << 60  # bytes: beyond it sums could not be told from mistakes
ANCESTORS_MAX = 64


def admit(broker: Broker, tier: Tier, uid: int, size: int, *, leases: int = 1) -> None:
    """Raises what forbids more leases at all: pressure, quotas."""
    settings = broker.settings
    if tier is not Tier.EMERGENCY:
        level = broker.pressing.level()
        if level == "critical":
            raise VarlinkError(INTERFACE + "PressureCritical", level=level)
    if leases and len(broker.table.leases) >= settings.leases_max:
        raise VarlinkError(
            INTERFACE + "QuotaExceeded",
            resource="leases",
            requested=len(broker.table.leases) + 1,
            limit=settings.leases_max,
        )
    if uid not in (0, os.geteuid()):
        try:
            broker.table.check_quota(
                uid, size, settings.leases_max_per_uid + 1 - leases, settings.bytes_max_per_uid
            )
        except OverQuota as error:
            raise VarlinkError(
                INTERFACE + "QuotaExceeded",
                resource=error.resource,
                requested=error.requested,
                limit=error.limit,
            ) from None


async def grant(broker: Broker, lease: Lease, wait: float, requester: int) -> None:
    """Grant a lease that process `requester` asks for, within `wait` seconds. Raises VarlinkError."""
    try:
        await broker.grant(lease, wait, lambda: barred(lease.holder) | barred(Holder(0, requester)))
    except NoRoom as error:
        refuse(error)
    except holders.Gone:
        raise invalid("unit" if lease.holder.unit is not None else "pid") from None
    except Busy:
        limit = broker.settings.waiting_max
        raise VarlinkError(
            INTERFACE + "QuotaExceeded", resource="requests", requested=limit + 1, limit=limit
        ) from None
    except OSError as error:
        journal.error(f"Lease {lease.id} was taken back: {error.strerror}")
        raise VarlinkError(
            INTERFACE + "QuotaExceeded", resource=f"records ({error.strerror})", requested=1, limit=0
        ) from None


def infos(lease: Lease) -> Sequence[dict[str, Any]]:
    """`LeaseInfo` of a lease: one for each of its slices."""
    return [
        {
            "id": lease.id,
            "plane_id": part.plane,
            "allocated_memory": part.size,
            "priority": SPELLED[lease.tier],
            "state": lease.state.value,
            "client_unit": lease.holder.unit,
            "client_pid": lease.holder.pid,
        }
        for part in lease.slices
    ]


def invalid(parameter: str) -> VarlinkError:
    """A parameter has a value that cannot be honoured."""
    return VarlinkError(INTERFACE + "InvalidParameter", parameter=parameter)


def refuse(error: NoRoom) -> NoReturn:
    """Tell it as the interface does."""
    raise VarlinkError(
        INTERFACE + "ResourceExhaustion",
        plane=error.plane,
        requested=error.requested,
        available=error.available,
        holders=[info for one in error.holders for info in infos(one)],
    ) from None


def fresh_id() -> str:
    """Identifier of a new lease."""
    return "l-" + os.urandom(8).hex()


def unit_of(pid: int) -> str:
    """The unit of a process; empty where it has none, or is gone."""
    from syntrop.common import cgroup

    try:
        return cgroup.of_pid(pid).unit() or "" if pid > 0 else ""
    except cgroup.CgroupError:
        return ""


def barred(holder: Holder) -> frozenset[str]:
    """Targets that hold a process or one of its ancestors: to freeze them would stop whoever waits for it."""
    found = set()
    if holder.target:
        found.add(holder.target)
    pid = holder.pid or 0
    for _ in range(ANCESTORS_MAX):
        if pid <= 0:
            break
        found |= _groups(pid)
        pid = _parent(pid)
    return frozenset(found)


def _groups(pid: int) -> set[str]:
    """The unit of a process, and its control groups by their paths: what a group holds stops with it."""
    from syntrop.common import cgroup

    try:
        path = cgroup.of_pid(pid).path
    except cgroup.CgroupError:
        return set()
    parts = path.strip("/").split("/")
    found = {"/" + "/".join(parts[: count + 1]) for count in range(len(parts))}
    unit = cgroup.unit_of(path)
    return found if unit is None else found | {unit}


def _parent(pid: int) -> int:
    try:
        with open(paths.proc(str(pid), "stat"), "rb") as file:
            line = file.read()
        return int(line[line.rindex(b")") + 2 :].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
