# SPDX-License-Identifier: Apache-2.0
"""The governor of a plane's memory: two watermarks, so that it never flaps. No I/O, no clock of its own.

    used ≥ high (85 %)                  ask holders to spill, idle ones first and of those the largest, to `low`
    used ≤ calm (65 %) held for 5 s     holders may prefetch again
    between                             as it was; the time that calm was held starts anew

What was asked for and not given yet counts as given, so that one excess is not asked for twice.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of a plane's memory, 0 to 1, `calm` < `low` < `high`, and seconds."""

    high: float = 0.85
    low: float = 0.70
    calm: float = 0.65
    held: float = 5.0
    patience: float = 5.0
    """How long what was asked for may take before it is asked for again."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """Somebody who could spill."""

    id: str
    size: int
    idle: bool


@dataclass(frozen=True, slots=True)
class Spill:
    """Ask `id` to shrink to `size` bytes."""

    id: str
    size: int


class Governor:
    """Of one plane. `spilling` is true from the high watermark on until the low one is reached."""

    __slots__ = ("_asked", "_calm_since", "_marks", "_told", "spilling")

    def __init__(self, marks: Watermarks) -> None:
        self._marks = marks
        self._asked: dict[str, tuple[int, float]] = {}
        self._calm_since: float | None = None
        self._told = True
        self.spilling = False

    def sample(self, now: float, used: int, total: int, occupants: Iterable[Occupant]) -> tuple[list[Spill], bool]:
        """What to ask for, and whether to tell holders that they may prefetch. `now` in monotonic seconds."""
        marks = self._marks
        share = used / total if total > 0 else 0.0
        if share >= marks.high:
            self.spilling = True
        elif share <= marks.low:
            self.spilling = False
            self._asked.clear()
        if share > marks.calm:
            self._calm_since = None
            prefetch = False
        else:
            if self._calm_since is None:
                self._calm_since = now
            prefetch = not self._told and now - self._calm_since >= marks.held
            if prefetch:
                self._told = True
        if not self.spilling:
            return [], prefetch
        self._told = False
        return self._spill(now, used - int(marks.low * total), occupants), False

    def wait(self, now: float) -> float | None:
        """Seconds until the next sample could tell that calm was held; None when nothing is waited for."""
        if self._told or self._calm_since is None:
            return None
        return max(0.0, self._calm_since + self._marks.held - now)

    def _spill(self, now: float, excess: int, occupants: Iterable[Occupant]) -> list[Spill]:
        present = {one.id: one for one in occupants}
        for name, (target, since) in list(self._asked.items()):
            one = present.get(name)
            if one is None or one.size <= target or now - since >= self._marks.patience:
                del self._asked[name]
            else:
                excess -= one.size - target
        spills = []
        for one in sorted(present.values(), key=lambda one: (not one.idle, -one.size, one.id)):
            if excess <= 0:
                break
            if one.id in self._asked or one.size <= 0:
                continue
            target = max(0, one.size - excess)
            excess -= one.size - target
            self._asked[one.id] = (target, now)
            spills.append(Spill(one.id, target))
        return spills
