# SPDX-License-Identifier: Apache-2.0
"""Reports of failures by callers who may be wrong, or want to do harm.

What the manager itself starts for a failed unit (`syntrop-triage`, as our own user) and root are believed.
Everybody else has so many questions a minute, and what they report is asked of the manager first: a unit that has
not failed, or a failure that is on record, becomes no incident, so nobody's record is pushed out and nobody's turn
is taken.
"""

from __future__ import annotations

import os

from syntrop.common import journal, loop
from syntrop.common.rates import Rate
from syntrop.sentry import interception
from syntrop.sentry.trigger import TOLD, Trigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.kit import Kit

PER_MINUTE = 60  # questions of one user
TIMEOUT = 5.0  # seconds for the manager's answer
HELD = 1.0  # seconds at most that a caller with too many of them is kept waiting for his refusal
REMEMBERED_MAX = 1024  # failures that were found on record


def believed(uid: int) -> bool:
    """Whether what a user reports is taken for true, and not counted."""
    return uid in (0, os.geteuid())


class Reports:
    """Who asks how much, and what of it is true."""

    __slots__ = ("_asked", "_kit", "_recorded", "_told")

    def __init__(self, kit: Kit, *, per_minute: int = PER_MINUTE) -> None:
        self._kit = kit
        self._asked = Rate(per_minute)
        self._told = Rate(1)  # lines of the journal about one user
        self._recorded: dict[str, str] = {}  # of units: the failure that was found on record last

    async def admit(self, uid: int) -> float:
        """Count one question of a user, or not; seconds until one more is allowed, 0 where this one is. Who has
        had too many is kept for a moment: each of his connections asks no faster than that."""
        if believed(uid):
            return 0.0
        now = self._kit.clock.seconds()
        wait = self._asked.wait(uid, now)
        if not wait:
            self._asked.count(uid, now)
            return 0.0
        if not self._told.wait(uid, now):
            self._told.count(uid, now)
            journal.notice(f"User {uid} reports and asks more than {self._asked.limit} times a minute")
        await loop.sleep(min(wait, HELD))
        return wait

    async def failure(self, unit: str, invocation: str) -> Trigger | None:
        """A failure that somebody reports, as the manager tells of it; None where it knows of none, or of another
        invocation's. Raises OSError and dbus.DBusError, among them TimeoutError."""
        manager, clock = self._kit.manager, self._kit.clock
        with loop.deadline(TIMEOUT):
            # One small question for what is not true: of most units that is all that is asked.
            if "failed" not in (await manager.states([unit])).values():
                return None
            found = await manager.unit(unit)
        current = str(found.get("InvocationID", ""))
        if found.get("ActiveState") != "failed" or not current or invocation not in ("", current):
            return None
        end = interception.End(
            str(found.get("Result", "")), int(found.get("ExecMainCode", 0)), int(found.get("ExecMainStatus", 0))
        )
        return Trigger(
            str(found.get("Id") or unit),
            failed_us=clock.monotonic_us(),
            wall_us=clock.wall_us(),
            invocation=current,
            source=TOLD,
            result=end.result,
            code=end.code,
            status=end.status,
        )

    async def recorded(self, trigger: Trigger) -> bool:
        """Whether there is a record of a failure already, of whatever life of ours."""
        unit, invocation = trigger.unit, trigger.invocation
        if self._recorded.get(unit) == invocation:
            return True
        if not await loop.thread(self._kit.audit.has, unit, invocation):
            return False
        self._recorded.pop(unit, None)
        self._recorded[unit] = invocation
        if len(self._recorded) > REMEMBERED_MAX:
            del self._recorded[next(iter(self._recorded))]
        return True
