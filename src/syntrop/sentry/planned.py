# SPDX-License-Identifier: Apache-2.0
"""Work that somebody announced: a deployment, a migration. Whatever happens to its units until then is wanted.

Pure. Times are monotonic seconds. What is over is forgotten by itself; there is a bound to what is remembered.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

PATTERNS_MAX = 256  # globs that are announced at a time, by all
SECONDS_MAX = 86_400  # nobody works on it longer than a day without saying so again
REASON_MAX = 256  # characters


class Work(Record):
    """What is announced of one glob of units: until when, why, and the user who said so."""

    __slots__ = ("reason", "uid", "until")

    def __init__(self, until: float, reason: str, uid: int) -> None:
        self.until, self.reason, self.uid = until, reason, uid


class Full(Exception):
    """Too much is announced: `wait` is the number of seconds until the first of it ends."""

    def __init__(self, wait: float) -> None:
        super().__init__("too much work is announced")
        self.wait = wait


class Planned:
    """All that is announced, by glob."""

    __slots__ = ("_works",)

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}

    def announce(self, patterns: Iterable[str], work: Work, now: float) -> None:
        """From now on; in place of what was announced of the same globs before. What ends at once takes that back.
        Raises Full, with nothing announced."""
        wanted = set(patterns)
        standing = self.standing(now)
        if work.until > now and len(wanted | standing.keys()) > PATTERNS_MAX:
            raise Full(min(one.until for one in standing.values()) - now if standing else 0.0)
        for pattern in wanted:
            standing.pop(pattern, None)
            if work.until > now:
                standing[pattern] = work
        self._works = standing

    def standing(self, now: float) -> dict[str, Work]:
        """What has not ended yet."""
        return {pattern: work for pattern, work in self._works.items() if work.until > now}

    def reason(self, names: Sequence[str], now: float) -> str:
        """Why nothing is to be done about a unit with these names; empty where no work on it is announced."""
        for pattern, work in self._works.items():
            if work.until > now and any(fnmatchcase(name, pattern) for name in names):
                why = f": {work.reason}" if work.reason else ""
                return f"user {work.uid} announced work on {pattern}{why}"
        return ""

    def wire(self, now: float, wall_us: int) -> list[dict[str, Any]]:
        """As `PlannedWork` of io.syntrop.Sentry1, what ends first first."""
        standing = sorted(self.standing(now).items(), key=lambda one: (one[1].until, one[0]))
        return [
            {
                "unit": pattern,
                "until_us": wall_us + int((work.until - now) * 1e6),
                "reason": work.reason,
                "uid": work.uid,
            }
            for pattern, work in standing
        ]

    def dump(self, now: float) -> list[dict[str, Any]]:
        """As JSON: seconds that are left, since the monotonic clock begins anew with each boot."""
        return [
            {"unit": pattern, "left": work.until - now, "reason": work.reason, "uid": work.uid}
            for pattern, work in self.standing(now).items()
        ]

    def load(self, kept: Iterable[dict[str, Any]], then: float) -> None:
        """What `dump` gave at that time. Raises KeyError, TypeError, ValueError where it is no such thing."""
        self._works.update(
            (
                str(one["unit"]),
                Work(
                    then + min(float(one["left"]), SECONDS_MAX), str(one["reason"])[:REASON_MAX], int(one["uid"])
                ),
            )
            for one in list(kept)[:PATTERNS_MAX]
        )
