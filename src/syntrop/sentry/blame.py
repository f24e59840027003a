# SPDX-License-Identifier: Apache-2.0
"""Which change of a file is to blame for a failure, and how much that says. Pure.

What contextd lists is near in time; here it is asked what it has to do with the fault: the very setting that the
words are about, the very file that they name, or no more than that it is the unit's own.
"""

from __future__ import annotations

import os
import re

from syntrop.common.patterns import late
from syntrop.sentry import signatures as s
from syntrop.sentry.unitfiles import SETTINGS, TOLD_BY, drop_in, harmless, is_unit_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.evidence import Change, Evidence

# How a reason of contextd's begins where a file is the unit's own.
OWN_ROLES = ("drop-in", "unit file", "environment file", "configuration", "program")
_AGED = 0.3  # what an old change's support is worth
_HARMLESS = 0.3  # of a change of comments, or of settings that nothing fails of
_FIRST = 0.3  # of the unit file's own coming to be, where the processor ended the program
_LIVED, _UNKNOWN = 0.5, 0.5  # the same of one that it ran well with, and of one whose before nobody knows
_ATTRIBUTES = late(r"^(?:mode [0-7]{4} became [0-7]{4}|owner \d+:\d+ became \d+:\d+)", re.MULTILINE)


class Blame:
    """The changes of one failure. `own` are those of the unit's own files, as contextd ranks them."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.own = [change for change in evidence.changes if self._is_own(change)]

    def explaining(self, fault_class: str, subject: str) -> tuple[Change | None, float]:
        """The change that explains a class, and how much it says: of the very setting or file, most."""
        change, support = self._nearest(fault_class, subject)
        if change is not None and self._evidence.aged(change):
            support *= _AGED
        return change, support

    def _nearest(self, fault_class: str, subject: str) -> tuple[Change | None, float]:
        for change in self._evidence.changes:
            if not self._evidence.before_failure(change.time_us):
                continue
            if self.is_unit_file(change.path):
                # What a program says of a unit file it says to have it changed: no program reads one.
                if self._touches(change, fault_class, subject):
                    return change, 0.85
                continue
            attributes = fault_class == s.PERMISSION and _ATTRIBUTES.search(change.diff)
            if (
                subject.startswith("/")
                and change.path == subject
                and (attributes or fault_class == s.CONFIGURATION)
            ):
                return change, 0.85
            if attributes and subject and subject.startswith(change.path.rstrip("/") + "/"):
                return change, 0.8
            if fault_class == s.MISSING_FILE and change.path == subject:
                return change, 0.8
        if fault_class == s.MISSING_FILE:
            for change in self.own:
                if " was removed" in change.summary and self._evidence.before_failure(change.time_us):
                    return change, 0.75
        if fault_class == s.CONFIGURATION:
            for change in self.own:
                if not self.is_unit_file(change.path) and self._evidence.before_failure(change.time_us):
                    named = os.path.basename(change.path) == os.path.basename(subject or "?")
                    if named or not subject:
                        return change, (0.8 if named else 0.7) * (_UNKNOWN if change.unknown else 1.0)
        return None, 0.0

    def _touches(self, change: Change, fault_class: str, subject: str) -> bool:
        settings = SETTINGS.get(fault_class, ())
        for line in change.added():
            name, is_setting, value = line.strip().partition("=")
            if is_setting and name.strip() in settings:
                if (
                    fault_class in (s.MISSING_PROGRAM, s.MISSING_FILE)
                    and subject.startswith("/")
                    and value.strip()
                ):
                    if subject in value:
                        return True
                    continue
                return True
        return False

    def _is_own(self, change: Change) -> bool:
        """Whether contextd thinks that a file is the unit's own: what is near by name only is not.

        The drop-in by which failures are told to us (units/optional/service.d) is everybody's, and harms nobody.
        """
        if os.path.basename(change.path) == TOLD_BY:
            return False
        return bool(drop_in(self._evidence.unit, change.path)) or change.reason.startswith(
            tuple(f"{role} of {self._evidence.unit}," for role in OWN_ROLES)
        )

    def is_unit_file(self, path: str) -> bool:
        return is_unit_file(self._evidence.unit, path)

    def weight(self, change: Change) -> float:
        """How much of its weight a change keeps that no text points to."""
        weight = _AGED if self._evidence.aged(change) else 1.0
        weight *= _LIVED if self._evidence.lived_with(change) else 1.0
        weight *= _UNKNOWN if change.unknown else 1.0
        lines = [*change.added(), *change.removed()]
        if change.same or harmless(lines, unit_file=self.is_unit_file(change.path)):
            return weight * _HARMLESS
        return weight * (_FIRST if self._first(change) else 1.0)

    def _first(self, change: Change) -> bool:
        """Whether a program that the processor ended has never run otherwise: its unit file was not there before,
        so nothing that it ran with has changed. An exit status is another matter: it may not like its options."""
        leaving = self._evidence.exit
        whole = self.is_unit_file(change.path) and not drop_in(self._evidence.unit, change.path)
        return whole and leaving is not None and leaving.trapped and change.created
