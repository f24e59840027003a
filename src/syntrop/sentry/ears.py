# SPDX-License-Identifier: Apache-2.0
"""The resident watcher: hears of every failure from the manager's signals, at once and without asking."""

from __future__ import annotations

from syntrop.common import dbus, dbusprops, journal, loop
from syntrop.sentry import interception, manager, trigger, unitnames
from syntrop.sentry.clock import Clock
from syntrop.sentry.trigger import Trigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from syntrop.sentry.manager import Manager

    Report = Callable[[Trigger], object]

MISSED_MAX: Final = 256  # units that are looked at after the bus was lost
_UNIT: Final = frozenset(
    ("ActiveState", "SubState", "InvocationID", "Job", "StateChangeTimestamp", "StateChangeTimestampMonotonic")
)
_KIND: Final = frozenset(("Result", "ExecMainCode", "ExecMainStatus"))
_OWN: Final = f"type='signal',sender='{manager.NAME}',path='{manager.PATH}',interface='{manager.MANAGER}'"
RULES: Final = (
    manager.changes_of("Unit"),
    *(manager.changes_of(kind) for kind in unitnames.INTERFACES.values()),
    f"{_OWN},member='JobRemoved'",
    f"{_OWN},member='Reloading'",
    "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.freedesktop.systemd1'",
)


class Ears:
    """`since_us` (UTC, microseconds): units that failed later, before anybody listened, are told of as well."""

    def __init__(self, manager: Manager, clock: Clock | None = None, *, since_us: int | None = None) -> None:
        self._manager = manager
        self._clock = clock or Clock()
        self._since_us = self._clock.wall_us() if since_us is None else since_us
        self._interceptor = interception.Interceptor()
        self._report: Report = lambda _trigger: None
        self._again = loop.Event()
        self._caught_up = False

    @property
    def listening(self) -> bool:
        """Whether every failure is heard now."""
        return self._caught_up and self._manager.connected

    async def run(self, report: Report) -> None:
        """Call `report` for each failure, till cancelled. Whatever happens to the bus, it is listened to again."""
        self._report = report
        pause = 0.1
        while True:
            try:
                with loop.deadline(10.0):
                    listener = await self._manager.listen(RULES, self._signal, self._back)
                break
            except (OSError, dbus.DBusError) as error:
                if pause == 0.1:
                    journal.warning(f"The service manager cannot be listened to: {error}")
                await loop.sleep(pause)
                pause = min(2 * pause, 5.0)
        self._again.set()
        try:
            while True:
                await self._again.wait()
                self._again.clear()
                try:
                    with loop.deadline(10.0):
                        await self._catch_up()
                    self._caught_up = True
                except (OSError, dbus.DBusError) as error:
                    journal.warning(f"What failed meanwhile cannot be asked of the manager: {error}")
                    await loop.sleep(1.0)
                    self._again.set()
        finally:
            self._caught_up = False
            listener.close()

    # --- signals ---------------------------------------------------------------------------------------------

    def _back(self) -> None:
        self._caught_up = False
        self._again.set()

    def _signal(self, message: dbus.Message) -> None:
        try:
            if message.member == "PropertiesChanged":
                self._changed(message)
            elif message.member == "JobRemoved" and message.signature == "uoss":
                failing = self._interceptor.removed(message.body[2], message.body[3])
                if failing is not None:
                    self._tell(failing, {})
            elif message.member == "Reloading" and message.signature == "b" and not message.body[0]:
                # Some releases forget their subscribers when they are executed anew.
                loop.spawn(self._subscribe_again(), "listen to the manager again")
            elif message.member == "NameOwnerChanged" and message.signature == "sss" and message.body[2]:
                loop.spawn(self._subscribe_again(), "listen to the manager again")
        except dbus.Malformed as error:
            journal.warning(f"A signal of the manager cannot be read: {error}")

    def _changed(self, message: dbus.Message) -> None:
        unit = unitnames.unit(message.path)
        if not unitnames.kind(unit):
            return
        interface, found = dbusprops.pick(message, _UNIT | _KIND)
        if interface != manager.UNIT:
            if "Result" in found:
                end = interception.End(
                    found["Result"], found.get("ExecMainCode", 0), found.get("ExecMainStatus", 0)
                )
                self._interceptor.ended(unit, end)
            return
        if "ActiveState" not in found:
            return
        number, path = found.get("Job", (0, "/"))
        failing, job = self._interceptor.changed(
            unit,
            found["ActiveState"],
            found.get("SubState", ""),
            bytes(found.get("InvocationID", b"")).hex(),
            path if number else "",
        )
        if failing is not None:
            self._tell(failing, found)
        if job:
            loop.spawn(self._ask(unit, job), f"the type of a job of {unit}")

    async def _ask(self, unit: str, job: str) -> None:
        try:
            with loop.deadline(5.0):
                self._interceptor.typed(unit, job, await self._manager.job_type(job))
        except (OSError, dbus.DBusError):
            pass  # then the journal tells

    async def _subscribe_again(self) -> None:
        try:
            with loop.deadline(10.0):
                (await self._manager.listen(RULES[:1], lambda _message: None, lambda: None)).close()
        except (OSError, dbus.DBusError) as error:
            journal.warning(f"The service manager cannot be listened to: {error}")
        self._again.set()

    async def _catch_up(self) -> None:
        """Tell of what failed while nobody listened."""
        since, self._since_us = self._since_us, self._clock.wall_us()
        new = self._interceptor.missed(await self._manager.failed())
        found = await self._manager.units(new[:MISSED_MAX])
        for unit, properties in found.items():
            invocation = properties.get("InvocationID", "")
            self._interceptor.known(unit, invocation)
            if properties.get("StateChangeTimestamp", 0) >= since:
                end = interception.End(
                    properties.get("Result", ""),
                    properties.get("ExecMainCode", 0),
                    properties.get("ExecMainStatus", 0),
                )
                self._tell(interception.Failing(unit, invocation, end), properties)

    def _tell(self, failing: interception.Failing, found: dict[str, Any]) -> None:
        now, wall = self._clock.monotonic_us(), self._clock.wall_us()
        when = found.get("StateChangeTimestampMonotonic", 0)
        # The manager's own clock is the kernel's monotonic one, as ours; a machine that was suspended differs.
        failed_us = when if 0 < when <= now else now
        self._report(
            Trigger(
                failing.unit,
                failed_us=failed_us,
                wall_us=wall - (now - failed_us),
                invocation=failing.invocation,
                source=trigger.SIGNAL,
                occasion=failing.occasion,
                restarting=failing.restarting,
                result=failing.end.result,
                code=failing.end.code,
                status=failing.end.status,
            )
        )
