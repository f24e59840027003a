# SPDX-License-Identifier: Apache-2.0
"""What is done with a verdict: acted on, staged, reported or dismissed; and how an action ends."""

from __future__ import annotations

from syntrop.common import dbus, journal, loop
from syntrop.sentry import case as k
from syntrop.sentry import events, probation, signatures, verdict
from syntrop.sentry import incident as i
from syntrop.sentry.course import DISMISS, Course

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from syntrop.sentry.case import Case
    from syntrop.sentry.guards import Hold
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.kit import Kit

RETIRE_EVERY = 64  # closed incidents, after which old ones are forgotten


class Conduct:
    """`staged` are the incidents that wait for a person. `guarded` is called whenever a guard learned
    something."""

    def __init__(self, kit: Kit, guarded: Callable[[], object]) -> None:
        self._kit, self._guarded = kit, guarded
        self.staged: dict[str, Incident] = {}
        self._closed = 0
        self._retiring: loop.Task[None] | None = None

    async def carry_on(self, case: Case, course: Course, decided: str) -> Hold | None:
        """Do what was decided. What keeps an action back is given, unless it is for good."""
        kit, incident = self._kit, case.incident
        reason = incident.action.reason if incident.action is not None else ""
        if decided == DISMISS:
            self.close(incident, i.DISMISSED, reason)
        elif decided == verdict.ACT:
            hold = kit.guards.enter(incident.unit, kit.clock.seconds())
            self._guarded()
            if hold is None:
                await self.act(case, course, f"confidence {incident.causes[0]['confidence']:.2f}")
            elif hold.wait is None:
                self.close(incident, i.REPORTED, str(hold))
            else:
                return hold
        elif decided == verdict.STAGE:
            incident.move(i.STAGED, kit.clock.wall_us(), reason)
            self.staged[incident.id] = incident
            kit.keep(incident)
            kit.tell(incident, f"waits for approval: syntropctl approve {incident.id}")
        else:
            sure = bool(incident.causes) and incident.causes[0]["confidence"] >= verdict.ACT_AT
            if sure and incident.causes[0]["fault_class"] == signatures.FLAPPING:
                self.lock(incident)
            self.close(incident, i.REPORTED, reason)
        return None

    async def act(self, case: Case, course: Course, why: str) -> None:
        """Carry an action out that the guards let through, watch whether it helped, and take it back if not."""
        kit, incident = self._kit, case.incident
        case.stage = k.DOING
        try:
            failure = await course.treat(why)
        except OSError as error:
            kit.guards.ended(incident.unit, None, kit.clock.seconds())
            self.close(incident, i.REPORTED, f"its record cannot be kept: {error.strerror}", escalate=True)
            return
        if not failure:
            case.stage = k.WATCHING
            course.reflect()
            failure = await course.restore()
        await self._ended(course, failure)

    async def approved(self, case: Case, course: Course) -> None:
        """A person wants the staged action; where the unit is well by now, nothing is done."""
        kit, incident = self._kit, case.incident
        try:
            with loop.deadline(5.0):
                well = probation.Health(await kit.manager.unit(incident.unit)).state == probation.ACTIVE
        except (OSError, dbus.DBusError):
            well = False
        if well:
            kit.guards.ended(incident.unit, None, kit.clock.seconds())
            self.close(incident, i.DISMISSED, "it is active by now")
            return
        course.resume()
        await self.act(case, course, "a person approved it")

    async def go_on(self, case: Case, course: Course) -> None:
        """What was being done when an earlier life of ours ended."""
        what = case.incident.resumption()
        course.resume()
        if what == i.GO_ON:
            await self.act(case, course, "")
        elif what == i.WATCH:
            case.stage = k.WATCHING
            await self._ended(course, await course.restore())
        else:
            await self._ended(course, "it was being taken back")

    async def _ended(self, course: Course, failure: str) -> None:
        kit, incident = self._kit, course.incident
        # That a daemon of ours is away says nothing of the unit.
        kit.guards.ended(incident.unit, None if course.silent else not failure, kit.clock.seconds())
        self._guarded()
        if not failure:
            self.close(incident, i.RECOVERED)
            return
        changed = bool(incident.rollback_ids)
        incident.happened(kit.clock.wall_us(), f"it did not help: {failure}")
        stuck = await course.take_back()
        status = i.ROLLED_BACK if changed and not stuck else i.REPORTED
        why = failure + (f"; and it could not be taken back: {stuck}" if stuck else "")
        self.close(incident, status, why, escalate=True)

    def lock(self, incident: Incident) -> None:
        """Nothing more is done for a unit until an operator says so."""
        self._kit.guards.lock(incident.unit, self._kit.clock.seconds())
        self._guarded()
        self.tell_locked(incident)

    def tell_locked(self, incident: Incident) -> None:
        unit = incident.unit
        incident.happened(self._kit.clock.wall_us(), "its breaker is locked until an operator resets it")
        journal.error(
            f"{unit} is left alone until an operator resets its breaker: syntropctl reset {unit}",
            message_id=events.LOCKED,
            SENTRY_UNIT=unit,
            SENTRY_INCIDENT=incident.id,
        )

    def failed(self, incident: Incident, error: Exception) -> None:
        """A fault of ours: what was begun is for a person to look at."""
        journal.exception(f"Incident {incident.id} of {incident.unit} failed in our hands", error)
        if incident.status in (i.OPEN, i.ACTING):
            self.close(incident, i.REPORTED, "a fault of systemd-sentry's own", escalate=True)

    def close(self, incident: Incident, status: str, why: str = "", *, escalate: bool = False) -> None:
        kit = self._kit
        incident.move(status, kit.clock.wall_us(), why)
        self.staged.pop(incident.id, None)
        kit.keep(incident)
        kit.tell(incident, why, escalate=escalate)
        self._closed += 1
        if self._closed % RETIRE_EVERY == 1:
            self._retiring = loop.spawn(self._retire(), "old incidents")

    async def finish(self) -> None:
        """Wait for what is not to be cut off: a worker thread's look at old incidents."""
        if self._retiring is not None:
            await self._retiring

    async def _retire(self) -> None:
        try:
            await loop.thread(self._kit.audit.retire, self._kit.clock.wall_us())
        except OSError as error:
            journal.warning(f"Old incidents cannot be removed: {error}")
