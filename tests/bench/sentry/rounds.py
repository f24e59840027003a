# SPDX-License-Identifier: Apache-2.0
"""Runs in the measured machine: breaks services, one after the other, and prints what the manager says of it.

Times are the manager's own timestamps of the units (monotonic, microseconds), so nothing of ours is on the way:
from the failure of a unit (`InactiveEnterTimestampMonotonic`) to its being active again. A second connection asks
the manager all the while how it is, and the longest wait for an answer is told.

    rounds.py SUBJECT FIRST COUNT [asleep] [unread]     one JSON object

`unread`: nothing that models made of fixed texts is left on the disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from time import monotonic
from typing import Any

from syntrop.common import dbus, loop
from syntrop.common.varlink import client as varlink
from syntrop.sentry.manager import MANAGER, PATH, Manager

PATIENCE = 60.0
DAEMONS = ("routerd", "inferenced", "modeld", "contextd", "toold", "runtimed", "systemd-sentry")
KEPT = "/var/cache/syntrop/runtimed"
TYPO = "[Service]\nExecStart=\nExecStart=/usr/bin/sleeep infinity\n"
TIMES = frozenset(
    ("ActiveState", "SubState", "MainPID", "InvocationID", "InactiveEnterTimestampMonotonic",
     "ActiveEnterTimestampMonotonic", "StateChangeTimestampMonotonic", "InactiveEnterTimestamp")
)  # fmt: skip


class Lab:
    def __init__(self) -> None:
        self.manager = Manager()
        self.other = Manager()
        self.waits: list[tuple[float, float]] = []
        self.asking = 0.0

    async def probe(self) -> None:
        """A foreign caller of the manager: when it asked, and how long it waited (milliseconds)."""
        while True:
            self.asking = begun = monotonic()
            await self.other._call(PATH, "org.freedesktop.DBus.Properties", "Get", "ss", [MANAGER, "Version"])
            self.waits.append((begun, 1e3 * (monotonic() - begun)))
            await loop.sleep(0.001)

    async def longest(self, begun: float, ended: float) -> float:
        while self.asking <= ended:
            await loop.sleep(0.001)  # for the answer to what was asked meanwhile
        return max((wait for at, wait in self.waits if begun <= at <= ended), default=0.0)

    async def call(self, member: str, signature: str = "", *values: Any) -> dbus.Message:
        return await self.manager._call(PATH, MANAGER, member, signature, values)

    async def settled(self, unit: str, wanted: Any) -> dict[str, Any]:
        """The unit's properties as soon as `wanted` holds of them."""
        watch = await self.manager.watch(unit)
        try:
            with loop.deadline(PATIENCE):
                while not wanted(found := await self.manager.unit(unit, TIMES)):
                    await watch.changed()
            return found
        finally:
            watch.close()

    async def start(self, unit: str) -> dict[str, Any]:
        await self.call("StartUnit", "ss", unit, "replace")
        return await self.settled(unit, lambda one: one["ActiveState"] == "active")

    async def again(self, unit: str, before: dict[str, Any]) -> dict[str, Any]:
        """After a failure, active again."""
        return await self.settled(
            unit,
            lambda one: (
                one["ActiveState"] == "active"
                and one["ActiveEnterTimestampMonotonic"] > before["ActiveEnterTimestampMonotonic"]
                and one["InactiveEnterTimestampMonotonic"] > before["InactiveEnterTimestampMonotonic"]
            ),
        )

    async def asleep(self) -> None:
        """Every daemon has gone, as when nobody asked anything for a while."""
        for name in DAEMONS:
            await self.call("StopUnit", "ss", f"{name}.service", "replace")
        for name in DAEMONS:
            await self.settled(f"{name}.service", lambda one: one["ActiveState"] in ("inactive", "failed"))


def took(found: dict[str, Any]) -> float:
    return float(found["ActiveEnterTimestampMonotonic"] - found["InactiveEnterTimestampMonotonic"]) / 1e3


async def bare(lab: Lab, unit: str) -> dict[str, float]:
    """What the manager takes by itself: for a restart, and for a reload."""
    before = await lab.start(unit)
    begun = monotonic()
    await lab.call("RestartUnit", "ss", unit, "replace")
    await lab.settled(
        unit, lambda one: one["ActiveState"] == "active" and one["InvocationID"] != before["InvocationID"]
    )
    restarted = monotonic()
    await lab.call("Reload")
    ended = monotonic()
    return {
        "restart": 1e3 * (restarted - begun),
        "reload": 1e3 * (ended - restarted),
        "wait": await lab.longest(restarted, ended),
    }


async def crash(lab: Lab, unit: str) -> dict[str, float]:
    before = await lab.start(unit)
    begun = monotonic()
    os.kill(before["MainPID"], signal.SIGSEGV)
    found = await lab.again(unit, before)
    return {"took": took(found), "wait": await lab.longest(begun, monotonic())}


async def typo(lab: Lab, unit: str) -> dict[str, float]:
    """A drop-in is edited into nonsense, and the unit restarted by whoever did it."""
    before = await lab.start(unit)
    folder = f"/etc/systemd/system/{unit}.d"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/typo.conf", "w", encoding="utf-8") as file:
        file.write(TYPO)
    await lab.call("Reload")
    await lab.call("RestartUnit", "ss", unit, "replace")
    await lab.settled(unit, lambda one: one["InvocationID"] != before["InvocationID"])
    begun = monotonic()
    found = await lab.settled(
        unit, lambda one: one["ActiveState"] == "active" and not os.path.exists(f"{folder}/typo.conf")
    )
    return {"took": took(found), "wait": await lab.longest(begun, monotonic())}


async def words(lab: Lab, unit: str) -> dict[str, float]:
    """Signatures leave open what it died of: the model is asked, and a person. The decision is in the incident."""
    before = await lab.start(unit)
    os.kill(before["MainPID"], signal.SIGUSR1)
    await lab.settled(unit, lambda one: one["ActiveState"] == "failed")
    return {}


SUBJECTS = {"bare": bare, "crash": crash, "typo": typo, "words": words}


async def incident(unit: str) -> dict[str, Any]:
    """The unit's incident, once it is decided."""
    client = await varlink.connect("/run/systemd-sentry/sentry.sock")
    try:
        until = monotonic() + PATIENCE
        while True:
            with await client.call("io.syntrop.Sentry1.ListIncidents", {"unit": unit, "limit": 1}) as reply:
                found: list[dict[str, Any]] = reply.parameters["incidents"]
                if found and found[0]["status"] not in ("open", "acting"):
                    return dict(found[0])
            if monotonic() > until:
                raise TimeoutError(f"{unit}: {found}")
            await loop.sleep(0.05)
    finally:
        client.close()


async def main(subject: str, first: int, count: int, *, asleep: bool, unread: bool) -> None:
    lab = Lab()
    probing = loop.spawn(lab.probe())
    template = "speaker" if subject == "words" else "victim"
    told = []
    for number in range(first, first + count):
        unit = f"{template}@{subject}{number}.service"
        if asleep:
            await lab.start(unit)
            await lab.asleep()
        if unread:
            for file in os.scandir(KEPT):
                os.unlink(file.path)
        one: dict[str, Any] = await SUBJECTS[subject](lab, unit)
        if subject != "bare":
            found = await incident(unit)
            one["phases"] = {
                phase["name"]: [phase["start_us"], phase["duration_us"], phase["outcome"]]
                for phase in found["phases"]
            }
            one["told"] = 0.0
            if asleep:
                # A report comes later than the failure, and its phases count from when it was told.
                failed = (await lab.manager.unit(unit, TIMES))["InactiveEnterTimestamp"]
                one["told"] = (found["timestamp_us"] - failed) / 1e3
            one["cause"], one["status"] = found["causes"][0]["fault_class"], found["status"]
            one["decided_by"] = found["decided_by"]
        await lab.call("StopUnit", "ss", unit, "replace")
        await lab.call("ResetFailed")
        told.append(one)
        lab.waits.clear()
    await loop.stop(probing)
    print(json.dumps(told))


if __name__ == "__main__":
    how = {name: name in sys.argv[4:] for name in ("asleep", "unread")}
    loop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), **how))
