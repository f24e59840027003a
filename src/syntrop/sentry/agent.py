# SPDX-License-Identifier: Apache-2.0
"""The loop for what signatures do not settle: plan → run a safe tool → read → reflect → decide. Pure.

The model never writes a command: it chooses from words that are put before it, and each tool's arguments are
fixed for the unit before it is asked. At most five tools are run within 30 s, none twice, and it always ends in
act, stage or report. What it may end in is bounded by `ceiling`, which the deterministic evidence gives (and
which rises when what was read supports it): a model that was talked into acting acts on nothing.

The driver asks `next()` what is wanted, does it, and answers with `chose()`, `ran()` or `silent()`.
"""

from __future__ import annotations

from syntrop.sentry.cleaning import shorten
from syntrop.sentry.record import Record
from syntrop.sentry.remedy import Step
from syntrop.sentry.verdict import ACT, REPORT, STAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ITERATIONS_MAX = 5
SECONDS_MAX = 30.0
OUTPUT_MAX = 2048  # characters of a tool's output that are kept

PLAN, REFLECT, DECIDE = "plan", "reflect", "decide"
GO_ON, ENOUGH = "look_further", "enough"
_ORDER = (REPORT, STAGE, ACT)


class Move(Record):
    """A safe tool with its arguments, under the name by which the model chooses it."""

    __slots__ = ("about", "name", "step")

    def __init__(self, name: str, about: str, step: Step) -> None:
        self.name, self.about, self.step = name, about, step


def moves(unit: str) -> tuple[Move, ...]:
    """The vocabulary for a unit. All of these only look."""
    return (
        Move("unit_status", "how the manager sees the unit", Step("unit_status", [], unit)),
        Move(
            "warnings", "the unit's newest warnings and errors", Step("journal_slice", ["40", "", "warning"], unit)
        ),
        Move("machine_errors", "the machine's newest errors", Step("journal_slice", ["40", "10min ago", "err"])),
        Move("unit_files", "mistakes in the unit's files", Step("unit_verify", [], unit)),
        Move("listeners", "who listens on which address", Step("net_listeners", ["tcp"])),
        Move("space", "how full the file systems are", Step("disk_usage")),
        Move("crashes", "the unit's crashes", Step("coredump_info", ["2"], unit)),
    )


class Ask(Record):
    """A choice for the model: PLAN, REFLECT or DECIDE, and the words that it may choose from."""

    __slots__ = ("kind", "options")

    def __init__(self, kind: str, options: Sequence[str]) -> None:
        self.kind, self.options = kind, tuple(options)


class Run(Record):
    """A tool to be run."""

    __slots__ = ("move",)

    def __init__(self, move: Move) -> None:
        self.move = move


class End(Record):
    """The end: act, stage or report, and why."""

    __slots__ = ("outcome", "reason")

    def __init__(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason


class Turn(Record):
    """What happened in the loop, for the audit: seconds from its start, what was done, and what came of it."""

    __slots__ = ("at", "text", "what")

    def __init__(self, at: float, what: str, text: str) -> None:
        self.at, self.what, self.text = at, what, text


class AgentError(Exception):
    """The driver answered what was not asked: a fault of ours."""


class Loop:
    """One run of the loop. Times are monotonic seconds; `ceiling` is what the evidence allows: act, stage,
    report.
    """

    __slots__ = ("_began", "_end", "_moves", "_used", "_want", "ceiling", "transcript")

    def __init__(self, vocabulary: Sequence[Move], now: float, *, ceiling: str) -> None:
        if len({move.name for move in vocabulary}) != len(vocabulary):
            raise ValueError("two moves have one name")
        self._moves = {move.name: move for move in vocabulary}
        self._began = now
        self._used: list[str] = []
        self._end: End | None = None
        self.ceiling = _known(ceiling)
        self.transcript: list[Turn] = []
        self._want: Ask | Run = self._plan()

    def next(self, now: float) -> Ask | Run | End:
        """What is wanted now. Once it is an End it stays that."""
        if self._end is None and now - self._began >= SECONDS_MAX:
            self._finish(self._sober(), "the time was over", now)
        return self._want if self._end is None else self._end

    def left(self, now: float) -> float:
        """Seconds that what is wanted may take."""
        return max(0.0, self._began + SECONDS_MAX - now)

    def chose(self, word: str, now: float) -> None:
        """The model's choice. A word that was not put before it is taken for none. Raises AgentError."""
        want = self.next(now)
        if isinstance(want, End):
            return
        if not isinstance(want, Ask):
            raise AgentError("a tool is to be run, nothing to be chosen")
        if word not in want.options:
            self._finish(self._sober(), f"the model chose {shorten(word, 64)!r}, which was not put before it", now)
            return
        self._turn(now, want.kind, word)
        if want.kind == PLAN:
            if word == ENOUGH:
                self._want = self._decide()
            else:
                self._used.append(word)
                self._want = Run(self._moves[word])
        elif want.kind == REFLECT:
            more = word == GO_ON and len(self._used) < ITERATIONS_MAX and len(self._used) < len(self._moves)
            self._want = self._plan() if more else self._decide()
        else:
            allowed = min(word, self.ceiling, key=_ORDER.index)
            reason = (
                "the model decided so" if allowed == word else f"the model wanted to {word}, the evidence does not"
            )
            self._finish(allowed, reason, now)

    def ran(self, output: str, now: float, *, failed: bool = False, ceiling: str | None = None) -> None:
        """What a tool gave, or why it failed; `ceiling` is what the evidence allows now. Raises AgentError."""
        want = self.next(now)
        if isinstance(want, End):
            return
        if not isinstance(want, Run):
            raise AgentError("no tool was to be run")
        if ceiling is not None:
            self.ceiling = _known(ceiling)
        self._turn(now, f"{want.move.name} {'failed' if failed else 'gave'}", shorten(output, OUTPUT_MAX))
        self._want = Ask(REFLECT, (GO_ON, ENOUGH))

    def silent(self, now: float, why: str) -> None:
        """The model is late, absent or unsure: the loop ends with what the evidence allows without it."""
        if not isinstance(self.next(now), End):
            self._finish(self._sober(), why, now)

    def note(self, text: str, now: float) -> None:
        """What the driver made of it, for the transcript."""
        self._turn(now, "note", shorten(text, OUTPUT_MAX))

    def dump(self) -> list[dict[str, Any]]:
        """The transcript for the audit."""
        return [{"at": round(turn.at, 3), "what": turn.what, "text": turn.text} for turn in self.transcript]

    def _plan(self) -> Ask:
        return Ask(PLAN, (*(name for name in self._moves if name not in self._used), ENOUGH))

    def _decide(self) -> Ask:
        return Ask(DECIDE, _ORDER[: _ORDER.index(self.ceiling) + 1])

    def _sober(self) -> str:
        """Without a model's word nothing is done that was not settled before: at most it waits for a person."""
        return min(STAGE, self.ceiling, key=_ORDER.index)

    def _finish(self, outcome: str, reason: str, now: float) -> None:
        self._turn(now, "end", f"{outcome}: {reason}")
        self._end = End(outcome, reason)

    def _turn(self, now: float, what: str, text: str) -> None:
        self.transcript.append(Turn(max(0.0, now - self._began), what, text))


def _known(ceiling: str) -> str:
    if ceiling not in _ORDER:
        raise ValueError(f"{ceiling!r} is none of {', '.join(_ORDER)}")
    return ceiling
