# SPDX-License-Identifier: Apache-2.0
"""From evidence to candidate causes: what each rests on, and how sure it is. Pure and deterministic.

A signature alone has its weight. What speaks for the same cause from elsewhere (how the process ended, a counter,
a change of just the setting or the file that the message is about) is joined to it as independent evidence: 1 -
(1 - a)(1 - b). So the words of a service alone never reach the threshold of acting, and a change alone neither: a
cause acts when two sources agree.
"""

from __future__ import annotations

from syntrop.sentry import signatures as s
from syntrop.sentry.blame import Blame
from syntrop.sentry.evidence import EXITED, FAULTS
from syntrop.sentry.record import Record
from syntrop.sentry.unitfiles import drop_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from syntrop.sentry.evidence import Change, Evidence, Package
    from syntrop.sentry.signatures import Finding

CAUSES_MAX = 6
SURE = 0.99  # nothing is surer than this
_EXEC = 203  # systemd.exec(5)
_BEFORE_EXEC = range(200, 246)  # what the manager's child exits with where it cannot become the program
_STOPPED = "9d1aaa27d60140bd96365438aad20286"  # sd-messages.h: SD_MESSAGE_UNIT_STOPPED
_OPEN = 0.89  # the most that is not acted on
_SIGSYS = 31


class Cause(Record):
    """A candidate: `evidence` are identifiers of what speaks for it; `subject` is what is the matter (a path, a
    unit, a package); `change` the identifier of the change that brought it about, where one was found."""

    __slots__ = ("change", "confidence", "evidence", "explanation", "fault_class", "subject")

    def __init__(
        self,
        fault_class: str,
        confidence: float,
        explanation: str,
        evidence: Iterable[str],
        *,
        subject: str = "",
        change: str = "",
    ) -> None:
        self.fault_class, self.confidence, self.explanation = fault_class, min(SURE, confidence), explanation
        self.evidence = tuple(dict.fromkeys(evidence))
        self.subject, self.change = subject, change


def join(*weights: float) -> float:
    """The confidence of independent pieces of evidence for one cause."""
    doubt = 1.0
    for weight in weights:
        doubt *= 1.0 - weight
    return min(SURE, 1.0 - doubt)


def candidates(evidence: Evidence, findings: list[Finding]) -> list[Cause]:
    """The causes, likeliest first. There is at least one; the last resort is `unknown`."""
    found = _Candidates(evidence, findings)
    return found.ranked()


class _Candidates:
    def __init__(self, evidence: Evidence, findings: list[Finding]) -> None:
        self._evidence = evidence
        self._findings = findings
        self._causes: dict[str, Cause] = {}
        self._blame = Blame(evidence)

    def ranked(self) -> list[Cause]:
        state = self._state()
        if state is not None:
            return [state]
        for fault_class in dict.fromkeys(one.signature.fault_class for one in self._findings):
            self._from_texts(fault_class)
        self._from_exit()
        self._from_counters()
        self._from_neighbours()
        self._from_changes()
        self._from_packages()
        self._temper()
        if not self._causes:
            words = "is gone" if self._evidence.facts.gone else "failed"
            text = f"{self._evidence.unit} {words}, and nothing tells why"
            self._add(s.UNKNOWN, 0.3, text, [self._anchor()])
        ranked = sorted(self._causes.values(), key=lambda cause: cause.confidence, reverse=True)
        return ranked[:CAUSES_MAX]

    # What is no fault at all, or no longer.

    def _state(self) -> Cause | None:
        evidence, facts = self._evidence, self._evidence.facts
        failed = [
            entry for entry in evidence.entries if entry.field("UNIT_RESULT") and entry.unit == evidence.unit
        ]
        if facts.active == "active" and (failed or facts.restarts):
            cited = [*(one.id for one in failed[-1:]), facts.id]
            return Cause(s.RECOVERED, 0.97, f"{evidence.unit} failed and runs again by itself", cited)
        down = any(one.failed for one in evidence.neighbours)
        stopped = [one for one in evidence.entries if one.message_id == _STOPPED and one.unit == evidence.unit]
        by_hand = [one for one in stopped if one.believed and one.field("JOB_TYPE") == "stop"]
        if by_hand and not down and stopped[-1] is evidence.entries[-1]:
            return Cause(s.STOPPED_BY_HAND, 0.95, f"{evidence.unit} was asked to stop", [by_hand[-1].id, facts.id])
        well = evidence.exit is None or evidence.exit.result in ("", "success")
        quiet = well and not failed and not down and not self._findings
        if quiet and facts.active in ("active", "inactive") and facts.load == "loaded":
            return Cause(s.NO_FAILURE, 0.9, f"{evidence.unit} is {facts.active} and has not failed", [facts.id])
        return None

    # Texts, with what corroborates them.

    def _from_texts(self, fault_class: str) -> None:
        found = [one for one in self._findings if one.signature.fault_class == fault_class]
        if fault_class == s.UNIT_SYNTAX:
            self._unit_syntax(found)
            return
        first = max(found, key=lambda one: (one.weight, one.subject != ""))
        subject = first.subject or next((one.subject for one in found if one.subject), "")
        cited = [one.entry_id for one in found[:4]]
        # Several texts that say the same are one witness; systemd's and the program's are two.
        kinds: dict[bool, float] = {}
        for one in found:
            believed = self._evidence.get(one.entry_id).believed
            kinds[believed] = max(kinds.get(believed, 0.0), one.weight)
        weight = join(*kinds.values())
        change, support = self._blame.explaining(fault_class, subject)
        if change is not None:
            weight = join(weight, support)
            cited.append(change.id)
        self._add(
            fault_class,
            weight,
            self._sentence(fault_class, subject, change),
            cited,
            subject=subject,
            change="" if change is None else change.id,
        )

    def _unit_syntax(self, found: list[Finding]) -> None:
        """A line that is ignored is a fault only where the unit cannot be loaded, or the line is newly there."""
        broken = self._evidence.facts.load in ("bad-setting", "error")
        refused = any(one.signature.name == "unit-refused" for one in found)
        paths = [one.subject for one in found if one.subject]
        subject = paths[-1] if paths else self._evidence.facts.fragment
        change = next((one for one in self._blame.own if one.path in paths), None)
        if change is None and broken:
            change = next((one for one in self._blame.own if self._blame.is_unit_file(one.path)), None)
            subject = change.path if change is not None else subject
        weight = 0.93 if broken else 0.9 if refused else 0.45
        cited = [one.entry_id for one in found[:4]] + [self._evidence.facts.id]
        if change is not None:
            weight, cited = join(weight, 0.6), [*cited, change.id]
        self._add(
            s.UNIT_SYNTAX,
            weight,
            f"{subject or self._evidence.unit} is no sound unit file",
            cited,
            subject=subject,
            change="" if change is None else change.id,
        )

    # How it ended.

    def _from_exit(self) -> None:
        leaving, facts = self._evidence.exit, self._evidence.facts
        if facts.load in ("bad-setting", "error", "masked"):
            if s.UNIT_SYNTAX not in self._causes:
                self._add(s.UNIT_SYNTAX, 0.8, f"{self._evidence.unit} cannot be loaded ({facts.load})", [facts.id])
            return
        if leaving is None or leaving.result in ("", "success"):
            return
        if leaving.code == EXITED and leaving.status == _EXEC:
            for one in (s.MISSING_PROGRAM, s.PERMISSION):
                if one in self._causes:
                    self._strengthen(one, 0.4, leaving.id)
                    return
            self._add(s.MISSING_PROGRAM, 0.8, "the program could not be executed", [leaving.id])
        elif leaving.code == EXITED and leaving.status in _BEFORE_EXEC:
            for one in (s.EXECUTION_CONTEXT, s.MISSING_FILE, s.PERMISSION):
                if one in self._causes:
                    self._strengthen(one, 0.4, leaving.id)
                    return
            words = f"what its unit asks for could not be set up (status {leaving.status})"
            self._add(s.EXECUTION_CONTEXT, 0.75, words, [leaving.id])
        elif leaving.result == "oom-kill":
            self._strengthen_or_add(s.MEMORY_LIMIT, 0.6, "it was killed for lack of memory", leaving.id)
        elif leaving.result == "watchdog":
            self._strengthen_or_add(s.WATCHDOG, 0.9, "it stopped telling that it is alive", leaving.id)
        elif leaving.result == "timeout":
            self._strengthen_or_add(s.TIMEOUT, 0.75, "it took too long", leaving.id)
        elif leaving.result == "protocol":
            self._strengthen_or_add(s.PROTOCOL, 0.75, "it did not report as its Type= demands", leaving.id)
        elif leaving.result in ("start-limit-hit",):
            self._strengthen_or_add(s.FLAPPING, 0.93, "it was started too often", leaving.id)
        elif leaving.status == _SIGSYS and leaving.by_signal:
            self._strengthen_or_add(s.SYSTEM_CALL, 0.9, "it made a system call that its unit forbids", leaving.id)
            self._explain(s.SYSTEM_CALL)
        elif leaving.result in ("signal", "core-dump", "exit-code"):
            self._crash()

    def _crash(self) -> None:
        """A plain crash is what is left when no text and no change tells more."""
        evidence, leaving = self._evidence, self._evidence.exit
        assert leaving is not None
        cited = [leaving.id, *(one.id for one in evidence.coredumps[:1])]
        if leaving.by_signal:
            name = FAULTS.get(leaving.status, f"signal {leaving.status}")
            weight, words = 0.92, f"its main process ended on {name}"
        else:
            weight, words = 0.9, f"its main process exited with status {leaving.status}"
        if not evidence.context_known:
            weight -= 0.05 if leaving.code == EXITED else 0.0
        if evidence.facts.type == "oneshot":
            if leaving.code == EXITED:
                self._add(s.JOB_FAILED, 0.8, f"the job failed: {words}", cited)
                return
            weight = 0.8
        telling = {one.signature.fault_class for one in self._findings} - {s.CRASH, s.FLAPPING}
        if leaving.trapped and s.DESCRIPTOR_LIMIT in telling and not self._causes[s.DESCRIPTOR_LIMIT].change:
            # Nobody lowered the limit: what leaks descriptors and then traps has crashed, and they end with it.
            telling.remove(s.DESCRIPTOR_LIMIT)
        if telling:
            weight *= 0.6
        self._strengthen_or_add(s.CRASH, weight, words, *cited)

    def _from_counters(self) -> None:
        killed = self._evidence.counter("memory.events oom_kill")
        if killed is not None and killed.value > 0:
            already = s.MEMORY_LIMIT in self._causes
            self._strengthen_or_add(s.MEMORY_LIMIT, 0.8, "the kernel killed a process at the limit", killed.id)
            if not already:
                self._explain(s.MEMORY_LIMIT)
        for name, words in (("free_bytes", "space"), ("free_inodes", "inodes")):
            for one in self._evidence.counters:
                if one.name.startswith(f"{name} ") and one.value == 0:
                    self._strengthen_or_add(
                        s.DISK_FULL, 0.7, f"{one.name[len(name) + 1 :]} has no {words} left", one.id
                    )
        jump = self._evidence.clock_jump_us()
        if jump:
            believed = [one for one in self._evidence.entries if one.believed]
            words = f"the clock was set by {jump / 1e6:.0f} s while it ran"
            self._strengthen_or_add(s.CLOCK, 0.6, words, believed[0].id, believed[-1].id)

    def _from_neighbours(self) -> None:
        down = [one for one in self._evidence.neighbours if one.failed]
        if not down:
            return
        words = f"{down[0].unit}, which it {down[0].relation}, has failed"
        already = self._causes.get(s.DEPENDENCY)
        if already is not None:
            joined = join(already.confidence, 0.7)
            self._add(
                s.DEPENDENCY, joined, words, [*already.evidence, *(one.id for one in down)], subject=down[0].unit
            )
        else:
            # A unit that is bound to another is stopped with it, and has not failed itself.
            leaving = self._evidence.exit
            bound = leaving is None or leaving.result in ("", "success")
            cited = [one.id for one in down]
            self._add(s.DEPENDENCY, 0.93 if bound else 0.6, words, cited, subject=down[0].unit)

    # Changes that no text points to.

    def _from_changes(self) -> None:
        """Something of the unit's own changed shortly before: that is a candidate, and no more than that."""
        explained = {cause.change for cause in self._causes.values() if cause.change}
        settled = explained and max(cause.confidence for cause in self._causes.values()) >= 0.9
        others = [one for one in self._blame.own if one.id not in explained]
        others = [] if settled else [one for one in others if self._evidence.before_failure(one.time_us)]
        if not others:
            return
        # Of equal ones contextd's first.
        change = max(others, key=self._blame.weight)
        kind = "drop-in " if drop_in(self._evidence.unit, change.path) else ""
        words = f"{kind}{change.path} changed before it failed ({change.reason})"
        before = self._causes.get(s.CONFIGURATION)
        if before is None:
            weight = 0.7 * self._blame.weight(change)
            self._add(s.CONFIGURATION, weight, words, [change.id], subject=change.path, change=change.id)
        elif not before.change and not before.subject:
            # Two that only happen to come together are no proof of each other.
            weight = min(_OPEN, join(before.confidence, 0.6 * self._blame.weight(change)))
            self._add(
                s.CONFIGURATION, weight, words, [*before.evidence, change.id], subject=change.path,
                change=change.id,
            )  # fmt: skip

    def _from_packages(self) -> None:
        leaving = self._evidence.exit
        own = [one for one in self._evidence.packages if self._is_own_package(one)]
        if not own:
            return
        first = own[0]
        cited = [first.id]
        library = s.MISSING_LIBRARY in self._causes
        weight = 0.55
        if leaving is not None and leaving.fault:
            weight, cited = 0.93, [leaving.id, first.id, *(one.id for one in self._evidence.coredumps[:1])]
        elif library:
            weight, cited = 0.95, [*self._causes[s.MISSING_LIBRARY].evidence, first.id]
        before = f" from {first.old_version}" if first.old_version else ""
        words = f"package {first.name} was {_past(first.action)}{before} to {first.version} before it failed"
        self._add(s.PACKAGE_UPGRADE, weight, words, cited, subject=first.name)

    # What takes confidence away.

    def _temper(self) -> None:
        causes = self._causes
        flapping = causes.get(s.FLAPPING)
        if flapping is not None and s.CRASH in causes:
            # The manager has restarted it over and over: one restart more is no remedy.
            self._weaken(s.CRASH, 0.3)
        stopped = causes.get(s.STOPPED_BY_HAND)
        if stopped is not None:
            self._weaken(s.CRASH, 0.3)
        for stronger in (s.PACKAGE_UPGRADE, s.CONFIGURATION):
            if stronger in causes and causes[stronger].confidence >= 0.5:
                self._weaken(s.CRASH, 0.7)
                self._weaken(s.JOB_FAILED, 0.8)
        if s.CLOCK in causes and self._evidence.clock_jump_us():
            # "Before" and "after" are not to be trusted then.
            for name, cause in list(causes.items()):
                if cause.change and name != s.CLOCK:
                    self._weaken(name, 0.9)
        if s.DEPENDENCY in causes and causes[s.DEPENDENCY].confidence >= 0.9:
            for name in (s.CRASH, s.JOB_FAILED):
                self._weaken(name, 0.5)

    # Helpers.

    def _explain(self, fault_class: str) -> None:
        cause = self._causes[fault_class]
        change, support = self._blame.explaining(fault_class, cause.subject)
        if change is not None and not cause.change:
            self._add(
                fault_class,
                join(cause.confidence, support),
                self._sentence(fault_class, cause.subject, change),
                [*cause.evidence, change.id],
                subject=cause.subject,
                change=change.id,
            )

    def _is_own_package(self, one: Package) -> bool:
        near = one.reason.startswith(("package of ", "package named like "))
        return near and self._evidence.before_failure(one.time_us) and one.action != "remove"

    def _sentence(self, fault_class: str, subject: str, change: Change | None) -> str:
        words = s.WORDS.get(fault_class, fault_class.replace("_", " "))
        text = words.format(subject=subject or "something") if "{subject}" in words else words
        if "{subject}" not in words and subject:
            text += f" ({subject})"
        return text + (f"; {change.path} changed before" if change is not None else "")

    def _anchor(self) -> str:
        leaving = self._evidence.exit
        return leaving.id if leaving is not None else self._evidence.facts.id

    def _add(
        self,
        fault_class: str,
        confidence: float,
        explanation: str,
        evidence: Iterable[str],
        *,
        subject: str = "",
        change: str = "",
    ) -> None:
        self._causes[fault_class] = Cause(
            fault_class, confidence, explanation, evidence, subject=subject, change=change
        )

    def _strengthen(self, fault_class: str, weight: float, *evidence: str) -> None:
        cause = self._causes[fault_class]
        self._add(
            fault_class,
            join(cause.confidence, weight),
            cause.explanation,
            [*cause.evidence, *evidence],
            subject=cause.subject,
            change=cause.change,
        )

    def _strengthen_or_add(self, fault_class: str, weight: float, words: str, *evidence: str) -> None:
        if fault_class in self._causes:
            self._strengthen(fault_class, weight, *evidence)
        else:
            self._add(fault_class, weight, words, evidence)

    def _weaken(self, fault_class: str, factor: float) -> None:
        cause = self._causes.get(fault_class)
        if cause is not None:
            self._add(
                fault_class,
                cause.confidence * factor,
                cause.explanation,
                cause.evidence,
                subject=cause.subject,
                change=cause.change,
            )


def _past(action: str) -> str:
    return {"upgrade": "upgraded", "downgrade": "downgraded", "install": "installed"}.get(action, f"{action}ed")
