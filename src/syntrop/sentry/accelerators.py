# SPDX-License-Identifier: Apache-2.0
"""Faulty accelerators: what the kernel's log tells of a gang's devices, the faulty plane put into quarantine in
inferenced, its gang released, and the healthy planes named, which can be leased again at once.
"""

from __future__ import annotations

import os

from syntrop.common import loop, paths
from syntrop.common.patterns import late
from syntrop.sentry import gpu
from syntrop.sentry.peers import INFERENCED, PeerError
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from syntrop.sentry.gpu import GangVerdict
    from syntrop.sentry.peers import Peers

_INFERENCE1 = "io.syntrop.Inference1."
TIMEOUT = 5.0  # seconds for each call of inferenced
REASON_MAX = 500  # characters; inferenced takes a little more
_PLANE = late(r"\A[gn]pu-(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z")
_DEVICE = late(r"\A[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")


class Gang(Record):
    """What befell a gang. `plane` is the faulty one's identifier, empty where none is to blame; `healthy` are the
    others'; `gang`: whether they are those that the unit had leased, rather than all of the machine."""

    __slots__ = ("gang", "healthy", "plane", "verdict")

    def __init__(self, verdict: GangVerdict, plane: str, healthy: Sequence[str], *, gang: bool) -> None:
        self.verdict, self.plane, self.healthy, self.gang = verdict, plane, tuple(healthy), gang

    @property
    def sentence(self) -> str:
        """For the audit."""
        return f"{self.verdict.explanation} ({self.verdict.category}, {self.verdict.action.replace('_', ' ')})"


async def triage_planes(lines: Sequence[str], peers: Peers, *, unit: str = "") -> Gang | None:
    """What befell the accelerators, from the kernel's lines since the unit ran; None where they tell of no fault
    of a plane. Nothing is asked of anybody where no line tells of a fault. Raises PeerError.

    Of a unit that still has leases, those planes are looked at; where its end has ended them, all of the machine.
    """
    if not gpu.read(lines):
        return None
    planes = (await _ask(peers, "ListPlanes"))["planes"]
    usable = {one["id"] for one in planes if one["kind"] != "cpu" and not one.get("is_quarantined")}
    addresses = {id: match["address"] for id in sorted(usable) if (match := _PLANE.match(id)) is not None}
    leases = (await _ask(peers, "ListLeases"))["leases"] if unit else []
    leased = {one["plane_id"] for one in leases if one.get("client_unit") == unit}
    members = {id: address for id, address in addresses.items() if id in leased} or addresses
    if not members:
        return None
    behind = await loop.thread(bridges, members.values())
    found = gpu.triage(lines, list(members.values()), behind=behind)
    if found.action == gpu.NOTHING:
        return None
    names = {address: id for id, address in members.items()}
    faulty = names.get(found.faulty, "")
    healthy = [names[one] for one in found.healthy if one in names]
    return Gang(found, faulty, healthy, gang=members is not addresses)


async def isolate(gang: Gang, peers: Peers) -> list[str]:
    """Put the faulty plane into quarantine, which releases its gang: the leases that had a part on it end, with
    their parts on healthy planes. Their identifiers. Raises PeerError."""
    return await quarantine(peers, gang.plane, gang.verdict.explanation) if gang.plane else []


async def quarantine(peers: Peers, plane: str, reason: str = "") -> list[str]:
    """Have nothing placed on a plane any more; the leases that were revoked by it. Raises PeerError, whose `error`
    ends with `.PlaneNotFound` where there is no such plane."""
    parameters = {"plane": plane, **({"reason": reason[:REASON_MAX]} if reason else {})}
    revoked = (await _ask(peers, "QuarantinePlane", parameters))["revoked_leases"]
    return [str(one) for one in revoked]


async def clear(peers: Peers, plane: str) -> None:
    """Let a plane be used again. Raises PeerError as `quarantine` does."""
    await _ask(peers, "ClearQuarantine", {"plane": plane})


def is_unknown(error: PeerError) -> bool:
    """Whether inferenced knows no such plane."""
    return error.error == _INFERENCE1 + "PlaneNotFound"


def bridges(devices: Iterable[str]) -> dict[str, list[str]]:
    """The devices (PCI addresses) that are behind each bridge, from where the kernel puts them below the bus.

    Errors of a port are those of what is behind it. Blocks for a lookup of names for each device.
    """
    found: dict[str, list[str]] = {}
    for device in devices:
        place = os.path.realpath(paths.sys("bus", "pci", "devices", device))
        above = [part for part in place.split("/")[:-1] if _DEVICE.match(part)]
        for bridge in above:
            found.setdefault(bridge, []).append(device)
    return found


async def _ask(peers: Peers, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return await peers.call(INFERENCED, _INFERENCE1 + method, dict(parameters or {}), timeout=TIMEOUT)
