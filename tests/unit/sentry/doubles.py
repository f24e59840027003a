# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what a supervisor asks: a machine of units that fail, tools that change them, a context, a model.

What happens to the machine goes on in `World`, which may be kept on disk: then it survives the end of a process,
as a machine does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from syntrop.common import loop
from syntrop.sentry import audit, trigger
from syntrop.sentry.budget import Budget
from syntrop.sentry.causes import Cause
from syntrop.sentry.clock import Clock
from syntrop.sentry.evidence import KERNEL, MANAGER, Entry, Evidence, Exit, facts
from syntrop.sentry.guards import Guards
from syntrop.sentry.hands import HandsError
from syntrop.sentry.kit import Kit
from syntrop.sentry.peers import PeerError
from syntrop.sentry.policy import Occasion, Policy
from syntrop.sentry.remedy import Step
from syntrop.sentry.supervisor import Supervisor
from syntrop.sentry.trigger import Trigger
from syntrop.sentry.verdict import Answer

UNIT = "web.service"
KEY = b"k" * 32
BAD = "/etc/systemd/system/{unit}.d/bad.conf"
CUT = "/etc/systemd/system/{unit}.d/10-limits.conf"
_BY_FILES = ("typo", "cut")  # what ails a unit until a tool has undone it


class World:
    """Units by name, what toold did and keeps, and how many changes there were."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.units: dict[str, dict[str, Any]] = {}
        self.records: list[dict[str, Any]] = []
        self.done: list[str] = []
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            self.units, self.records, self.done = kept["units"], kept["records"], kept["done"]

    def keep(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps({"units": self.units, "records": self.records, "done": self.done}))

    def fail(self, unit: str, *, cause: str = "crash", requires: tuple[str, ...] = (), **more: Any) -> None:
        """It fails: `crash` on a signal, `typo` for a drop-in that names no program, `cut` for one whose memory
        limit was edited, or `weird` (unsure)."""
        old = self.units.get(unit, {})
        number = int(old.get("number", 0)) + 1
        self.units[unit] = {
            "Id": unit, "Names": [unit], "LoadState": "loaded", "ActiveState": "failed", "SubState": "failed",
            "Type": "simple", "Result": "exit-code" if cause == "typo" else "signal", "NRestarts": 0,
            "InvocationID": f"{number:032x}", "Requires": list(requires), "cause": cause, "number": number,
            "cured": True, **more,
        }  # fmt: skip
        self.keep()

    def run(self, unit: str) -> None:
        """Its start: it comes up, if what ails it is cured."""
        one = self.units[unit]
        one["number"] += 1
        one["InvocationID"] = f"{one['number']:032x}"
        well = one["cured"] and one["cause"] not in _BY_FILES
        one["ActiveState"], one["SubState"] = ("active", "running") if well else ("failed", "failed")
        one["Result"] = "success" if well else "exit-code"
        self.keep()


class Watch:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def changed(self) -> None:
        await self._manager.stirred.wait()
        self._manager.stirred.clear()

    def close(self) -> None:
        pass


class Manager:
    def __init__(self, world: World) -> None:
        self.world = world
        self.occasions: dict[str, Occasion] = {}
        self.asked: list[str] = []
        self.stirred = loop.Event()

    async def unit(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        await loop.sleep(0)
        found = self.world.units.get(name)
        return (
            dict(found) if found is not None else {"Id": name, "LoadState": "not-found", "ActiveState": "inactive"}
        )

    async def units(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        return {name: await self.unit(name) for name in names}

    async def states(self, names: Sequence[str]) -> dict[str, str]:
        self.asked.append("states")
        await loop.sleep(0)
        found = [self.world.units.get(name, {"Id": name, "ActiveState": "inactive"}) for name in names]
        return {one["Id"]: one["ActiveState"] for one in found}

    async def occasion(self, name: str, properties: Any) -> Occasion:
        return self.occasions.get(name, Occasion())

    async def watch(self, name: str) -> Watch:
        return Watch(self)


class Slice:
    def __init__(self, properties: dict[str, Any]) -> None:
        self.properties = properties

    def arguments(self) -> dict[str, Any]:
        unit, cause = self.properties["Id"], self.properties.get("cause", "")
        leaving, words = Exit("signal", "killed", 11), f"{unit}: Main process exited, code=killed, status=11/SEGV"
        if cause == "typo":
            leaving = Exit("exit-code", "exited", 203)
            words = f"{unit}: Failed at step EXEC spawning /usr/bin/nonesuch: No such file or directory"
        if cause == "cut":
            leaving = Exit("oom-kill", "killed", 9)
            words = f"{unit}: A process of this unit has been killed by the OOM killer."
        entries = [
            Entry("j1", cursor="s=1", message=words, origin=MANAGER, unit=unit, time_us=1_000_000),
            Entry(
                "j2", cursor="s=2", message=f"{unit}: Failed with result '{leaving.result}'.", origin=MANAGER,
                unit=unit, time_us=1_000_001, fields=(("UNIT_RESULT", leaving.result),),
            ),
        ]  # fmt: skip
        if cause == "xid":
            told = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=a, GPU has fallen off the bus."
            entries.append(Entry("j3", cursor="s=3", message=told, origin=KERNEL, time_us=1_000_000))
        return {
            "invocation": self.properties.get("InvocationID", ""),
            "failed_us": 1_000_000,
            "exit": leaving if self.properties.get("ActiveState") == "failed" else Exit("success", "", 0),
            "facts": facts(self.properties),
            "entries": entries if self.properties.get("ActiveState") == "failed" else [],
        }


class Peers:
    """contextd and inferenced; `late` and `broken` name daemons that are."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.late: set[str] = set()
        self.broken: set[str] = set()
        self.up: set[str] = {"toold", "contextd"}
        self.knocked: list[str] = []
        self.leases: list[str] = []

    def knock(self, *daemons: str) -> None:
        self.knocked.extend(daemons)

    def awake(self, daemon: str) -> bool:
        return daemon in self.up

    async def context(self, unit: str, *, timeout: float) -> dict[str, Any]:
        await self._ready("contextd", timeout)
        cause = self.world.units.get(unit, {}).get("cause")
        if cause not in _BY_FILES:
            return {}
        diff = "--- a\n+++ b\n+[Service]\n+ExecStart=\n+ExecStart=/usr/bin/nonesuch\n"
        path = BAD.format(unit=unit)
        if cause == "cut":
            diff = "--- a\n+++ b\n [Service]\n-MemoryMax=512M\n+MemoryMax=24M\n Nice=3\n"
            path = CUT.format(unit=unit)
        return {
            "config_diffs": [
                {"file_path": path, "timestamp_us": 900_000, "diff_content": diff,
                 "summary": f"{path} was added", "reason": f"drop-in of {unit}, 0.1 s before it failed"},
            ]
        }  # fmt: skip

    async def lease(self, memory_bytes: int, *, timeout: float) -> str:
        await self._ready("inferenced", timeout)
        self.leases.append(f"lease-{len(self.leases)}")
        return self.leases[-1]

    async def release(self, lease_id: str) -> None:
        self.leases.remove(lease_id)

    async def call(self, daemon: str, method: str, parameters: Any = None, *, timeout: float) -> dict[str, Any]:
        raise PeerError(daemon, "is not there")

    async def _ready(self, daemon: str, timeout: float) -> None:
        await loop.sleep(0)
        if daemon in self.late:
            await loop.sleep(timeout)
            raise PeerError(daemon, "no answer", late=True)
        if daemon in self.broken:
            raise PeerError(daemon, "is broken")

    def close(self) -> None:
        pass


class Hands:
    """toold: its steps change the world. `before` and `after` are called around each; they may end the process."""

    def __init__(self, world: World, manager: Manager) -> None:
        self.world, self.manager = world, manager
        self.before: Callable[[str], object] = lambda _what: None
        self.after: Callable[[str], object] = lambda _what: None
        self.refuse: HandsError | None = None

    async def do(self, step: Step) -> str | None:
        await loop.sleep(0)
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        self.before(step.tool)
        unit, kept = self.world.units[step.unit], None
        undoes = {"revert_dropin": "typo", "set_unit_property": "cut"}.get(step.tool)
        if undoes is not None:
            if unit["cause"] != undoes:
                raise HandsError("toold: it has no drop-in of this name")
            unit["cause"] = "crash"
            kept = f"rb-{len(self.world.records)}"
            self.world.records.append(
                {"id": kept, "unit": step.unit, "time_us": Clock().wall_us(), "undoes": undoes}
            )
        elif step.tool == "unit_restart":
            self.world.run(step.unit)
        self.world.done.append(f"{step.tool} {step.unit}")
        self.world.keep()
        self.after(step.tool)
        self.manager.stirred.set()
        if step.tool == "unit_restart" and unit["ActiveState"] != "active":
            raise HandsError(f"toold: {step.unit} did not start again: the job ended as failed")
        return kept

    async def warm(self, unit: str) -> None:
        await loop.sleep(0)

    async def take_back(self, rollback_id: str) -> None:
        await loop.sleep(0)
        self.before("rollback")
        record = next(one for one in self.world.records if one["id"] == rollback_id)
        self.world.units[record["unit"]]["cause"] = record["undoes"]
        self.world.done.append(f"rollback {record['unit']}")
        self.world.keep()
        self.after("rollback")

    async def kept(self, step: Step, *, since_us: int, now_us: int) -> list[str]:
        return [one["id"] for one in self.world.records if one["unit"] == step.unit and one["time_us"] >= since_us]


class Adviser:
    def __init__(self, answer: Answer | str) -> None:
        self.answer = answer
        self.asked: list[list[str]] = []
        self.always = True

    def wanted(self, evidence: Evidence, causes: Any) -> bool:
        return len(causes) > 1 or self.always

    def rest(self) -> None:
        pass

    async def choose(self, evidence: Evidence, causes: Any, *, deadline: int) -> Answer | str:
        await loop.sleep(0)
        self.asked.append([one.fault_class for one in causes])
        return self.answer

    async def sentence(self, evidence: Evidence, cause: Cause, *, deadline: int) -> str:
        return "It fell over."


class Settings:
    patience_sec = 0.2
    probation_sec = 0.05
    start_patience_sec = 2.0


class Daemon:
    """What keeps it is counted, as the real one does."""

    def __init__(self) -> None:
        self.holds = 0

    def busy(self) -> Daemon:
        return self

    def hold(self) -> Daemon:
        self.holds += 1
        return self

    def release(self) -> None:
        self.holds -= 1

    __enter__ = hold

    def __exit__(self, *_: object) -> None:
        self.release()


class House:
    """A supervisor among doubles. To be made on the loop."""

    def __init__(
        self,
        folder: Path,
        world: World,
        *,
        adviser: Any = None,
        budget: tuple[tuple[int, float], ...] = ((1000, 60.0),),
        policy: Policy | None = None,
    ) -> None:
        self.world = world
        self.daemon = Daemon()
        self.manager = Manager(world)
        self.peers = Peers(world)
        self.hands = Hands(world, self.manager)
        self.clock = Clock()
        self.settings = Settings()

        async def slicer(manager: Any, unit: str, key: bytes, *, invocation: str) -> Any:
            return Slice(await manager.unit(unit))

        parts: dict[str, Any] = {
            "settings": self.settings, "manager": self.manager, "slicer": slicer, "peers": self.peers,
            "hands": self.hands, "adviser": adviser, "daemon": self.daemon,
        }  # fmt: skip
        daemon = parts.pop("daemon")
        self.kit = Kit(
            copies=lambda _changes: {},
            audit=audit.Audit(str(folder), keep=1000, keep_days=1.0),
            guards=Guards(policy or Policy(), Budget(budget)),
            clock=self.clock,
            key=KEY,
            **parts,
        )
        self.supervisor = Supervisor(daemon, self.kit)

    def failed(self, unit: str, *, source: str = trigger.REPORT, **more: Any) -> Trigger:
        """The report of a failure."""
        properties = self.world.units[unit]
        return Trigger(
            unit,
            failed_us=self.clock.monotonic_us(),
            wall_us=self.clock.wall_us(),
            invocation=properties["InvocationID"],
            source=source,
            result=properties["Result"],
            **more,
        )

    def incidents(self, **only: Any) -> list[dict[str, Any]]:
        """What the audit has, oldest first."""
        wanted = {"unit": None, "status": None, "since_us": 0, "limit": 1000, **only}
        return self.kit.audit.listing(**wanted)[::-1]

    async def settled(self, seconds: float = 30.0) -> None:
        """Until nothing is under way."""
        with loop.deadline(seconds):
            while self.daemon.holds:
                await loop.sleep(0.005)


def outcomes(house: House) -> list[tuple[str, str]]:
    return [(one["unit"], one["status"]) for one in house.incidents()]


def play(folder: Path, scene: Callable[[House], Awaitable[None]], **more: Any) -> House:
    """A scene with a house of its own; what it left is looked at afterwards."""
    kept: list[House] = []

    async def main() -> None:
        house = House(folder, more.pop("world", None) or World(), **more)
        kept.append(house)
        await scene(house)
        await house.supervisor.close()

    loop.run(main())
    return kept[0]
