# SPDX-License-Identifier: Apache-2.0
"""Failures that wait to be looked into: bounded in memory, ordered by importance, and none lost. Pure.

A unit waits at most once, with its latest failure and how often it failed meanwhile, so there are never more of
them than units. Of the first `details_max` in order the particulars are kept; of the others the name, the count
and the time, from which the rest can be asked of the manager when their turn comes.
"""

from __future__ import annotations

from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DETAILS_MAX = 64
LAST = -1  # the importance of what comes after all others


class Failure(Record):
    """A unit that failed: when first and last (monotonic seconds), how often, how important it is, and particulars
    (None where they were not kept)."""

    __slots__ = ("count", "details", "first", "importance", "last", "unit")

    def __init__(
        self, unit: str, *, first: float, last: float, count: int = 1, importance: int = 0, details: Any = None
    ) -> None:
        self.unit, self.first, self.last, self.count = unit, first, last, count
        self.importance, self.details = importance, details

    def rank(self) -> tuple[int, float, str]:
        """The more important first; of equals the one that has waited longest."""
        return (-self.importance, self.first, self.unit)


class Backlog:
    """The failures that wait."""

    __slots__ = ("_detailed", "_details_max", "_waiting")

    def __init__(self, details_max: int = DETAILS_MAX) -> None:
        self._details_max = details_max
        self._waiting: dict[str, Failure] = {}
        self._detailed: set[str] = set()  # those that have particulars

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, unit: object) -> bool:
        return unit in self._waiting

    def add(self, unit: str, now: float, *, importance: int = 0, details: Any = None) -> None:
        """A unit failed. One that waits already keeps its place in time, and gets the newer particulars."""
        earlier = self._waiting.get(unit)
        self._waiting[unit] = Failure(
            unit,
            first=now if earlier is None else earlier.first,
            last=now,
            count=1 if earlier is None else earlier.count + 1,
            importance=importance if earlier is None else max(importance, earlier.importance),
            details=details,
        )
        if details is None:
            self._detailed.discard(unit)
            return
        self._detailed.add(unit)
        if len(self._detailed) > self._details_max:
            last = max((self._waiting[one] for one in self._detailed), key=Failure.rank)
            last.details = None
            self._detailed.remove(last.unit)

    def weigh(self, unit: str, importance: int) -> None:
        """How important a unit is became known while it waits."""
        if unit in self._waiting:
            self._waiting[unit].importance = max(importance, self._waiting[unit].importance)

    def take(self) -> Failure | None:
        """The next one, which waits no longer; None when nothing waits."""
        first = self.first()
        return None if first is None else self.drop(first.unit)

    def first(self) -> Failure | None:
        """The next one, which goes on waiting."""
        return min(self._waiting.values(), key=Failure.rank, default=None)

    def drop(self, unit: str) -> Failure | None:
        """A unit that need not be looked into any more: it recovered, or it is a victim of another."""
        self._detailed.discard(unit)
        return self._waiting.pop(unit, None)

    def waiting(self) -> list[Failure]:
        """All that wait, in order."""
        return sorted(self._waiting.values(), key=Failure.rank)


def importance(*, dependants: int, socket: bool, wanted_by_boot: bool, accelerator: bool) -> int:
    """How important a unit is: who needs it counts most, then what has a socket, then what boot starts."""
    return min(dependants, 100) * 4 + 8 * socket + 2 * wanted_by_boot + 6 * accelerator
