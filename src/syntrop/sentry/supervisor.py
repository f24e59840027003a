# SPDX-License-Identifier: Apache-2.0
"""Who watches over all units: what waits and in which order, who is treated, and what is looked at again.

A failure becomes an incident on disk before anything else, so none is lost by our own end. One course a unit, a
few at a time; what guards hold back is looked at again when they let it.
"""

from __future__ import annotations

from syntrop.common import dbus, journal, loop
from syntrop.sentry import audit, chain, order, policy, remedy, storm, verdict
from syntrop.sentry import breaker as b
from syntrop.sentry import case as k
from syntrop.sentry import incident as i
from syntrop.sentry import trigger as t
from syntrop.sentry.case import Case
from syntrop.sentry.conduct import Conduct
from syntrop.sentry.course import DISMISS, Course
from syntrop.sentry.incident import Incident
from syntrop.sentry.notebook import Notebook
from syntrop.sentry.peers import CONTEXTD, TOOLD
from syntrop.sentry.planned import Work
from syntrop.sentry.remedy import Action
from syntrop.sentry.trigger import Trigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from syntrop.common.service import Daemon
    from syntrop.sentry.guards import Hold
    from syntrop.sentry.kit import Kit
    from syntrop.sentry.phases import Span

LOOKS_MAX = 4  # failures that are looked into at a time
TOLD_MAX = 2  # of them at most are what others than the manager report: its own always find a place
HANDLED_MAX = 4096  # failures that are remembered, so that each is an incident once
WAITING_MAX = (
    4096  # units that are dealt with or wait; reports of others are turned away, and say so in the journal
)
RANKED_FROM = 8  # failures that wait: with fewer, the order matters to nobody
RANKED_AT_ONCE = 64  # units that are asked about in one go
RANKING_TIMEOUT = 2.0  # seconds


# Ends of an incident at which the unit was thought well: a failure that was told meanwhile is another one.
_WELL = frozenset((i.DISMISSED, i.RECOVERED))


class Busy(Exception):
    """The unit's incident is being dealt with."""


class Supervisor:
    """Made at the first need of it; `resume` is called once."""

    def __init__(self, daemon: Daemon, kit: Kit) -> None:
        self._daemon, self.kit = daemon, kit
        self._notebook = Notebook(kit)
        self._conduct = Conduct(kit, self._notebook.changed)
        self._backlog = storm.Backlog()
        self._cases: dict[str, Case] = {}
        self._handled: dict[str, str] = {}  # of units: the failure that became an incident last
        self._tasks: set[loop.Task[None]] = set()
        self._closing = False
        self._looks = 0
        self._told = 0  # of them those that others than the manager report
        self._ranking: loop.Task[None] | None = None
        self._ranked: set[str] = set()

    # --- what comes in ---------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take up what an earlier life of ours left: the guards, what waits for a person, what was under way."""
        kit = self.kit
        self._notebook.read()
        for incident in kit.audit.open():
            if incident.status == i.STAGED:
                self._conduct.staged[incident.id] = incident
                continue
            now, wall = kit.clock.monotonic_us(), kit.clock.wall_us()
            if incident.unit in self._cases:
                incident.happened(wall, "an older one of this unit is dealt with")
                self._conduct.close(incident, i.REPORTED if incident.status == i.ACTING else i.DISMISSED)
                continue
            case = Case(
                Trigger(
                    incident.unit, failed_us=now, wall_us=wall, invocation=incident.invocation, source=t.RESUMED
                ),
                incident,
                awake=False,
            )
            if incident.resumption() == i.LOOK_AGAIN:
                incident.happened(wall, "is looked into again after a restart of systemd-sentry")
                self._enqueue(case)
            else:
                self._begin(case, self._conduct.go_on)

    def report(self, trigger: Trigger) -> None:
        """A unit failed. No waiting; one small file is written."""
        guards, unit = self.kit.guards, trigger.unit
        failure = _failure(trigger.invocation, trigger.result, trigger.restarting)
        now = self.kit.clock.seconds()
        if trigger.source != t.TOLD and unit in self._backlog and self._cases[unit].trigger.source == t.TOLD:
            self._cases[unit].trigger = trigger  # the manager tells of it as well: it waits behind nobody for that
            self._backlog.weigh(unit, 0)
        before = guards.state(unit, now)
        if guards.failed(unit, failure, now):
            self._notebook.changed()
        if failure and self._handled.get(unit) == failure:
            return  # it is an old story
        if unit in self._cases:
            case = self._cases[unit]
            if failure and not trigger.restarting and trigger.invocation != case.incident.invocation:
                case.later = trigger
            return  # its course sees for itself, unless it has looked already
        if trigger.restarting and (guards.state(unit, now) in (before, b.CLOSED) or before == b.OPEN):
            return  # the manager starts it again: that is for it to do, unless it goes on and on
        self._remember(unit, failure)
        self._open(trigger)

    def _remember(self, unit: str, failure: str) -> None:
        if failure:
            self._handled.pop(unit, None)
            self._handled[unit] = failure
            if len(self._handled) > HANDLED_MAX:
                del self._handled[next(iter(self._handled))]

    async def triage(
        self, unit: str, *, dry_run: bool, listener: Callable[[Span], object] | None = None
    ) -> Incident:
        """Look into a unit because somebody asks, to the end of it. One that is under way is joined."""
        case = self._cases.get(unit)
        if case is None or dry_run:
            clock = self.kit.clock
            trigger = Trigger(unit, failed_us=clock.monotonic_us(), wall_us=clock.wall_us(), source=t.ASKED)
            case = self._open(trigger, dry_run=dry_run)
        elif case.stage == k.DEFERRED:
            self._again(case)
        if listener is not None:
            case.listeners.append(listener)
        try:
            await case.over.wait()
        finally:
            if listener is not None:
                case.listeners.remove(listener)
        return case.incident

    def _open(self, trigger: Trigger, *, dry_run: bool = False) -> Case:
        kit = self.kit
        awake = kit.peers.awake(TOOLD) and kit.peers.awake(CONTEXTD)
        kit.peers.knock(TOOLD, CONTEXTD)
        incident = Incident(
            audit.identifier(trigger.wall_us), trigger.unit, trigger.wall_us, invocation=trigger.invocation
        )
        case = Case(trigger, incident, awake=awake)
        if dry_run:
            self._spawn(self._dry(case), f"dry run of {trigger.unit}")
            return case
        for old in [one for one in self._conduct.staged.values() if one.unit == trigger.unit]:
            self._conduct.close(old, i.DISMISSED, f"it failed again, which is {incident.id}")
        kit.keep(incident)
        self._enqueue(case)
        return case

    def _enqueue(self, case: Case) -> None:
        self._cases[case.trigger.unit] = case
        case.stage = k.WAITING
        told = case.trigger.source == t.TOLD
        self._backlog.add(case.trigger.unit, self.kit.clock.seconds(), importance=storm.LAST if told else 0)
        if len(self._backlog) >= RANKED_FROM and self._ranking is None:
            self._ranking = self._spawn(self._rank(), "order of what failed")
        self._pump()

    def _pump(self) -> None:
        if self._closing or self._ranking is not None:
            return
        while self._looks < LOOKS_MAX and (failure := self._backlog.first()) is not None:
            case = self._cases[failure.unit]
            if case.trigger.source == t.TOLD:
                if self._told >= TOLD_MAX:
                    break  # behind it there are only others of its kind
                self._told += 1
            self._backlog.drop(failure.unit)
            self._looks += 1
            case.stage = k.KNOWING
            self._spawn(self._attend(case), f"incident {case.incident.id}")

    def _begin(self, case: Case, work: Callable[[Case, Course], Coroutine[Any, Any, None]]) -> None:
        """Deal with a unit whose verdict stands."""
        self._cases[case.trigger.unit] = case
        course = Course(self.kit, case.trigger, case.incident, awake=False, told=case.told)

        async def run() -> None:
            try:
                await work(case, course)
            except Exception as error:
                # Whatever it is: a person is told of this incident, and the others go on.
                self._conduct.failed(case.incident, error)
            finally:
                self._over(case)
            await course.afterwards()

        self._spawn(run(), f"incident {case.incident.id}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> loop.Task[None]:
        """A task of ours, which keeps the daemon and ends with us."""
        busy = self._daemon.busy().hold()
        task = loop.spawn(work, name)
        self._tasks.add(task)

        def done(_task: object) -> None:
            self._tasks.discard(task)
            busy.release()

        task.when_done(done)
        return task

    async def close(self) -> None:
        """Let go of everything. What is under way stays on disk, for the next start to take up."""
        self._closing = True
        for case in self._cases.values():
            if case.timer is not None:
                case.timer.cancel()
        for task in tuple(self._tasks):
            await loop.stop(task)
        await self._conduct.finish()
        self._notebook.flush()

    # --- one case --------------------------------------------------------------------------------------------

    async def _attend(self, case: Case) -> None:
        looking, told = True, case.trigger.source == t.TOLD

        def looked() -> None:
            nonlocal looking
            if looking:
                looking = False
                self._looks -= 1
                self._told -= told
                loop.call_soon(self._pump)

        course = Course(self.kit, case.trigger, case.incident, awake=case.awake, told=case.told)
        hold: Hold | None = None
        try:
            decided = await self._decide(case, course)
            looked()
            hold = await self._conduct.carry_on(case, course, decided)
        except Exception as error:
            # As above: a unit whose incident is a fault of ours must not stay in the way for ever.
            self._conduct.failed(case.incident, error)
        finally:
            looked()
            if hold is not None:
                self._defer(case, hold)
            self._over(case)
        if hold is None:
            await course.afterwards()
            self.kit.keep(case.incident)
        else:
            await course.give_back()

    async def _decide(self, case: Case, course: Course) -> str:
        """The verdict, and what policy and dependencies make of it."""
        trigger = case.trigger
        if trigger.occasion is not None:
            # What somebody wanted needs no looking into.
            early = await course.ruling()
            if early.kind == policy.IGNORE:
                return self._ruled(case, DISMISS, early)
        decided = await course.diagnose()
        if decided != DISMISS and trigger.source in (t.ASKED, t.RESUMED):
            self._count(trigger.unit, course.properties)
        ruling = await course.ruling()
        decided = self._ruled(case, decided, ruling)
        if ruling.kind == policy.TREAT:
            await course.planes()
            at_leisure = not trigger.restarting and trigger.source != t.TOLD and not len(self._backlog)
            if decided == verdict.REPORT and at_leisure:
                decided = await course.investigate()
        if trigger.restarting:
            if self.kit.guards.state(trigger.unit, self.kit.clock.seconds()) == b.LOCKED:
                self._conduct.tell_locked(case.incident)
            return self._nothing(case, "the manager starts it again each time, and it fails each time")
        if decided == verdict.ACT:
            root = await self._root(trigger, course.properties)
            if root != trigger.unit:
                case.incident.action = Action(remedy.WAIT_FOR_ROOT, [], f"{root} is to be treated, not this one")
                return verdict.REPORT
        return decided

    def _count(self, unit: str, properties: Mapping[str, Any]) -> None:
        """A failure that nobody told of when it happened."""
        failure = _failure(str(properties.get("InvocationID", "")), str(properties.get("Result", "")), False)
        self._remember(unit, failure)
        if failure and self.kit.guards.failed(unit, failure, self.kit.clock.seconds()):
            self._notebook.changed()

    def _ruled(self, case: Case, decided: str, ruling: policy.Ruling) -> str:
        """The stricter of verdict and policy."""
        if ruling.kind == policy.TREAT:
            return decided
        if ruling.kind == policy.IGNORE or decided == DISMISS:
            return self._nothing(case, ruling.reason, DISMISS)
        return self._nothing(case, ruling.reason)

    def _nothing(self, case: Case, why: str, decided: str = verdict.REPORT) -> str:
        """Nothing is done, for this reason, whatever could have been."""
        case.incident.action = Action(remedy.NONE, [], why)
        return decided

    async def _dry(self, case: Case) -> None:
        course = Course(self.kit, case.trigger, case.incident, awake=case.awake, told=case.told)
        try:
            self._ruled(case, await course.diagnose(), await course.ruling())
        except Exception as error:
            # Who asked gets what was found until then.
            journal.exception(f"A dry run of {case.trigger.unit} failed", error)
        finally:
            case.over.set()
        await course.give_back()

    def _defer(self, case: Case, hold: Hold) -> None:
        """Guards keep an action back: until then."""
        assert hold.wait is not None
        case.incident.happened(self.kit.clock.wall_us(), f"waits: {hold}")
        self.kit.keep(case.incident)
        case.stage = k.DEFERRED
        case.timer = loop.call_later(hold.wait + 0.05, self._again, case)
        case.kept = self._daemon.busy().hold()

    def _again(self, case: Case) -> None:
        """Look into what was held back. The manager's answer is what counts by now, not what was told then."""
        if case.stage != k.DEFERRED:
            return
        if case.timer is not None:
            case.timer.cancel()
            case.timer = None
        clock, old = self.kit.clock, case.trigger
        case.trigger = Trigger(old.unit, failed_us=clock.monotonic_us(), wall_us=old.wall_us, source=t.RESUMED)
        self._enqueue(case)
        if case.kept is not None:
            case.kept.release()
            case.kept = None

    def _over(self, case: Case) -> None:
        if case.stage != k.DEFERRED and self._cases.get(case.trigger.unit) is case:
            del self._cases[case.trigger.unit]
            case.over.set()
            if case.later is not None and case.incident.status in _WELL and not self._closing:
                loop.call_soon(self.report, case.later)

    # --- order and dependencies ------------------------------------------------------------------------------

    async def _rank(self) -> None:
        """In a storm, what others need comes first: for a moment everybody waits until that is known."""
        try:
            with loop.deadline(RANKING_TIMEOUT):
                while new := [
                    one.unit
                    for one in self._backlog.waiting()
                    if one.unit not in self._ranked and self._cases[one.unit].trigger.source != t.TOLD
                ][:RANKED_AT_ONCE]:
                    for name, properties in (await self.kit.manager.units(new)).items():
                        self._ranked.add(name)
                        self._backlog.weigh(name, order.importance(properties))
        except (OSError, dbus.DBusError):
            pass  # then in the order of their failing
        finally:
            self._ranked.clear()
            self._ranking = None
            loop.call_soon(self._pump)

    async def _root(self, trigger: Trigger, properties: Mapping[str, Any]) -> str:
        """The unit that is to be treated for this one, among those that fail now."""
        failed = {
            other: one.trigger.failed_us
            for other, one in self._cases.items()
            if one.stage in (k.WAITING, k.KNOWING, k.DOING)
        }
        failed[trigger.unit] = trigger.failed_us
        return await chain.root(self.kit.manager, trigger.unit, properties, failed)

    # --- a person's word -------------------------------------------------------------------------------------

    def staged(self, id: str) -> Incident | None:
        """The incident, if it waits for a person."""
        return self._conduct.staged.get(id)

    def incident(self, id: str) -> Incident:
        """As it stands, under way or over. Raises KeyError."""
        for case in self._cases.values():
            if case.incident.id == id:
                return case.incident
        return self._conduct.staged.get(id) or self.kit.audit.get(id)

    async def approve(self, id: str) -> Incident | Hold:
        """Carry a staged action out, to its end; or what the guards say against it. Raises KeyError where nothing
        is staged so, Busy while the unit is being dealt with."""
        kit = self.kit
        incident = self._conduct.staged[id]
        if incident.unit in self._cases:
            raise Busy
        hold = kit.guards.enter(incident.unit, kit.clock.seconds())
        self._notebook.changed()
        if hold is not None:
            return hold
        del self._conduct.staged[id]
        now = kit.clock.monotonic_us()
        case = Case(
            Trigger(incident.unit, failed_us=now, wall_us=incident.time_us, source=t.ASKED), incident, awake=False
        )
        self._begin(case, self._conduct.approved)
        await case.over.wait()
        return incident

    def reject(self, id: str, reason: str) -> Incident:
        """Raises KeyError."""
        incident = self._conduct.staged[id]
        why = f"a person rejected the action{f': {reason}' if reason else ''}"
        self._conduct.close(incident, i.REPORTED, why)
        return incident

    def reset(self, unit: str) -> dict[str, Any]:
        """An operator's word; what waited for the breaker is looked into at once. Gives how the breaker stands."""
        kit = self.kit
        kit.guards.reset(unit, kit.clock.seconds())
        self._handled.pop(unit, None)
        self._notebook.changed()
        case = self._cases.get(unit)
        if case is not None:
            self._again(case)
        return kit.guards.wire(unit, kit.clock.seconds())

    def announce(self, patterns: Sequence[str], seconds: int, reason: str, uid: int) -> None:
        """Work on units begins, for so long; for 0 seconds it is over. On disk before it is acknowledged. Raises
        planned.Full."""
        clock = self.kit.clock
        now = clock.seconds()
        self.kit.guards.announce(patterns, Work(now + seconds, reason, uid), now)
        self._notebook.flush()
        words = f"is announced for {seconds} s" if seconds else "is over"
        why = f": {reason}" if reason else ""
        journal.notice(f"User {uid} tells that work on {' '.join(patterns)} {words}{why}")

    @property
    def full(self) -> bool:
        """Whether more failures wait than can be remembered: no machine has so many units."""
        return len(self._cases) >= WAITING_MAX

    def status(self) -> dict[str, Any]:
        clock = self.kit.clock
        return {
            "open_incidents": len(self._cases) + len(self._conduct.staged),
            "staged_incidents": len(self._conduct.staged),
            "breakers": self.kit.guards.tripped(clock.seconds()),
            "planned": self.kit.guards.planned.wire(clock.seconds(), clock.wall_us()),
        }


def _failure(invocation: str, result: str, restarting: bool) -> str:
    """What tells a failure of a unit from its others; empty where that cannot be told."""
    return f"{invocation} {result} {restarting}" if invocation else ""
