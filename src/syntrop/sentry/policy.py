# SPDX-License-Identifier: Apache-2.0
"""What is an incident at all, and which units may be acted on. Pure: the hour is an argument.

Not incidents: what somebody wanted (a stop by hand, a job that is planned, the machine going down). Observed
only: units that are protected, and all in a maintenance window. What toold's own policy forbids it forbids
anyway; here it is known before anything is prepared.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from syntrop.common.protected import UNITS_NEVER
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TREAT, OBSERVE, IGNORE = "treat", "observe", "ignore"

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MINUTES = 24 * 60


class Window(Record):
    """A maintenance window: days of the week (0 is Monday), begin and end as minutes of the day, and units by
    glob.

    One that ends before it begins goes on past midnight, and belongs to the day on which it began.
    """

    __slots__ = ("begin", "days", "end", "units")

    def __init__(self, days: frozenset[int], begin: int, end: int, units: tuple[str, ...] = ("*",)) -> None:
        self.days, self.begin, self.end, self.units = days, begin, end, units

    def holds(self, unit: str, weekday: int, minute: int) -> bool:
        if not any(fnmatchcase(unit, pattern) for pattern in self.units):
            return False
        if self.begin <= self.end:
            return weekday in self.days and self.begin <= minute < self.end
        return (weekday in self.days and minute >= self.begin) or (
            (weekday - 1) % 7 in self.days and minute < self.end
        )


def window(text: str) -> Window:
    """A window from `[DAYS] HH:MM-HH:MM [UNIT…]`, such as `sat,sun 22:00-02:30 web*`. Raises ValueError."""
    words = text.split()
    days = frozenset(range(7))
    if words and not words[0][0].isdigit():
        try:
            days = frozenset(day for part in words.pop(0).lower().split(",") for day in _days(part))
        except ValueError:
            raise ValueError(f"no days of the week in {text!r}") from None
    if not words or "-" not in words[0]:
        raise ValueError(f"no begin and end in {text!r}")
    begin, _, end = words[0].partition("-")
    first, last = _minute(begin, text), _minute(end, text) % _MINUTES or _MINUTES
    if first == last:
        raise ValueError(f"it ends when it begins in {text!r}")  # no minute of the day, or all of them?
    return Window(days, first, last, tuple(words[1:]) or ("*",))


def _days(part: str) -> range | tuple[int, ...]:
    first, dash, last = part.partition("-")
    begin, end = _DAYS.index(first), _DAYS.index(last or first)
    if not dash or begin <= end:
        return range(begin, end + 1)
    return (*range(begin, 7), *range(end + 1))


def _minute(word: str, text: str) -> int:
    hour, _, minute = word.partition(":")
    if not (hour.isascii() and hour.isdigit() and minute.isascii() and minute.isdigit() and len(minute) == 2):
        raise ValueError(f"no time of day in {text!r}")
    value = int(hour) * 60 + int(minute)
    if int(minute) > 59 or value > _MINUTES:
        raise ValueError(f"no time of day in {text!r}")
    return value


class Occasion(Record):
    """What is going on around a failure, as the manager tells.

    `job` is the type of the unit's job that is waiting or running (start, stop, restart …), or empty; `stopped` is
    whether the last job that ended was a stop; `leaving` whether the machine goes down.
    """

    __slots__ = ("job", "leaving", "stopped")

    def __init__(self, *, job: str = "", stopped: bool = False, leaving: bool = False) -> None:
        self.job, self.stopped, self.leaving = job, stopped, leaving


class Ruling(Record):
    """What is to be done with a failure, and why."""

    __slots__ = ("kind", "reason")

    def __init__(self, kind: str, reason: str = "") -> None:
        self.kind, self.reason = kind, reason


class Policy:
    """The settings over what is never allowed."""

    __slots__ = ("_allow", "_deny", "_windows")

    def __init__(
        self, *, allow: Sequence[str] = ("*",), deny: Sequence[str] = (), windows: Sequence[Window] = ()
    ) -> None:
        self._allow, self._deny, self._windows = tuple(allow), tuple(deny), tuple(windows)

    def protected(self, unit: str) -> str:
        """Why actions on a unit are forbidden; empty where they are not. For every name of a unit."""
        for pattern in UNITS_NEVER:
            if fnmatchcase(unit, pattern):
                return f"{unit} is never acted on ({pattern})"
        if any(fnmatchcase(unit, pattern) for pattern in self._deny):
            return f"{unit} is denied by the settings"
        if not any(fnmatchcase(unit, pattern) for pattern in self._allow):
            return f"{unit} is not allowed by the settings"
        return ""

    def rule(
        self, names: Sequence[str], occasion: Occasion, *, planned: str = "", weekday: int, minute: int
    ) -> Ruling:
        """What a failure of a unit with these names (its own first, then aliases) is. `planned` tells of work on
        it that was announced (planned.py)."""
        unit = names[0]
        if occasion.leaving:
            return Ruling(IGNORE, "the machine goes down")
        if occasion.stopped or occasion.job in ("stop", "restart", "try-restart"):
            return Ruling(IGNORE, f"{unit} was asked to {occasion.job or 'stop'}")
        if planned:
            return Ruling(IGNORE, planned)
        for name in names:
            reason = self.protected(name)
            if reason:
                return Ruling(OBSERVE, reason)
        if any(one.holds(name, weekday, minute) for one in self._windows for name in names):
            return Ruling(OBSERVE, f"{unit} is in a maintenance window")
        if occasion.job:
            return Ruling(OBSERVE, f"a job of {unit} is under way ({occasion.job})")
        return Ruling(TREAT)
