# SPDX-License-Identifier: Apache-2.0
"""The service manager over D-Bus (org.freedesktop.systemd1(5)): what tools ask of it, and jobs waited for."""

from __future__ import annotations

from syntrop.common import dbus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = f"{_NAME}.Manager"
_UNIT = f"{_NAME}.Unit"
_PROPERTIES = "org.freedesktop.DBus.Properties"


class ManagerError(Exception):
    """The manager refused, or failed at, what it was asked; the text is for people, `name` is D-Bus's for it."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Manager:
    """One conversation with the manager, over a bus of its own. Use `async with`; deadlines are the caller's."""

    def __init__(self) -> None:
        self._bus: dbus.Bus | None = None

    async def __aenter__(self) -> Manager:
        try:
            self._bus = await dbus.connect()
        except (OSError, dbus.DBusError) as error:
            raise ManagerError(f"the system bus cannot be reached: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    async def load(self, unit: str) -> str:
        """Object path of a unit, loaded if it is not. Raises ManagerError."""
        path: str = (await self._call(_PATH, _MANAGER, "LoadUnit", "s", [unit]))[0]
        return path

    async def properties(self, unit: str, interface: str = "Unit") -> dict[str, Any]:
        """Properties of a loaded unit, of `Unit` or of its type (`Service`, …). Raises ManagerError."""
        path = await self.load(unit)
        values = await self._call(path, _PROPERTIES, "GetAll", "s", [f"{_NAME}.{interface}"])
        return {name: value for name, (_, value) in values[0].items()}

    async def reload(self) -> None:
        """daemon-reload. Raises ManagerError."""
        await self._call(_PATH, _MANAGER, "Reload")

    async def reset_failed(self, unit: str) -> None:
        """Forget that a unit failed. One that is not even loaded has nothing to forget. Raises ManagerError."""
        try:
            await self._call(_PATH, _MANAGER, "ResetFailedUnit", "s", [unit])
        except ManagerError as error:
            if error.name != f"{_NAME}.NoSuchUnit":
                raise

    async def set_property(self, unit: str, name: str, signature: str, value: object) -> None:
        """Set a property until the next boot. Raises ManagerError."""
        assignment = [(name, (signature, value))]
        await self._call(_PATH, _MANAGER, "SetUnitProperties", "sba(sv)", [unit, True, assignment])

    async def job(self, method: str, unit: str) -> str:
        """`StartUnit`, `StopUnit` or `RestartUnit`, and how the job ended (`done`, `failed`, …).

        Raises ManagerError.
        """
        bus = self._connected()
        try:
            # The match first: a job may end before our call has returned.
            rule = f"type='signal',sender='{_NAME}',interface='{_MANAGER}',member='JobRemoved'"
            await bus.subscribe(rule)
            await bus.call(_NAME, _PATH, _MANAGER, "Subscribe")
            job = (await bus.call(_NAME, _PATH, _MANAGER, method, "ss", [unit, "replace"])).body[0]
            while True:
                message = await bus.signal()
                if message.member == "JobRemoved" and message.signature == "uoss" and message.body[1] == job:
                    result: str = message.body[3]
                    return result
        except (OSError, dbus.DBusError) as error:
            raise _error(error) from None

    def _connected(self) -> dbus.Bus:
        assert self._bus is not None, "used outside of its block"
        return self._bus

    async def _call(
        self, path: str, interface: str, method: str, signature: str = "", values: Sequence[Any] = ()
    ) -> list[Any]:
        try:
            return (await self._connected().call(_NAME, path, interface, method, signature, values)).body
        except TimeoutError:
            raise
        except (OSError, dbus.DBusError) as error:
            raise _error(error) from None


def _error(error: OSError | dbus.DBusError) -> Exception:
    if isinstance(error, TimeoutError):
        return error  # our caller's deadline
    if not isinstance(error, dbus.DBusError):
        return ManagerError(f"the bus: {error}")
    denied = "org.freedesktop.DBus.Error.AccessDenied"
    asked = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
    verb = "refuses" if error.name in (denied, asked) else "answers"
    return ManagerError(f"the service manager {verb}: {error}", error.name)


def names(properties: dict[str, Any]) -> tuple[str, ...]:
    """Every name of a unit: its id and its aliases."""
    return (properties["Id"], *properties.get("Names", ()))


SHOWN = (
    "Id",
    "Description",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "StateChangeTimestamp",
    "ActiveEnterTimestamp",
    "InvocationID",
)
SHOWN_OF_SERVICES = (
    "Type",
    "MainPID",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "NRestarts",
    "MemoryCurrent",
    "TasksCurrent",
    "StatusText",
)


def show(unit: dict[str, Any], service: dict[str, Any]) -> str:
    """`Name=value` lines of a unit's state."""
    lines = [f"{name}={_plain(unit[name])}" for name in SHOWN if name in unit]
    lines += [f"{name}={_plain(service[name])}" for name in SHOWN_OF_SERVICES if name in service]
    return "\n".join(lines) + "\n"


def _plain(value: object) -> str:
    if value is True or value is False:
        return "yes" if value else "no"
    if isinstance(value, list):
        if value and all(isinstance(item, int) for item in value):
            return bytes(value).hex()  # an identifier comes as an array of bytes
        return " ".join(str(item) for item in value)
    if value == 2**64 - 1:
        return "[not set]"
    return str(value)
