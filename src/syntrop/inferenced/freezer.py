# SPDX-License-Identifier: Apache-2.0
"""Stops and continues what leases hold: units through the manager, groups of trees delegated to us by hand.

The manager freezes at our word (FreezeUnit of org.freedesktop.systemd1, after polkit), and that it did is read
from the kernel's `cgroup.events`. A frozen unit cannot be stopped, so what is frozen is on record before it is.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import cgroup, journal, loop
from syntrop.common.turn import Turn
from syntrop.inferenced import targets
from syntrop.inferenced.standstill import FreezeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, Final

    from syntrop.common.dbus import Bus
    from syntrop.inferenced.records import Log

_POLKIT = (
    "org.freedesktop.PolicyKit1",
    "/org/freedesktop/PolicyKit1/Authority",
    "org.freedesktop.PolicyKit1.Authority",
)
_ACTION = "org.freedesktop.systemd1.manage-units"
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_UNANSWERED = tuple(f"org.freedesktop.DBus.Error.{name}" for name in ("NoReply", "Disconnected", "Timeout"))
_NO_UNIT = ("org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.UnitInactive")

WARM_SEC: Final = 2.0
"""Seconds that making ready may take. What is not ready by then is no readier for a call that waits for it."""
LOOK_SEC: Final = 0.001
"""Seconds after which the kernel is asked again whether a unit stands still, at first."""
PAUSE_SEC: Final = 10.0
"""Seconds after an attempt in which there is no other."""


class Refused(FreezeError):
    """The manager has said no, so nothing has happened, and nothing will."""


class Manager:
    """The system manager over D-Bus, one call after the other on a connection that is kept while it works."""

    def __init__(self) -> None:
        self._bus: Bus | None = None
        self._turn = Turn()
        self._warmed = -PAUSE_SEC

    def warm(self) -> None:
        """Make ready what the next call takes: the connection, and polkit, whom the manager asks and the bus may
        have to start."""
        if self._bus is None and not self._turn.taken and monotonic() - self._warmed >= PAUSE_SEC:
            self._warmed = monotonic()
            loop.spawn(self._warm(), "greet the manager")

    async def call(self, member: str, signature: str, values: Sequence[Any], seconds: float) -> None:
        """Raises FreezeError with what the manager, polkit or the bus said."""
        from syntrop.common import dbus

        try:
            await self._in_turn(member, lambda: self._call(member, signature, values), seconds)
        except dbus.DBusError as error:
            if error.name in _NO_UNIT and member == "ThawUnit":
                return
            kind = FreezeError if error.name in _UNANSWERED else Refused
            raise kind(f"{member}: {error}") from None

    async def _warm(self) -> None:
        from syntrop.common import dbus

        try:
            await self._in_turn("polkit", self._greet, WARM_SEC)
        except (FreezeError, dbus.DBusError) as error:
            journal.info(f"Who has to be frozen will be so a little later: {error}")

    async def _in_turn(self, what: str, work: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
        """Raises FreezeError, DBusError."""
        from syntrop.common import dbus

        async with self._turn:
            try:
                with loop.deadline(seconds):
                    await work()
            except TimeoutError:
                self.close()
                raise FreezeError(f"the manager did not answer {what} in {seconds:g} s") from None
            except dbus.DBusError:
                raise
            except OSError as error:
                self.close()
                raise FreezeError(f"{what}: {error.strerror or error}") from None
            except BaseException:
                self.close()  # the reply may still be on its way
                raise

    async def _call(self, member: str, signature: str, values: Sequence[Any]) -> None:
        from syntrop.common import dbus

        if self._bus is not None:
            try:
                await self._bus.call(*_MANAGER, member, signature, values)
                return
            except OSError:
                self.close()  # the bus was restarted since the last call: what we ask may be asked twice
        self._bus = await dbus.connect()
        await self._bus.call(*_MANAGER, member, signature, values)

    async def _greet(self) -> None:
        """Connect, and ask polkit what the manager will: of ourselves, and about no unit, so that it says no."""
        from syntrop.common import dbus

        if self._bus is None:
            self._bus = await dbus.connect()
        question = [("system-bus-name", {"name": ("s", self._bus.name)}), _ACTION, {}, 0, ""]
        await self._bus.call(*_POLKIT, "CheckAuthorization", "(sa{sv})sa{ss}us", question)

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None


class Freezer:
    """`standstill.Freezer`. `standing`: what is on record as frozen, in that order, until it is known to run."""

    def __init__(self, log: Log, manager: Manager, delegated: Sequence[str] = ()) -> None:
        self._log = log
        self._manager = manager
        self._undoing: dict[str, loop.Task[None]] = {}
        self.delegated = tuple(delegated)
        self.standing: dict[str, None] = {}
        self.thawed: Callable[[str], None] = lambda _target: None
        """Told of each target that was thawed."""

    def check(self, target: str) -> None:
        reason = targets.objection(target)
        if reason is not None:
            raise FreezeError(reason, None if targets.is_group(target) else target or None)

    def expect(self, target: str) -> None:
        if not targets.is_group(target) and targets.objection(target) is None:
            self._manager.warm()

    async def freeze(self, target: str, cause: str, seconds: float) -> None:
        self.check(target)
        if target in self._undoing:
            raise FreezeError(f"{target} is still being thawed", target)
        try:
            self._log.freeze(target, cause)
        except OSError as error:
            raise FreezeError(f"it cannot be put on record: {error.strerror}", target) from None
        self.standing[target] = None
        # A task of its own: a question to the manager cannot be taken back, so whoever gives up waiting for its
        # answer leaves it to those who thaw.
        work = loop.spawn(self._stop(target, seconds), f"freeze {target}", eager=True)
        try:
            await work
        except Refused:
            self._runs(target)
            raise
        except BaseException as error:
            # Half frozen is no state to leave anything in, whether we failed or the caller hung up.
            self._take_back(target, None if isinstance(error, FreezeError) else work)
            raise

    async def thaw(self, target: str, seconds: float) -> None:
        try:
            await thaw(self._manager, target, seconds)
        except Refused:
            if _stands(target):
                raise
        self._runs(target)
        self.thawed(target)

    def take_over(self, target: str) -> None:
        """It was frozen by an earlier process, and is to be thawed by `thaw()`."""
        self.standing[target] = None

    def let_go(self, target: str) -> None:
        """It may have been frozen by an earlier process, for nothing that matters any more."""
        self.standing[target] = None
        self._take_back(target, None)

    # --- inside --------------------------------------------------------------------------------------------

    def _runs(self, target: str) -> None:
        self.standing.pop(target, None)
        try:
            self._log.thaw(target)
        except OSError:
            pass  # thawed once more after a restart, which does no harm

    async def _stop(self, target: str, seconds: float) -> None:
        until = monotonic() + seconds
        try:
            if _stands(target):
                raise Refused(f"somebody else has frozen {target}", target)
            if targets.is_group(target):
                await cgroup.Group(target).freeze(seconds)
            else:
                if not await _ask(self._manager, "FreezeUnit", target, seconds):
                    await cgroup.of_unit(target).wait_frozen(max(0.01, until - monotonic()))
        except (cgroup.CgroupError, ValueError) as error:
            raise FreezeError(str(error)) from None

    def _take_back(self, target: str, work: loop.Task[None] | None) -> None:
        self._undoing[target] = loop.spawn(self._free(target, work), f"thaw {target}")

    async def _free(self, target: str, work: loop.Task[None] | None) -> None:
        """Thaw, as often as it takes: there is nobody else who would."""
        pause = 0.05
        try:
            if work is not None:
                try:
                    await work
                except FreezeError:
                    pass
            while True:
                try:
                    await self.thaw(target, 5.0)
                    return
                except FreezeError as error:
                    if pause >= 0.4:
                        journal.error(f"{target} could not be thawed, trying again: {error.reason}")
                await loop.sleep(pause)
                pause = min(2 * pause, 5.0)
        finally:
            self._undoing.pop(target, None)


def _stands(target: str) -> bool:
    """Whether all of its processes stand still, whoever saw to it."""
    try:
        return (cgroup.Group(target) if targets.is_group(target) else cgroup.of_unit(target)).is_frozen()
    except cgroup.CgroupError:
        return False  # it is gone


async def _ask(manager: Manager, member: str, unit: str, seconds: float) -> bool:
    """Have the manager freeze or thaw a unit; whether it was seen to have happened before the manager said so.

    The kernel's word is enough. The manager hears it from a thread of the kernel, for which a busy machine has no
    time, and not twice in 10 ms. Raises FreezeError.
    """
    stood = _stands(unit)
    asked = loop.spawn(_answer(manager, member, unit, seconds), f"{member} {unit}", eager=True)
    answered = loop.Event()
    asked.when_done(lambda _: answered.set())
    pause = LOOK_SEC
    while not asked.done:
        if _stands(unit) != stood:
            return True
        try:
            with loop.deadline(pause):
                await answered.wait()
        except TimeoutError:
            pause = min(1.1 * pause, 20 * LOOK_SEC)
    error = asked.result()
    if error is not None:
        raise error
    return False


async def _answer(manager: Manager, member: str, unit: str, seconds: float) -> FreezeError | None:
    """What the manager said against it. Whoever has seen what they waited for does not wait for this, too."""
    try:
        await manager.call(member, "s", [unit], seconds)
    except FreezeError as error:
        return error
    return None


async def thaw(manager: Manager, target: str, seconds: float) -> None:
    """Let a target go on, if it is there. Raises FreezeError."""
    try:
        if targets.is_group(target):
            await cgroup.Group(target).thaw(seconds)
        else:
            await _ask(manager, "ThawUnit", target, seconds)
    except cgroup.NoSuchGroup:
        pass
    except cgroup.CgroupError as error:
        raise FreezeError(str(error)) from None
