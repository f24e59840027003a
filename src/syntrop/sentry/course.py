# SPDX-License-Identifier: Apache-2.0
"""The course of one incident through the seven phases: found out, remedied, watched, and taken back if need be.

`diagnose` knows and decides, `treat` does, `restore` watches. Between them the supervisor asks the guards. The
record is on disk before the first write, and after each step, so that the next start knows what was under way.
"""

from __future__ import annotations

from syntrop.common import dbus, loop
from syntrop.sentry import causes as c
from syntrop.sentry import incident as i
from syntrop.sentry import marks, policy, probation, remedy, signatures, verdict
from syntrop.sentry import phases as p
from syntrop.sentry.evidence import KERNEL
from syntrop.sentry.gathering import Gathering
from syntrop.sentry.hands import HandsError
from syntrop.sentry.peers import CONTEXTD, INFERENCED, MODELD, RUNTIMED, TOOLD, PeerError
from syntrop.sentry.phases import Phases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from syntrop.sentry.evidence import Evidence
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.kit import Kit
    from syntrop.sentry.phases import Span
    from syntrop.sentry.remedy import Step
    from syntrop.sentry.trigger import Trigger
    from syntrop.sentry.verdict import Verdict

PROMPT_US = 1_000_000  # a failure that was told later than this has waited: its deadline counts from its turn
RATES_PATIENCE = 180.0  # seconds that toold's rates may let an action wait
# What is no fault, or none that anybody should meddle with.
NO_FAULT = frozenset((signatures.RECOVERED, signatures.NO_FAILURE, signatures.STOPPED_BY_HAND))
DISMISS = "dismiss"
_WITHOUT_RECORD = frozenset(("unit_restart", "unit_reset_failed"))  # toold keeps none: nothing is taken back


class Course:
    """One incident. `told` is called with each phase that ended."""

    def __init__(
        self, kit: Kit, trigger: Trigger, incident: Incident, *, awake: bool, told: Callable[[Span], object]
    ) -> None:
        clock = kit.clock
        self._kit, self.trigger, self.incident, self._told = kit, trigger, incident, told
        now = clock.monotonic_us()
        waited = now - trigger.failed_us
        self._failed = trigger.failed_us if 0 <= waited <= PROMPT_US else now
        self.phases = Phases(p.AWAKE if awake else p.ASLEEP, self._failed)
        self._gathering = Gathering(kit, self.phases, trigger, self._ended)
        self.evidence: Evidence | None = None
        self.verdict: Verdict | None = None
        self._asked = False
        self._opinion: loop.Task[None] | None = None
        self._warming: loop.Task[None] | None = None
        self.silent = False  # toold, by which nothing is known of the unit
        self._again = False  # the next steps may have been carried out by an earlier life of ours
        self._before = {span.name: span for span in incident.spans}  # of an earlier life of ours
        if waited > PROMPT_US:
            incident.happened(clock.wall_us(), f"waited {waited / 1e6:.1f} s for its turn")

    @property
    def properties(self) -> dict[str, Any]:
        """What the manager told of the unit; empty before `diagnose`."""
        return self._gathering.properties

    # --- knowing and deciding --------------------------------------------------------------------------------

    async def diagnose(self) -> str:
        """Find out and decide: `act`, `stage`, `report` or DISMISS. What guards and policy say comes after."""
        clock, kit, phases = self._kit.clock, self._kit, self.phases
        limit = phases.begin(p.INTERCEPT, self._failed)
        now = clock.monotonic_us()
        outcome, note = (p.DONE, "") if now <= limit else (p.LATE, "it waited for its turn")
        self._ended(phases.end(p.INTERCEPT, now, outcome, note, fallback=False))
        kit.peers.knock(TOOLD, CONTEXTD)
        if phases.plan is p.ASLEEP:
            self._warming = loop.spawn(kit.hands.warm(self.trigger.unit), "toold gets ready")
        at_once = kit.adviser is not None and kit.peers.awake(INFERENCED) and kit.peers.awake(RUNTIMED)
        evidence = self.evidence = await self._gathering.gather(lease=at_once)
        if evidence is None:
            self.incident.happened(clock.wall_us(), "the service manager does not answer")
            return verdict.REPORT
        found = c.candidates(evidence, signatures.scan(evidence))
        unasked = self._unasked(evidence, found)
        asked: loop.Task[verdict.Answer | str] | None = None
        try:
            if not at_once:
                if unasked:
                    self._ended(phases.skip(p.LEASE, clock.monotonic_us(), unasked))
                else:
                    phases.replan(p.COLD)
                    kit.peers.knock(RUNTIMED, MODELD, INFERENCED)
                    # The model is loaded and begins to read while inferenced wakes.
                    asked = loop.spawn(self._ask(evidence, found, self._until(0)), "the model is asked")
                    await self._gathering.take_lease()
            limit = phases.begin(p.DIAGNOSE, clock.monotonic_us())
            self.verdict = await self._judge(evidence, found, unasked, limit, asked)
        finally:
            if asked is not None:
                asked.cancel()
        action = remedy.choose(self.verdict.cause, evidence)
        self.incident.decide(clock.wall_us(), self.verdict, evidence, action)
        self.incident.marks = marks.take(remedy.about(action, self.verdict.cause, evidence))
        if not self.incident.invocation:
            self.incident.invocation = evidence.invocation
        now = clock.monotonic_us()
        late = now > limit
        self._ended(phases.end(p.DIAGNOSE, now, p.LATE if late else p.DONE, self.verdict.note, fallback=False))
        if self.verdict.cause.fault_class in NO_FAULT:
            return DISMISS
        return remedy.disposition(self.verdict, action, evidence)

    def _unasked(self, evidence: Evidence, found: list[c.Cause]) -> str:
        """Why the model is not asked; empty where it is."""
        if found[0].confidence >= verdict.ACT_AT or found[0].fault_class in NO_FAULT:
            return "the evidence had settled it"
        if self._kit.adviser is None:
            return "no model is set"
        if not self._kit.adviser.wanted(evidence, found):
            return "the unit's words leave the model nothing to choose"
        return ""

    async def _judge(
        self,
        evidence: Evidence,
        found: list[c.Cause],
        unasked: str,
        limit: int,
        asked: loop.Task[verdict.Answer | str] | None,
    ) -> Verdict:
        """`asked`: where the model was asked already."""
        if unasked:
            return verdict.combine(found, None, why_absent=unasked)
        answer = await (asked or self._ask(evidence, found, self._until(limit)))
        if isinstance(answer, str):
            return verdict.combine(found, None, why_absent=answer)
        return verdict.combine(found, answer)

    def _until(self, limit: int) -> int:
        """When the model is not waited for any more. Without it nothing would be done at once anyway: so there is
        time for it beyond the budget."""
        return max(limit, self._kit.clock.monotonic_us() + int(self._kit.settings.patience_sec * 1e6))

    async def _ask(self, evidence: Evidence, found: list[c.Cause], deadline: int) -> verdict.Answer | str:
        assert self._kit.adviser is not None
        self._asked = True
        return await self._kit.adviser.choose(evidence, found, deadline=deadline)

    async def investigate(self) -> str:
        """Look further into what signatures and the model leave open, with tools that only look: what is decided
        by then. No deadline waits for it."""
        kit, incident, ruled, evidence = self._kit, self.incident, self.verdict, self.evidence
        if kit.investigator is None or ruled is None or evidence is None or ruled.confidence >= verdict.STAGE_AT:
            return verdict.REPORT
        kit.keep(incident)
        found = await kit.investigator(evidence, ruled.causes)
        incident.transcript = [dict(turn) for turn in found.transcript]
        incident.happened(
            kit.clock.wall_us(),
            f"looked further with {len(found.transcript)} steps: {found.outcome}, {found.reason}",
        )
        self.evidence, self.verdict = found.evidence, found.verdict
        action = remedy.choose(found.verdict.cause, found.evidence)
        incident.decide(kit.clock.wall_us(), found.verdict, found.evidence, action)
        incident.marks = marks.take(remedy.about(action, found.verdict.cause, found.evidence))
        allowed = remedy.disposition(found.verdict, action, found.evidence)
        order = (verdict.REPORT, verdict.STAGE, verdict.ACT)
        return min(allowed, found.outcome, key=order.index)

    async def ruling(self) -> policy.Ruling:
        """What the policy says of this failure."""
        kit, trigger, properties = self._kit, self.trigger, self.properties
        occasion = await self._gathering.occasion()
        if occasion is None:
            why = f"the service manager does not tell what goes on: {self._gathering.silence}"
            return policy.Ruling(policy.OBSERVE, why)
        names = list(dict.fromkeys([trigger.unit, *properties.get("Names", ())]))
        weekday, minute = kit.clock.local()
        return kit.guards.rule(names, occasion, now=kit.clock.seconds(), weekday=weekday, minute=minute)

    async def planes(self) -> None:
        """Where the kernel tells of a faulty accelerator: quarantine for it, and its gang is released. That puts
        nothing of the unit right; what it leases next is whole."""
        evidence, incident, kit = self.evidence, self.incident, self._kit
        lines = [] if evidence is None else [one.message for one in evidence.entries if one.origin == KERNEL]
        if not lines:
            return
        from syntrop.sentry import accelerators

        try:
            gang = await accelerators.triage_planes(lines, kit.peers, unit=incident.unit)
            if gang is None:
                return
            incident.happened(kit.clock.wall_us(), f"accelerators: {gang.sentence}")
            if gang.plane:
                revoked = await accelerators.isolate(gang, kit.peers)
                healthy = ", ".join(gang.healthy) or "none"
                incident.happened(
                    kit.clock.wall_us(),
                    f"put {gang.plane} into quarantine; {len(revoked)} leases ended; healthy planes: {healthy}",
                )
        except PeerError as error:
            incident.happened(kit.clock.wall_us(), f"accelerators: {error}")

    # --- doing -----------------------------------------------------------------------------------------------

    async def treat(self, why: str) -> str:
        """Carry the action out, from where it stands; empty, or why it could not be. Raises OSError when the
        record of what will be written cannot be kept: then nothing is done."""
        kit, incident, phases, clock = self._kit, self.incident, self.phases, self._kit.clock
        action = incident.action
        assert action is not None
        if incident.status != i.ACTING:
            incident.move(i.ACTING, clock.wall_us(), why)
        # A power failure has no use for the record of a restart; that of a write has to be there after one.
        kit.keep(incident, sync=action.writes)
        phases.begin(p.REMEDY, clock.monotonic_us())
        failure = ""
        for step in action.steps[incident.done :]:
            again, self._again = self._again, self._again and step.tool != "unit_restart"
            failure = await (self._step_again(step) if again else self._step(step))
            if failure:
                break
        outcome = p.FAILED if failure else p.DONE
        self._ended(phases.end(p.REMEDY, clock.monotonic_us(), outcome, failure))
        kit.keep(incident)
        return failure

    async def _step(self, step: Step) -> str:
        kit, incident = self._kit, self.incident
        patience = RATES_PATIENCE
        while True:
            # Each time anew: it may have waited for a person, the rates, or our next start.
            moved = marks.changed(incident.marks) if step.tool in remedy.WRITING else ""
            if moved:
                return moved
            try:
                rollback_id = await kit.hands.do(self._exactly(step))
            except HandsError as error:
                if error.wait is None or error.wait > patience:
                    self.silent = error.silent
                    return str(error)
                patience -= error.wait
                incident.happened(kit.clock.wall_us(), f"{step.tool} waits {error.wait:.0f} s for toold's rates")
                kit.keep(incident)
                await loop.sleep(error.wait)
                continue
            incident.carried_out(kit.clock.wall_us(), step, rollback_id)
            kit.keep(incident)
            return ""

    def _exactly(self, step: Step) -> Step:
        """A step with what toold itself is to look at when it comes to it: it may be busy for a while."""
        path = next((arg for arg in step.args if arg.startswith("/")), "")
        if step.tool not in remedy.WRITING or len(step.args) != 2 or not path:
            return step
        mark = self.incident.marks.get(path, "")
        content = marks.digest(mark) or (mark if mark == marks.ABSENT and step.tool == "restore_file" else "")
        return remedy.Step(step.tool, [*step.args, content], step.unit) if content else step

    async def _step_again(self, step: Step) -> str:
        """The step that was under way when we ended: done again, where it was not done."""
        kit, incident, clock = self._kit, self.incident, self._kit.clock
        if step.tool in _WITHOUT_RECORD:
            if step.tool == "unit_restart" and await self._started(probation.ACTIVE, probation.COMING):
                incident.carried_out(clock.wall_us(), step, None)
                return ""
            return await self._step(step)
        before = incident.rollback_ids.copy()
        # Who brought it up meanwhile has mended it: nothing is written any more.
        failure = (
            "it runs again, and is left alone" if await self._started(probation.ACTIVE) else await self._step(step)
        )
        try:
            kept = await kit.hands.kept(step, since_us=incident.acting_us, now_us=clock.wall_us())
        except HandsError as error:
            return failure or str(error)
        new = [one for one in kept if one not in before]
        if failure and new:
            # It is done, which is why it cannot be done again.
            incident.carried_out(clock.wall_us(), step, new[-1])
            failure = ""
        incident.rollback_ids = [*before, *new]
        kit.keep(incident)
        return failure

    async def _started(self, *states: str) -> bool:
        """Whether the unit runs, and it is not the run that failed."""
        try:
            with loop.deadline(5.0):
                now = probation.Health(await self._kit.manager.unit(self.incident.unit))
        except (OSError, dbus.DBusError):
            return False
        return now.state in states and now.run != self.incident.invocation

    def resume(self) -> None:
        """Go on with what an earlier life of ours had begun: `treat`, `restore` or `take_back` come next."""
        now = self._kit.clock.monotonic_us()
        for name in p.PHASES[:5]:
            self.phases.skip(name, now, "before a restart of ours")
        if self.incident.action is not None and self.incident.done >= len(self.incident.action.steps):
            self.phases.skip(p.REMEDY, now, "before a restart of ours")
        self._again = self.incident.status == i.ACTING
        self.incident.happened(self._kit.clock.wall_us(), "goes on after a restart of systemd-sentry")

    async def restore(self) -> str:
        """Watch whether the action helped; empty, or why not."""
        kit, incident, phases, clock = self._kit, self.incident, self.phases, self._kit.clock
        settings = kit.settings
        phases.begin(p.RESTORE, clock.monotonic_us())
        incident.probation = True
        kit.keep(incident)

        def active() -> None:
            since = (clock.monotonic_us() - self._failed) / 1000
            incident.happened(clock.wall_us(), f"active again, {since:.0f} ms after the failure; on probation")

        try:
            failure = await probation.healthy(
                kit.manager,
                incident.unit,
                seconds=settings.probation_sec,
                patience=settings.start_patience_sec,
                active=active,
            )
        except (OSError, dbus.DBusError) as error:
            failure = f"the service manager does not tell whether it helped: {error}"
        outcome = p.FAILED if failure else p.DONE
        self._ended(phases.end(p.RESTORE, clock.monotonic_us(), outcome, failure))
        return failure

    async def take_back(self) -> str:
        """Take back what was done, the last first; empty, or why it could not be."""
        kit, incident, clock = self._kit, self.incident, self._kit.clock
        incident.undoing = True
        kit.keep(incident)
        for rollback_id in reversed(incident.rollback_ids.copy()):
            try:
                await kit.hands.take_back(rollback_id)
            except HandsError as error:
                return str(error)
            incident.taken_back(clock.wall_us(), rollback_id)
            kit.keep(incident)
        return ""

    def reflect(self) -> None:
        """Begin with what may wait, beside what is done."""
        if self._opinion is None:
            self._opinion = loop.spawn(self._reflect(), "the model's word")

    async def afterwards(self) -> None:
        """What may wait, to its end: the model's word where it was not needed, its sentence, and the lease given
        back."""
        self.reflect()
        assert self._opinion is not None
        try:
            await self._opinion
        except loop.Cancelled:
            await loop.stop(self._opinion)
            raise

    async def give_back(self) -> None:
        """The lease, where nothing is to be said."""
        lease, self._gathering.lease = self._gathering.lease, ""
        if lease:
            await self._kit.peers.release(lease)

    async def _reflect(self) -> None:
        kit, evidence, ruled = self._kit, self.evidence, self.verdict
        try:
            if kit.adviser is None or not kit.peers.awake(RUNTIMED):
                return
            if evidence is None or ruled is None or ruled.cause.fault_class in NO_FAULT:
                return
            if not self._asked and len(ruled.causes) > 1:
                answer = await self._ask(evidence, list(ruled.causes), self._soon())
                words = answer if isinstance(answer, str) else _opinion(answer, ruled)
                self.incident.happened(kit.clock.wall_us(), f"the model, asked afterwards: {words}")
            sentence = await kit.adviser.sentence(evidence, ruled.cause, deadline=self._soon())
            if sentence:
                self.incident.happened(kit.clock.wall_us(), f"in the model's words: {sentence}")
        finally:
            await self.give_back()

    def _soon(self) -> int:
        return self._kit.clock.monotonic_us() + 10_000_000

    def _ended(self, span: Span) -> None:
        known = self._before
        now = {one.name: one for one in self.phases.spans if one.outcome != p.SKIPPED or one.name not in known}
        both = {**known, **now}
        self.incident.spans = [both[name] for name in p.PHASES if name in both]
        self._told(span)


def _opinion(answer: verdict.Answer, ruled: Verdict) -> str:
    same = answer.label == ruled.cause.fault_class
    return f"{'the same' if same else answer.label} ({answer.confidence:.2f})"
