# SPDX-License-Identifier: Apache-2.0
"""What can be done about a cause: a closed set of actions, each as calls of toold's tools, and how each is
undone.

Nothing is written to that is not the unit's own, no file is reverted that did not change, and nothing is done
where doing it again is all there is and it has been tried. Pure.
"""

from __future__ import annotations

from syntrop.sentry import signatures as s
from syntrop.sentry import verdict as v
from syntrop.sentry.record import Record
from syntrop.sentry.unitfiles import cut, drop_in, is_unit_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.sentry.causes import Cause
    from syntrop.sentry.evidence import Change, Evidence
    from syntrop.sentry.verdict import Verdict

RESTART, REVERT_DROP_IN, RESTORE_FILE = "restart", "revert_drop_in", "restore_file"
SET_PROPERTY, CLEAR_CACHE, WAIT_FOR_ROOT, NONE = "set_property", "clear_cache", "wait_for_root", "none"
ACTIONS = (RESTART, REVERT_DROP_IN, RESTORE_FILE, SET_PROPERTY, CLEAR_CACHE, WAIT_FOR_ROOT, NONE)

_NOTHING = "nothing to undo"
_UNDONE = {
    RESTART: "nothing to undo: what a process had not stored is lost with it",
    REVERT_DROP_IN: "the drop-in is put back as it was, and the manager reads its units again",
    RESTORE_FILE: "the file is put back as it was",
    SET_PROPERTY: "what was set is taken away, and the manager reads its units again",
    CLEAR_CACHE: "every file of the cache is put back",
    WAIT_FOR_ROOT: _NOTHING,
    NONE: _NOTHING,
}
# Maintenance changes files beyond a unit's own: however sure, a person is asked first.
_MAINTENANCE = frozenset((RESTORE_FILE, CLEAR_CACHE))
# Tools whose work is right only as long as the file that the evidence names is what it was.
WRITING = frozenset(("revert_dropin", "restore_file", "set_unit_property"))
# Where the cause is a setting, the drop-in that brought it is what is reverted.
_BY_DROP_IN = frozenset(
    (s.MEMORY_LIMIT, s.DESCRIPTOR_LIMIT, s.MISSING_PROGRAM, s.MISSING_FILE, s.EXECUTION_CONTEXT, s.UNIT_SYNTAX,
     s.PERMISSION, s.READ_ONLY, s.SYSTEM_CALL, s.TIMEOUT, s.WATCHDOG, s.PROTOCOL, s.CONFIGURATION)
)  # fmt: skip
_BY_RESTART = frozenset((s.CRASH, s.WATCHDOG, s.MEMORY_LIMIT, s.TIMEOUT, s.JOB_FAILED))
_BY_COPY = frozenset((s.CONFIGURATION, s.MISSING_FILE, s.PERMISSION))


class Step(Record):
    """One call of a tool: its name, its arguments in order, and the unit it works on."""

    __slots__ = ("args", "tool", "unit")

    def __init__(self, tool: str, args: Sequence[str] = (), unit: str = "") -> None:
        self.tool, self.args, self.unit = tool, tuple(args), unit


class Action(Record):
    """What is to be done: its steps in order, why, and how it is undone. NONE has no steps."""

    __slots__ = ("name", "reason", "steps")

    def __init__(self, name: str, steps: Sequence[Step], reason: str) -> None:
        self.name, self.steps, self.reason = name, tuple(steps), reason

    @property
    def undone(self) -> str:
        return _UNDONE[self.name]

    @property
    def maintenance(self) -> bool:
        return self.name in _MAINTENANCE

    @property
    def writes(self) -> bool:
        """Whether files are changed, so that there is a rollback record to take it back by."""
        return self.name in (REVERT_DROP_IN, RESTORE_FILE, SET_PROPERTY, CLEAR_CACHE)


def choose(cause: Cause, evidence: Evidence) -> Action:
    """The action for a cause."""
    unit = evidence.unit
    if evidence.facts.gone:
        return Action(NONE, [], f"{unit} is gone: nothing is there that could be started again")
    change: Change | None = evidence.get(cause.change) if cause.change else None
    if change is not None and is_unit_file(unit, change.path):
        # Nothing of the file has to go for it, and nobody has to read all units again.
        name, before, after = cut(cause.fault_class, change.path, change.added(), change.removed())
        if name:
            steps = [Step("set_unit_property", [name, before], unit), *_start(evidence)]
            return Action(
                SET_PROPERTY,
                steps,
                f"{change.path} has {name}={after} in place of {before}, which holds again until the next boot;"
                " the file itself is left to a person",
            )
    if change is not None and cause.fault_class in _BY_DROP_IN:
        name = drop_in(unit, change.path)
        if name and not _gone(change):
            steps = [Step("revert_dropin", [name, change.path], unit), *_start(evidence)]
            return Action(REVERT_DROP_IN, steps, f"{change.path} brought it about")
    if change is not None and cause.fault_class in _BY_COPY:
        copy = evidence.copies.get(change.path, "")
        if copy and not change.path.startswith(("/etc/systemd/", "/run/systemd/")):
            steps = [Step("restore_file", [change.path, copy]), *_start(evidence)]
            return Action(RESTORE_FILE, steps, f"{change.path} changed, and {copy} is as it was before")
    if cause.fault_class == s.DEPENDENCY:
        return Action(WAIT_FOR_ROOT, [], f"{cause.subject or 'what it needs'} is to be treated, not {unit}")
    if cause.fault_class == s.DISK_FULL and evidence.facts.cache:
        return Action(
            CLEAR_CACHE, [Step("clear_cache", [], unit), *_start(evidence)], "its cache can be made again"
        )
    if cause.fault_class in _BY_RESTART and change is None:
        return Action(RESTART, _start(evidence), "nothing of its own changed: it is started again")
    return Action(NONE, [], _WHY_NOTHING.get(cause.fault_class, "there is no remedy that could be undone"))


def about(action: Action, cause: Cause, evidence: Evidence) -> list[str]:
    """The files that an action works on: what they are when it is chosen is what it was chosen for."""
    change: Change | None = evidence.get(cause.change) if cause.change else None
    if change is None or action.name not in (REVERT_DROP_IN, RESTORE_FILE, SET_PROPERTY):
        return []
    copies = [f"{change.path.rpartition('/')[0]}/{action.steps[0].args[1]}"] if action.name == RESTORE_FILE else []
    return [change.path, *copies]


def disposition(verdict: Verdict, action: Action, evidence: Evidence) -> str:
    """What is done with an action: what the confidence allows, and no more than the action bears."""
    if action.name in (NONE, WAIT_FOR_ROOT):
        return v.REPORT
    if not verdict.cause.evidence or any(id not in evidence for id in verdict.cause.evidence):
        return v.REPORT
    allowed = verdict.disposition
    change: Change | None = evidence.get(verdict.cause.change) if verdict.cause.change else None
    asked = action.maintenance
    if action.name == REVERT_DROP_IN and change is not None:
        # Other settings would go with the drop-in, other instances live with it, or it has been lived with: not
        # without a person.
        shared = not change.path.rpartition("/")[0].endswith(f"/{evidence.unit}.d")
        asked = change.held_settings or shared or evidence.aged(change)
    if action.name == SET_PROPERTY and change is not None:
        asked = evidence.aged(change)  # no other instance has it, and nothing else goes with it
    return v.STAGE if allowed == v.ACT and asked else allowed


def _start(evidence: Evidence) -> list[Step]:
    """Start it again; where it was started too often, the manager has to forget that first."""
    limited = evidence.exit is not None and evidence.exit.result == "start-limit-hit"
    limited = limited or evidence.facts.restarts > 0
    forget = [Step("unit_reset_failed", [], evidence.unit)] if limited else []
    return [*forget, Step("unit_restart", [], evidence.unit)]


def _gone(change: Change) -> bool:
    return " was removed" in change.summary


_WHY_NOTHING = {
    s.FLAPPING: "it fails each time that it is started: another start is no remedy",
    s.PACKAGE_UPGRADE: "packages are not changed back by a supervisor",
    s.PORT_TAKEN: "who holds the address has it by right, as far as can be told",
    s.STOPPED_BY_HAND: "who stopped it wanted that",
    s.RECOVERED: "it runs",
    s.NO_FAILURE: "it has not failed",
    s.DISK_FULL: "what may be deleted is not for a supervisor to say",
    s.CLOCK: "the clock is not its to set",
    s.MEMORY_EXHAUSTED: "the machine lacks memory, and a start would take more of it",
}
