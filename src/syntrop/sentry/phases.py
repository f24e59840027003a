# SPDX-License-Identifier: Apache-2.0
"""Seven phases under one deadline. Pure: times are monotonic microseconds.

Each phase has a budget, a fallback when it is late, and a span in the record. What can run side by side does:
slice, correlate and lease begin together, as soon as the failure is known. The deadline is for knowing and
deciding. An action that has begun is carried to its end or taken back, whatever the time; its phases have limits
of their own.
"""

from __future__ import annotations

from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

INTERCEPT, SLICE, CORRELATE, LEASE = "intercept", "slice", "correlate", "lease"
DIAGNOSE, REMEDY, RESTORE = "diagnose", "remedy", "restore"
PHASES = (INTERCEPT, SLICE, CORRELATE, LEASE, DIAGNOSE, REMEDY, RESTORE)
DONE, LATE, FAILED, SKIPPED = "done", "late", "failed", "skipped"

# What must have ended before a phase begins.
AFTER: Mapping[str, tuple[str, ...]] = {
    INTERCEPT: (),
    SLICE: (INTERCEPT,),
    CORRELATE: (INTERCEPT,),
    LEASE: (INTERCEPT,),
    DIAGNOSE: (SLICE, CORRELATE, LEASE),
    REMEDY: (DIAGNOSE,),
    RESTORE: (REMEDY,),
}
# What is done where a phase is late or fails.
FALLBACK: Mapping[str, str] = {
    INTERCEPT: "the manager is asked for the unit's state, and the failure's time is the asking's",
    SLICE: "the exit status alone, as the manager tells it",
    CORRELATE: "nothing is known of changes: no change is held responsible, and none is reverted",
    LEASE: "the model goes without a lease, at the priority of everybody",
    DIAGNOSE: "the deterministic verdict stands",
    REMEDY: "what was begun is taken back, and a person is told",
    RESTORE: "the action is taken back, and a person is told",
}
_MS = 1000


class Plan(Record):
    """Budgets in microseconds by phase, and the deadline for the decision, counted from the failure."""

    __slots__ = ("budgets", "deadline", "name")

    def __init__(self, name: str, deadline: int, budgets: tuple[int, ...]) -> None:
        self.name, self.deadline = name, deadline
        self.budgets = budgets

    def budget(self, phase: str) -> int:
        return self.budgets[PHASES.index(phase)]


# For the suite awake, for the suite asleep with the deterministic verdict, and with a model that is loaded first.
# The limits of remedy and restore are toold's own for the tools, and the time that a service may take to start.
AWAKE = Plan("awake", 110 * _MS, (5 * _MS, 15 * _MS, 25 * _MS, 25 * _MS, 60 * _MS, 30_000 * _MS, 90_000 * _MS))
ASLEEP = Plan(
    "asleep", 330 * _MS, (60 * _MS, 60 * _MS, 240 * _MS, 120 * _MS, 60 * _MS, 30_000 * _MS, 90_000 * _MS)
)
COLD = Plan("cold", 630 * _MS, (60 * _MS, 60 * _MS, 240 * _MS, 240 * _MS, 330 * _MS, 30_000 * _MS, 90_000 * _MS))


class Span(Record):
    """A phase as it was: from the failure to its start, its duration (both in microseconds), how it ended."""

    __slots__ = ("duration_us", "name", "note", "outcome", "start_us")

    def __init__(self, name: str, start_us: int, duration_us: int, outcome: str, note: str = "") -> None:
        self.name, self.start_us, self.duration_us = name, start_us, duration_us
        self.outcome, self.note = outcome, note

    def wire(self) -> dict[str, Any]:
        """As `Phase` of io.syntrop.Sentry1."""
        return {
            "name": self.name,
            "start_us": self.start_us,
            "duration_us": self.duration_us,
            "outcome": self.outcome,
            "note": self.note or None,
        }


class PhaseError(Exception):
    """A phase begins before what it needs has ended, or ends without having begun: a fault of ours."""


class Phases:
    """The course of one triage. `failed` is the time of the failure on the monotonic clock, in microseconds."""

    __slots__ = ("_began", "_failed", "_plan", "_spans")

    def __init__(self, plan: Plan, failed: int) -> None:
        self._plan = plan
        self._failed = failed
        self._began: dict[str, int] = {}
        self._spans: dict[str, Span] = {}

    @property
    def spans(self) -> tuple[Span, ...]:
        """The phases that have ended, in the order of the seven."""
        return tuple(self._spans[name] for name in PHASES if name in self._spans)

    @property
    def over(self) -> bool:
        return len(self._spans) == len(PHASES)

    def ready(self) -> list[str]:
        """The phases that may begin now: they can run side by side."""
        return [
            name
            for name in PHASES
            if name not in self._began
            and name not in self._spans
            and all(other in self._spans for other in AFTER[name])
        ]

    def running(self) -> list[str]:
        return [name for name in PHASES if name in self._began and name not in self._spans]

    def begin(self, name: str, now: int) -> int:
        """Begin a phase; the time by which it must have ended. Raises PhaseError."""
        if name not in self.ready():
            raise PhaseError(f"{name} cannot begin now")
        self._began[name] = now
        return self.limit(name)

    def limit(self, name: str) -> int:
        """By when a phase that has begun must end: its own budget, and for the first five the deadline."""
        own = self._began[name] + self._plan.budget(name)
        if name in (REMEDY, RESTORE):
            return own
        return max(self._began[name], min(own, self._failed + self._plan.deadline))

    def late(self, now: int) -> list[str]:
        """The phases whose time is over. Each is to be stopped and ended with LATE, and its fallback taken."""
        return [name for name in self.running() if now >= self.limit(name)]

    def end(self, name: str, now: int, outcome: str = DONE, note: str = "", *, fallback: bool = True) -> Span:
        """End a phase; what did not do what it should is noted with its fallback, where that was taken: what came
        late may still have been of use. Raises PhaseError."""
        if name not in self._began or name in self._spans or outcome not in (DONE, LATE, FAILED):
            raise PhaseError(f"{name} cannot end as {outcome}")
        return self._close(name, self._began[name], now, outcome, note, fallback)

    def replan(self, plan: Plan) -> None:
        """Go on with other budgets: something has to be woken, or loaded, that was thought awake."""
        self._plan = plan

    @property
    def plan(self) -> Plan:
        return self._plan

    def skip(self, name: str, now: int, note: str = "") -> Span:
        """A phase that is not needed. Raises PhaseError."""
        if name not in self.ready():
            raise PhaseError(f"{name} cannot be skipped now")
        return self._close(name, now, now, SKIPPED, note)

    def left(self, now: int) -> int:
        """Microseconds that are left for knowing and deciding."""
        return max(0, self._failed + self._plan.deadline - now)

    def _close(self, name: str, began: int, now: int, outcome: str, note: str, fallback: bool = True) -> Span:
        if outcome in (LATE, FAILED) and fallback:
            note = f"{note}; {FALLBACK[name]}" if note else FALLBACK[name]
        span = Span(name, max(0, began - self._failed), max(0, now - began), outcome, note)
        self._spans[name] = span
        return span
