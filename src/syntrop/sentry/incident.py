# SPDX-License-Identifier: Apache-2.0
"""The audit record of one incident: how it stands, what was done when, and how it goes on after a crash of ours.

Pure. `wire()` is `Incident` of io.syntrop.Sentry1; `timeline()` is for people; `dump()` and `load()` are for the
disk, and one is written before each step that changes anything, so that the next start knows what was under way.
"""

from __future__ import annotations

from syntrop.sentry.phases import Span
from syntrop.sentry.record import Record
from syntrop.sentry.remedy import Action, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from syntrop.sentry.evidence import Evidence
    from syntrop.sentry.verdict import Verdict

FORM = 1  # of the record on disk
HAPPENINGS_MAX = 256
EXCERPT_MAX = 20  # last words of the unit in the record

OPEN, STAGED, ACTING = "open", "staged", "acting"
RECOVERED, ROLLED_BACK, REPORTED, DISMISSED = "recovered", "rolled_back", "reported", "dismissed"
STATES = (OPEN, STAGED, ACTING, RECOVERED, ROLLED_BACK, REPORTED, DISMISSED)
CLOSED = frozenset((RECOVERED, ROLLED_BACK, REPORTED, DISMISSED))
_NEXT = {
    OPEN: frozenset((STAGED, ACTING, REPORTED, DISMISSED)),
    STAGED: frozenset((ACTING, REPORTED, DISMISSED)),
    ACTING: frozenset((RECOVERED, ROLLED_BACK, REPORTED)),
    REPORTED: frozenset((DISMISSED,)),
    RECOVERED: frozenset[str](),
    ROLLED_BACK: frozenset[str](),
    DISMISSED: frozenset[str](),
}

# What the next start does with an incident that a crash of ours left behind.
LOOK_AGAIN, GO_ON, ROLL_BACK, WATCH, NOTHING = "look_again", "go_on", "roll_back", "watch", "nothing"


class IncidentError(Exception):
    """An incident cannot go from where it stands to where it shall."""


class Happening(Record):
    """Something that was done or seen: microseconds since 1970 in UTC, and words."""

    __slots__ = ("text", "time_us")

    def __init__(self, time_us: int, text: str) -> None:
        self.time_us, self.text = time_us, text


class Incident:
    """One failure of one unit and what came of it."""

    __slots__ = (
        "acting_us", "action", "causes", "decided_by", "done", "excerpt", "happenings", "id", "invocation",
        "marks", "note", "probation", "rollback_ids", "spans", "status", "time_us", "transcript", "undoing",
        "unit",
    )  # fmt: skip

    def __init__(self, id: str, unit: str, time_us: int, *, invocation: str = "") -> None:
        self.id, self.unit, self.time_us, self.invocation = id, unit, time_us, invocation
        self.status = OPEN
        self.causes: list[dict[str, Any]] = []  # as `Cause` of the interface
        self.decided_by = "signature"
        self.note = ""
        self.action: Action | None = None
        self.acting_us = 0  # when it began to be carried out
        self.marks: dict[str, str] = {}  # of the files that the action is about, as they were when it was chosen
        self.done = 0  # steps of the action that were carried out
        self.probation = False  # the action is carried out, and whether it helped is being watched
        self.rollback_ids: list[str] = []  # of what was changed, in order; what is taken back goes from it
        self.undoing = False  # what was done is being taken back
        self.transcript: list[dict[str, Any]] = []  # of the agent's loop
        self.spans: list[Span] = []
        self.excerpt: list[str] = []
        self.happenings: list[Happening] = [Happening(time_us, f"{unit} failed")]

    @property
    def closed(self) -> bool:
        return self.status in CLOSED

    def happened(self, time_us: int, text: str) -> None:
        """Add to the timeline. The first and the newest are kept where it grows too long."""
        self.happenings.append(Happening(time_us, text))
        if len(self.happenings) > HAPPENINGS_MAX:
            del self.happenings[1]

    def decide(self, time_us: int, verdict: Verdict, evidence: Evidence, action: Action) -> None:
        """Write down the verdict, with what it rests on, and the action that it calls for."""
        self.causes = [
            {
                "fault_class": cause.fault_class,
                "confidence": verdict.confidence if cause is verdict.cause else cause.confidence,
                "explanation": cause.explanation,
                "evidence": [evidence.reference(id) for id in cause.evidence],
            }
            for cause in verdict.causes
        ]
        self.decided_by, self.note = verdict.decided_by, verdict.note
        self.action = action
        self.excerpt = [entry.message for entry in evidence.entries][-EXCERPT_MAX:]
        self.happened(
            time_us,
            f"found: {verdict.cause.explanation} ({verdict.cause.fault_class}, {verdict.confidence:.2f}, by"
            f" {verdict.decided_by}: {verdict.note})",
        )

    def move(self, status: str, time_us: int, why: str = "") -> None:
        """Go on to another status. Raises IncidentError."""
        if status not in _NEXT[self.status]:
            raise IncidentError(f"incident {self.id} is {self.status} and cannot become {status}")
        self.status = status
        if status == ACTING:
            self.acting_us = time_us
        self.happened(time_us, status.replace("_", " ") + (f": {why}" if why else ""))

    def carried_out(self, time_us: int, step: Step, rollback_id: str | None) -> None:
        """A step of the action was carried out."""
        self.done += 1
        if rollback_id is not None:
            self.rollback_ids.append(rollback_id)
        words = " ".join([step.tool, *([step.unit] if step.unit else []), *step.args])
        self.happened(time_us, f"did {words}" + (f" (taken back by {rollback_id})" if rollback_id else ""))

    def resumption(self) -> str:
        """What a start after a crash of ours does with it.

        Nothing had been done: it is looked into again. All of it had: it goes on being watched. Something had: the
        step that was under way is done again, since toold has either kept a record of it, and is asked for that,
        or has settled its own journal so that nothing of it is left. What was being taken back is taken back.
        """
        if self.status == OPEN:
            return LOOK_AGAIN
        if self.status != ACTING or self.action is None:
            return NOTHING
        if self.undoing:
            return ROLL_BACK
        return WATCH if self.done >= len(self.action.steps) else GO_ON

    def taken_back(self, time_us: int, rollback_id: str) -> None:
        """A change was taken back."""
        self.rollback_ids.remove(rollback_id)
        self.happened(time_us, f"took back {rollback_id}")

    def wire(self) -> dict[str, Any]:
        """As `Incident` of io.syntrop.Sentry1."""
        action: dict[str, Any] | None = None
        if self.action is not None:
            first = self.action.steps[0] if self.action.steps else None
            action = {
                "tool": first.tool if first is not None else "none",
                "args": list(first.args) if first is not None else [],
                "reason": self.action.reason,
                "rollback_id": self.rollback_ids[0] if self.rollback_ids else None,
            }
        return {
            "id": self.id,
            "unit": self.unit,
            "invocation_id": self.invocation or None,
            "timestamp_us": self.time_us,
            "status": self.status,
            "causes": self.causes,
            "decided_by": self.decided_by,
            "action": action,
            "phases": [span.wire() for span in self.spans],
            "journal_excerpt": self.excerpt or None,
        }

    def timeline(self) -> list[str]:
        """The incident for people, one line a happening, with the seconds from the failure."""
        lines = [
            f"{(one.time_us - self.time_us) / 1e6:+10.3f} s  {one.text}"
            for one in sorted(self.happenings, key=lambda one: one.time_us)
        ]
        for cause in self.causes:
            lines.append(f"{'cause':>10}    {cause['confidence']:.2f} {cause['explanation']}")
            lines += [f"{'':>12}      {reference}" for reference in cause["evidence"]]
        for span in self.spans:
            lines.append(
                f"{'phase':>10}    {span.name:<10}{span.start_us / 1e3:9.1f} ms {span.duration_us / 1e3:+9.1f} ms"
                f"  {span.outcome}{f' ({span.note})' if span.note else ''}"
            )
        return lines

    def dump(self) -> dict[str, Any]:
        """As JSON for the disk."""
        action = self.action
        return {
            "form": FORM,
            **self.wire(),
            "note": self.note,
            "steps": None
            if action is None
            else {"name": action.name, "steps": [[one.tool, list(one.args), one.unit] for one in action.steps]},
            "marks": self.marks,
            "acting_us": self.acting_us,
            "done": self.done,
            "probation": self.probation,
            "rollback_ids": self.rollback_ids,
            "undoing": self.undoing,
            "transcript": self.transcript,
            "happenings": [[one.time_us, one.text] for one in self.happenings],
        }

    @classmethod
    def load(cls, kept: dict[str, Any]) -> Incident:
        """What `dump` gave. Raises KeyError, TypeError or ValueError where it is no such thing."""
        if kept["form"] != FORM or kept["status"] not in STATES:
            raise ValueError("no incident of this form")
        incident = cls(kept["id"], kept["unit"], int(kept["timestamp_us"]), invocation=kept["invocation_id"] or "")
        incident.status = kept["status"]
        incident.causes = list(kept["causes"])
        incident.decided_by, incident.note = kept["decided_by"], kept["note"]
        if kept["steps"] is not None:
            steps: Sequence[Any] = kept["steps"]["steps"]
            reason = kept["action"]["reason"]
            incident.action = Action(
                kept["steps"]["name"], [Step(tool, args, unit) for tool, args, unit in steps], reason
            )
        incident.marks = {str(path): str(mark) for path, mark in kept.get("marks", {}).items()}
        incident.acting_us = int(kept["acting_us"])
        incident.done, incident.probation = int(kept["done"]), bool(kept["probation"])
        incident.rollback_ids = [str(one) for one in kept["rollback_ids"]]
        incident.undoing, incident.transcript = bool(kept["undoing"]), list(kept["transcript"])
        incident.spans = [
            Span(one["name"], one["start_us"], one["duration_us"], one["outcome"], one["note"] or "")
            for one in kept["phases"]
        ]
        incident.excerpt = list(kept["journal_excerpt"] or ())
        incident.happenings = [Happening(int(time_us), text) for time_us, text in kept["happenings"]]
        return incident
