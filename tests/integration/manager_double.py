# SPDX-License-Identifier: Apache-2.0
"""A service manager's place on a private message bus: tells what a test says of its units, and signals changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus_double import BUS, Bus, Seat

from syntrop.common import dbus
from syntrop.sentry import unitnames

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
SIGNATURES = {
    "ActiveState": "s", "SubState": "s", "LoadState": "s", "Id": "s", "InvocationID": "ay", "Job": "(uo)",
    "Result": "s", "ExecMainCode": "i", "ExecMainStatus": "i", "NRestarts": "u", "Requires": "as", "Names": "as",
    "StateChangeTimestamp": "t", "StateChangeTimestampMonotonic": "t", "MemoryMax": "t", "Type": "s",
}  # fmt: skip
_OF_SERVICES = ("Result", "ExecMainCode", "ExecMainStatus", "NRestarts", "MemoryMax", "Type")


class ManagerDouble(Seat):
    """`units` has properties by unit; `jobs` the type of each job by its path; `asked` the methods called.

    What is in `silent` is not answered.
    """

    def __init__(self, bus: Bus) -> None:
        self.units: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, str] = {}
        self.system_state = "running"
        self.asked: list[str] = []
        self.silent: set[str] = set()
        super().__init__(bus.path, NAME)

    # --- what a test does --------------------------------------------------------------------------------------

    def change(self, unit: str, **properties: Any) -> None:
        """Set properties and tell of it, as the manager does: of the kind of unit first, then of all units."""
        self.units.setdefault(unit, {"Id": unit, "LoadState": "loaded"}).update(properties)
        for interface in ("Service", "Unit"):
            values = self._of(unit, interface)
            self.signal(
                unitnames.path(unit), f"{BUS}.Properties", "PropertiesChanged", "sa{sv}as",
                [f"{NAME}.{interface}", values, ["Dropped"]],
            )  # fmt: skip

    def fail(self, unit: str, invocation: str, *, result: str = "signal", status: int = 11, **more: Any) -> None:
        self.change(
            unit, ActiveState="failed", SubState="failed", InvocationID=bytes.fromhex(invocation), Result=result,
            ExecMainCode=2, ExecMainStatus=status, **more,
        )  # fmt: skip

    # --- the manager -------------------------------------------------------------------------------------------

    def _of(self, unit: str, interface: str) -> dict[str, tuple[str, Any]]:
        own = interface == "Service"
        return {
            name: (SIGNATURES[name], value)
            for name, value in self.units.get(unit, {"Id": unit, "LoadState": "not-found"}).items()
            if (name in _OF_SERVICES) is own
        }

    def answer(self, message: dbus.Message) -> tuple[str, Sequence[Any]] | str | None:
        self.asked.append(message.member)
        return None if message.member in self.silent else self.tell(message)

    def tell(self, message: dbus.Message) -> tuple[str, Sequence[Any]] | str:
        if message.member == "GetAll":
            return "a{sv}", [self._of(unitnames.unit(message.path), message.body[0].rpartition(".")[2])]
        if message.member == "Get":
            if message.body[1] == "SystemState":
                return "v", [("s", self.system_state)]
            kind = self.jobs.get(message.path)
            return f"{BUS}.Error.UnknownObject" if kind is None else ("v", [("s", kind)])
        if message.member == "Subscribe":
            return f"{NAME}.AlreadySubscribed" if "Subscribe" in self.asked[:-1] else ("", [])
        if message.member in ("ListUnitsByNames", "ListUnitsFiltered"):
            named = message.member == "ListUnitsByNames"
            names = (
                message.body[0] if named else [n for n, p in self.units.items() if p["ActiveState"] == "failed"]
            )
            rows = [
                (n, "", "loaded", self.units.get(n, {}).get("ActiveState", "inactive"), "", "", "/x", 0, "", "/")
                for n in names
            ]
            return "a(ssssssouso)", [rows]
        return f"{BUS}.Error.UnknownMethod"
