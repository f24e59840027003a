# SPDX-License-Identifier: Apache-2.0
"""Who opens the devices that leases are on: a client in a stronger slice has the weaker leases stand aside.

Programs of people do not ask before they draw. inotify tells that a node in /dev/dri or /dev/accel was opened or
closed, not by whom; then the processes' open files are looked at (`sight.py`). Only while there are leases on
devices.
"""

from __future__ import annotations

import os
import struct

from syntrop.common import cgroup, journal, loop, paths
from syntrop.inferenced import fdinfo, holders, tier
from syntrop.inferenced.lease import Holder
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Final

    from syntrop.inferenced.lease import Lease
    from syntrop.inferenced.plane import Topology

FOLDERS: Final = ("/dev/dri", "/dev/accel")
SETTLE: Final = 0.01
"""Seconds after an event in which more of them come; they are looked into together."""

_IN_OPEN, _IN_CLOSE_WRITE, _IN_CLOSE_NOWRITE = 0x20, 0x08, 0x10
_IN_ONLYDIR, _IN_NONBLOCK, _IN_CLOEXEC = 0x01000000, 0x800, 0x80000

Client = tuple[int, int]
"""A process by number and start."""


def stronger(lease: Lease, client: Tier, slices: Mapping[str, Tier], group: str) -> bool:
    """Whether a client that was not granted anything comes before a lease whose holder is in `group`.

    A lease is worth its own tier, but no more than the slice of its holder stands for; emergencies are above all.
    """
    if lease.tier is Tier.EMERGENCY:
        return False
    stands_for = tier.of_group(group, slices)
    worth = lease.tier if stands_for is None else min(lease.tier, stands_for)
    return worth < client


class Notices:
    """inotify on the folders of devices. Owns its descriptor."""

    def __init__(self, told: Callable[[], object]) -> None:
        """Raises OSError where there is no folder to watch."""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._told = told
        self.fd = int(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        mask = _IN_OPEN | _IN_CLOSE_WRITE | _IN_CLOSE_NOWRITE | _IN_ONLYDIR
        watched = [
            libc.inotify_add_watch(self.fd, os.fsencode(paths.host(folder)), mask) >= 0 for folder in FOLDERS
        ]
        if not any(watched):
            os.close(self.fd)
            raise OSError(ctypes.get_errno(), "no folder of devices can be watched")
        self._task = loop.spawn(self._run(), "opens of devices")

    async def _run(self) -> None:
        while True:
            await loop.readable(self.fd)
            await loop.sleep(SETTLE)
            if self.fd < 0:
                return  # closed meanwhile: the cancellation comes with the next wait
            if self._drain():
                self._told()

    def _drain(self) -> bool:
        """Whether any of the events is about a node."""
        node = False
        while True:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return node
            at = 0
            while at + 16 <= len(data):
                _, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0")
                node |= name.startswith((b"renderD", b"card", b"accel")) or bool(mask & 0x4000)  # overflow
                at += 16 + length

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        loop.forget(fd)
        self._task.cancel()
        os.close(fd)


def clients(topology: Topology, files: Iterable[fdinfo.File]) -> dict[str, set[Client]]:
    """Processes that have a plane's node open, by plane. Pure."""
    nodes = {plane.device: name for name, plane in topology.planes.items() if plane.device}
    found: dict[str, set[Client]] = {}
    for file in files:
        plane = nodes.get(file.node)
        if plane is not None and file.start:
            found.setdefault(plane, set()).add((file.pid, file.start))
    return found


class Opens:
    """Has weaker leases stand aside while a stronger client has their device open.

    `aside(cause, leases, reason)` asks and then freezes; `over(cause)` lets them go on. `leases(plane)` tells the
    leases on a plane, `look()` who has devices open.
    """

    def __init__(
        self,
        topology: Callable[[], Topology],
        slices: Mapping[str, Tier],
        leases: Callable[[str], list[Lease]],
        aside: Callable[[str, list[Lease], str], object],
        over: Callable[[str], object],
        look: Callable[[], Awaitable[fdinfo.Look]],
    ) -> None:
        self._sight = look
        self._topology = topology
        self.slices = slices
        self._leases = leases
        self._aside = aside
        self._over = over
        self._notices: Notices | None = None
        self._refused = False
        self._present: dict[Client, str] = {}
        self._gone = holders.Watcher(lambda key: self._left(key) if isinstance(key, tuple) else None)
        self._looking: loop.Task[None] | None = None
        self._again = False

    def watch(self) -> None:
        """There are leases on devices."""
        if self._notices is None and not self._refused:
            try:
                self._notices = Notices(self.look)
            except OSError as error:
                self._refused = True
                journal.info(f"Clients that open devices are not seen: {error.strerror or error}")
            else:
                self.look()

    def rest(self) -> None:
        """There are none left."""
        if self._notices is not None:
            self._notices.close()
            self._notices = None
        for client in list(self._present):
            self._left(client)
        self._gone.close()

    def look(self) -> None:
        """Look who has the devices open."""
        self._again = True
        if self._looking is None:
            self._looking = loop.spawn(self._look(), "clients of devices")

    async def _look(self) -> None:
        try:
            while self._again and self._notices is not None:
                self._again = False
                seen = await self._sight()
                if seen.cut:
                    journal.notice("Who opens devices is not known: too many files are open")
                else:
                    self._compare(clients(self._topology(), seen.files))
        finally:
            self._looking = None

    def _compare(self, found: Mapping[str, set[Client]]) -> None:
        holding = {one.holder.key for plane in found for one in self._leases(plane)}
        still: set[Client] = set()
        for plane, there in found.items():
            for client in there:
                if client in holding:
                    continue
                wanted = self._tier(client[0])
                weaker = [
                    one
                    for one in self._leases(plane)
                    if wanted is not None and stronger(one, wanted, self.slices, _group(one.holder))
                ]
                if not weaker and client not in self._present:
                    continue
                still.add(client)
                self._arrived(client, plane, weaker)
        for client in set(self._present) - still:
            self._left(client)

    def _arrived(self, client: Client, plane: str, weaker: Iterable[Lease]) -> None:
        cause = self._present.get(client)
        if cause is None:
            cause = f"process {client[0]}"
            try:
                self._gone.add(Holder(0, *client))
            except (holders.Gone, OSError):
                return
            self._present[client] = cause
        self._aside(cause, list(weaker), f"{cause} of a stronger slice has opened {plane}")

    def _left(self, client: Client) -> None:
        cause = self._present.pop(client, None)
        if cause is not None:
            self._gone.remove(Holder(0, *client))
            self._over(cause)

    def _tier(self, pid: int) -> Tier | None:
        return tier.of_group(_group(Holder(0, pid)), self.slices)


def _group(holder: Holder) -> str:
    """Path of a holder's control group; empty when it is gone."""
    try:
        if holder.unit is not None:
            return cgroup.of_unit(holder.unit).path
        return cgroup.of_pid(holder.pid).path if holder.pid else ""
    except cgroup.CgroupError:
        return ""
