# SPDX-License-Identifier: Apache-2.0
"""Stops and continues what leases hold: units through the manager, groups of trees delegated to us by hand.

The manager freezes at our word (FreezeUnit of org.freedesktop.systemd1, after polkit), and that it did is read
from the kernel's `cgroup.events`. A frozen unit cannot be stopped, so what is frozen is on record before it is.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import cgroup, loop
from syntrop.inferenced import targets
from syntrop.inferenced.arbiter import FreezeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from syntrop.common.dbus import Bus
    from syntrop.inferenced.records import Log

_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_NO_UNIT = ("org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.UnitInactive")


class Manager:
    """The system manager over D-Bus, one call after the other on a connection that is kept while it works."""

    def __init__(self) -> None:
        self._bus: Bus | None = None
        self._turn: loop.Event | None = None

    async def call(self, member: str, signature: str, values: Sequence[Any], seconds: float) -> None:
        """Raises FreezeError with what the manager, polkit or the bus said."""
        from syntrop.common import dbus

        while self._turn is not None:
            await self._turn.wait()
        self._turn = loop.Event()
        try:
            with loop.deadline(seconds):
                if self._bus is None:
                    self._bus = await dbus.connect()
                await self._bus.call(*_MANAGER, member, signature, values)
        except TimeoutError:
            self.close()
            raise FreezeError(f"the manager did not answer {member} in {seconds:g} s") from None
        except dbus.DBusError as error:
            if error.name in _NO_UNIT and member == "ThawUnit":
                return
            raise FreezeError(f"{member}: {error}") from None
        except OSError as error:
            self.close()
            raise FreezeError(f"{member}: {error.strerror or error}") from None
        except BaseException:
            self.close()  # the reply may still be on its way
            raise
        finally:
            turn, self._turn = self._turn, None
            turn.set()

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None


class Freezer:
    """`arbiter.Freezer`."""

    def __init__(self, log: Log, manager: Manager, delegated: Sequence[str] = ()) -> None:
        self._log = log
        self._manager = manager
        self.delegated = tuple(delegated)

    def check(self, target: str) -> None:
        reason = targets.objection(target)
        if reason is not None:
            raise FreezeError(reason, None if targets.is_group(target) else target or None)

    async def freeze(self, target: str, cause: str, seconds: float) -> None:
        self.check(target)
        until = monotonic() + seconds
        self._log.freeze(target, cause)
        try:
            if targets.is_group(target):
                await cgroup.Group(target).freeze(seconds)
            else:
                await self._manager.call("FreezeUnit", "s", [target], seconds)
                await cgroup.of_unit(target).wait_frozen(max(0.01, until - monotonic()))
        except BaseException as error:
            # Half frozen is no state to leave anything in, whether we failed or the caller hung up.
            loop.spawn(self._take_back(target), f"thaw {target}")
            if isinstance(error, cgroup.CgroupError):
                raise FreezeError(str(error)) from None
            raise

    async def thaw(self, target: str, seconds: float) -> None:
        await thaw(self._manager, target, seconds)
        self._log.thaw(target)

    async def _take_back(self, target: str) -> None:
        for _ in range(5):
            try:
                await self.thaw(target, 2.0)
                return
            except FreezeError:
                await loop.sleep(0.2)


async def thaw(manager: Manager, target: str, seconds: float) -> None:
    """Let a target go on, if it is there. Raises FreezeError."""
    try:
        if targets.is_group(target):
            await cgroup.Group(target).thaw(seconds)
        else:
            await manager.call("ThawUnit", "s", [target], seconds)
    except cgroup.NoSuchGroup:
        pass
    except cgroup.CgroupError as error:
        raise FreezeError(str(error)) from None
