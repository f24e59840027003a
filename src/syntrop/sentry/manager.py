# SPDX-License-Identifier: Apache-2.0
"""The service manager over D-Bus (org.freedesktop.systemd1(5)): what units are, and told when they change.

Looks only: nothing here changes a unit, and nothing waits for the manager but the task that asked. One connection
serves all, is opened at the first question, and comes back by itself while somebody listens.
"""

from __future__ import annotations

from syntrop.common import dbus, dbusprops, journal, loop
from syntrop.common.turn import Turn
from syntrop.sentry import link, unitnames
from syntrop.sentry.policy import Occasion

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any, Final, TypeVar

    T = TypeVar("T")

NAME: Final = "org.freedesktop.systemd1"
PATH: Final = "/org/freedesktop/systemd1"
MANAGER: Final = f"{NAME}.Manager"
UNIT: Final = f"{NAME}.Unit"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_BUS: Final = "org.freedesktop.DBus"
# Whoever is asked about what is not there says one of these.
_ABSENT: Final = (
    f"{NAME}.NoSuchUnit",
    f"{NAME}.LoadFailed",
    f"{_BUS}.Error.UnknownObject",
    f"{_BUS}.Error.UnknownInterface",
    f"{_BUS}.Error.InvalidArgs",
)
_FULL: Final = f"{_BUS}.Error.LimitsExceeded"
# The manager executes itself anew (daemon-reexec), the bus does not have it (yet), or takes no more for now.
_PASSING: Final = (*(f"{_BUS}.Error.{name}" for name in ("NoReply", "NameHasNoOwner", "ServiceUnknown")), _FULL)
_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4)  # seconds
_WANTED = """
    Id Names Following LoadState LoadError ActiveState SubState FragmentPath SourcePath DropInPaths
    UnitFileState NeedDaemonReload InvocationID Job StateChangeTimestamp
    StateChangeTimestampMonotonic InactiveExitTimestamp InactiveExitTimestampMonotonic
    ActiveEnterTimestamp ActiveEnterTimestampMonotonic ActiveExitTimestampMonotonic
    InactiveEnterTimestamp InactiveEnterTimestampMonotonic Requires Requisite BindsTo PartOf
    RequiredBy BoundBy WantedBy TriggeredBy Triggers OnFailure ConditionResult AssertResult
    StartLimitBurst StartLimitIntervalUSec Type Restart RestartUSec Result ExecMainCode
    ExecMainStatus ExecMainPID MainPID NRestarts ControlGroup Slice LimitNOFILE MemoryMax MemoryHigh
    StateDirectory CacheDirectory LogsDirectory RuntimeDirectory ConfigurationDirectory
    WorkingDirectory ReadWritePaths RootDirectory User EnvironmentFiles StatusText NotifyAccess
    PIDFile DeviceAllow
"""
WANTED: Final = frozenset(_WANTED.split())
_MAX = 2**64 - 1  # how the manager writes that there is no limit
_PAUSE, _PAUSE_MAX = 0.1, 5.0  # seconds between tries to get the bus back


class Listener:
    """Told of signals: `signal` of each, `back` whenever some may have been missed. Both are called in the loop
    and must not wait. `close()` it."""

    def __init__(
        self,
        manager: Manager,
        rules: Sequence[str],
        signal: Callable[[dbus.Message], object],
        back: Callable[[], object],
    ) -> None:
        self._manager = manager
        self.rules, self.signal, self.back = tuple(rules), signal, back

    def close(self) -> None:
        self._manager.forget(self)


class Watch:
    """What `Manager.watch` gives: `changed()` returns when something of the unit may have changed since."""

    def __init__(self, unit: str) -> None:
        self._path = unitnames.path(unit)
        self._event = loop.Event()
        self.listener: Listener | None = None

    def signal(self, message: dbus.Message) -> None:
        if message.path == self._path:
            self._event.set()

    def back(self) -> None:
        self._event.set()

    async def changed(self) -> None:
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None


class Manager:
    """Raises OSError and dbus.DBusError; the deadlines are the caller's."""

    def __init__(self) -> None:
        self._link: link.Link | None = None
        self._opening = Turn()
        self._listeners: list[Listener] = []
        self._returning: loop.Task[None] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection that has not ended."""
        return self._link is not None and not self._link.closed

    # --- questions -------------------------------------------------------------------------------------------

    async def unit(self, name: str, wanted: frozenset[str] = WANTED) -> dict[str, Any]:
        """Properties of a unit and of its kind, by their D-Bus names; `InvocationID` as hexadecimal digits, no
        limit as "infinity". One that is not there has the `LoadState` "not-found", and nothing else for sure."""
        return (await self.units([name], wanted))[name]

    async def units(self, names: Sequence[str], wanted: frozenset[str] = WANTED) -> dict[str, dict[str, Any]]:
        """The same of several, all asked before the first answer is waited for."""
        return await self._patiently(self._units, names, wanted)

    async def _units(self, names: Sequence[str], wanted: frozenset[str]) -> dict[str, dict[str, Any]]:
        asked: list[tuple[str, loop.Future[dbus.Message]]] = []
        found: dict[str, dict[str, Any]] = {}
        bus = await self._connected()
        for name in names:
            found[name] = {"Id": name, "LoadState": "not-found"}
            if not unitnames.is_name(name):
                continue
            for interface in ("Unit", unitnames.kind(name)):
                if interface:
                    values = [f"{NAME}.{interface}"]
                    path = unitnames.path(name)
                    asked.append((name, await bus.begin(NAME, path, PROPERTIES, "GetAll", "s", values)))
        for name, reply in asked:
            try:
                found[name].update(_plain(dbusprops.pick(await reply, wanted)[1]))
            except dbus.DBusError as error:
                if error.name not in _ABSENT:
                    raise
        return found

    async def states(self, names: Sequence[str]) -> dict[str, str]:
        """`ActiveState` of several units, in one question."""
        if not names:
            return {}
        reply = await self._call(PATH, MANAGER, "ListUnitsByNames", "as", [list(names)])
        return {row[0]: row[3] for row in reply.body[0]}

    async def failed(self) -> list[str]:
        """The units that are failed now."""
        reply = await self._call(PATH, MANAGER, "ListUnitsFiltered", "as", [["failed"]])
        return [row[0] for row in reply.body[0]]

    async def occasion(self, name: str, properties: Mapping[str, Any]) -> Occasion:
        """What goes on around a unit with these properties. That its last job was a stop is not known to the
        manager any more; the journal tells."""
        number, path = properties.get("Job") or (0, "/")
        # The manager's own restart of a unit is a job as well, and none that anybody asked for.
        by_itself = "auto-restart" in str(properties.get("SubState", ""))
        job = await self.job_type(path) if number and not by_itself else ""
        state = await self._call(PATH, PROPERTIES, "Get", "ss", [MANAGER, "SystemState"])
        return Occasion(job=job, leaving=state.body[0][1] == "stopping")

    async def job_type(self, path: str) -> str:
        """`start`, `stop`, `restart` and so on; empty for a job that is over."""
        try:
            reply = await self._call(path, PROPERTIES, "Get", "ss", [f"{NAME}.Job", "JobType"])
        except dbus.DBusError as error:
            if error.name in _ABSENT:
                return ""
            raise
        kind: str = reply.body[0][1]
        return kind

    # --- signals ---------------------------------------------------------------------------------------------

    async def watch(self, name: str) -> Watch:
        """From now on, no change of the unit is missed; unless the bus keeps no more rules for us (512, by
        `max_match_rules_per_connection` of dbus-daemon(1)), when who watches must look by himself now and then."""
        watch = Watch(name)
        rule = changes_of("Unit", unitnames.path(name))
        try:
            watch.listener = await self.listen([rule], watch.signal, watch.back)
        except dbus.DBusError as error:
            if error.name != _FULL:
                raise
        return watch

    async def listen(
        self,
        rules: Sequence[str],
        signal: Callable[[dbus.Message], object],
        back: Callable[[], object],
    ) -> Listener:
        """Have signals told that match one of the rules. What matches another listener's may be told too."""
        listener = Listener(self, rules, signal, back)
        self._listeners.append(listener)
        try:
            await self._subscribe(await self._connected(), rules)
        except BaseException:
            self.forget(listener)
            raise
        return listener

    def forget(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            still = {rule for one in self._listeners for rule in one.rules}
            gone = [rule for rule in listener.rules if rule not in still]
            if self._link is not None and self.connected and gone:
                work = self._unmatch(self._link, gone)
                try:
                    loop.spawn(work, "stop listening to the manager", eager=True)
                except RuntimeError:
                    work.close()  # the loop has ended, and with it the connection

    def close(self) -> None:
        self._closed = True
        self._listeners.clear()
        if self._returning is not None:
            self._returning.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None

    # --- the connection --------------------------------------------------------------------------------------

    async def _call(
        self, path: str, interface: str, member: str, signature: str = "", values: Sequence[Any] = ()
    ) -> dbus.Message:
        return await self._patiently(self._call_once, path, interface, member, signature, values)

    async def _call_once(
        self, path: str, interface: str, member: str, signature: str, values: Sequence[Any]
    ) -> dbus.Message:
        return await (await self._connected()).call(NAME, path, interface, member, signature, values)

    async def _patiently(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Ask again where the bus or the manager was replaced under a question: to look twice does no harm."""
        for pause in _PAUSES:
            try:
                return await ask(*arguments)
            except OSError:
                pass
            except dbus.DBusError as error:
                if error.name not in _PASSING:
                    raise
            await loop.sleep(pause)
        return await ask(*arguments)

    async def _connected(self) -> link.Link:
        async with self._opening:
            if self._closed:
                raise ConnectionResetError("the manager is not talked to any more")
            if self._link is None or self._link.closed:
                self._link = await link.connect(self._signal, self._lost)
            return self._link

    async def _subscribe(self, bus: link.Link, rules: Sequence[str]) -> None:
        for rule in rules:
            await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "AddMatch", "s", [rule])
        try:
            await bus.call(NAME, PATH, MANAGER, "Subscribe")
        except dbus.DBusError as error:
            if error.name != f"{NAME}.AlreadySubscribed":
                raise

    async def _unmatch(self, bus: link.Link, rules: Sequence[str]) -> None:
        try:
            with loop.deadline(5.0):
                for rule in rules:
                    await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "RemoveMatch", "s", [rule])
        except (OSError, dbus.DBusError):
            pass  # signals too many do no harm

    def _signal(self, message: dbus.Message) -> None:
        for listener in tuple(self._listeners):
            listener.signal(message)

    def _lost(self) -> None:
        if self._listeners and self._returning is None and not self._closed:
            self._returning = loop.spawn(self._return(), "get the system bus back")

    async def _return(self) -> None:
        pause = _PAUSE
        try:
            while self._listeners:
                try:
                    with loop.deadline(10.0):
                        rules = dict.fromkeys(rule for one in self._listeners for rule in one.rules)
                        await self._subscribe(await self._connected(), list(rules))
                    break
                except (OSError, dbus.DBusError) as error:
                    if pause == _PAUSE:
                        journal.warning(f"The service manager cannot be listened to: {error}")
                await loop.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX)
        finally:
            self._returning = None
        for listener in tuple(self._listeners):
            listener.back()


def changes_of(interface: str, path: str = "") -> str:
    """The match rule for changed properties of one unit, or of all."""
    where = f"path='{path}'" if path else f"path_namespace='{PATH}/unit'"
    return (
        f"type='signal',sender='{NAME}',interface='{PROPERTIES}',member='PropertiesChanged',{where}"
        f",arg0='{NAME}.{interface}'"
    )


def _plain(properties: dict[str, Any]) -> dict[str, Any]:
    for name, value in properties.items():
        if value == _MAX and name != "InvocationID":
            properties[name] = "infinity"
    number = properties.get("InvocationID")
    if number is not None:
        properties["InvocationID"] = bytes(number).hex()
    return properties
