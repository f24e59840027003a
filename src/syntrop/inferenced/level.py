# SPDX-License-Identifier: Apache-2.0
"""The level of pressure on the machine, with hysteresis. No I/O.

A level is entered at its thresholds at once, and left only when every share has stayed below `ease` times the
thresholds for `hold` seconds: a load that swings about a threshold does not make the level swing.
"""

from __future__ import annotations

from dataclasses import dataclass

from syntrop.common import pressure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_LEVELS: Final = (pressure.NORMAL, pressure.ELEVATED, pressure.CRITICAL)
_NEVER: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Time stalled in the last ten seconds, in percent (avg10 of PSI)."""

    cpu_some: float = 0.0
    memory_some: float = 0.0
    memory_full: float = 0.0
    io_some: float = 0.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Percent at which a level begins."""

    elevated: Shares = Shares(
        cpu_some=pressure.ELEVATED_CPU,
        memory_some=pressure.ELEVATED_MEMORY,
        memory_full=pressure.CRITICAL_MEMORY_FULL,
        io_some=pressure.ELEVATED_IO,
    )
    critical: Shares = Shares(
        cpu_some=_NEVER,
        memory_some=pressure.CRITICAL_MEMORY,
        memory_full=pressure.CRITICAL_MEMORY_FULL,
        io_some=pressure.CRITICAL_IO,
    )
    """Waiting for a processor alone is never critical: memory cannot mend it."""
    ease: float = 0.8
    hold: float = 5.0
    """Seconds."""


class Level:
    """The present level; `sample()` moves it."""

    __slots__ = ("_below", "_thresholds", "now")

    def __init__(self, thresholds: Thresholds, now: str = pressure.NORMAL) -> None:
        self._thresholds = thresholds
        self._below: float | None = None
        self.now = now

    def sample(self, shares: Shares, now: float) -> str:
        """The level with these shares at `now` (monotonic seconds). It falls by as much as it may at once."""
        held = _LEVELS.index(self.now)
        reached = self._reached(shares, 1.0)
        if reached >= held:
            self._below = None
            self.now = _LEVELS[reached]
            return self.now
        eased = self._reached(shares, self._thresholds.ease)
        if eased >= held:
            self._below = None
        elif self._below is None:
            self._below = now
        elif now - self._below >= self._thresholds.hold:
            self._below = None
            self.now = _LEVELS[eased]
        return self.now

    def wait(self, now: float) -> float | None:
        """Seconds until a sample could lower the level; None at the lowest."""
        if self.now == pressure.NORMAL:
            return None
        return (
            self._thresholds.hold if self._below is None else max(0.0, self._below + self._thresholds.hold - now)
        )

    def _reached(self, shares: Shares, factor: float) -> int:
        for level, limits in ((2, self._thresholds.critical), (1, self._thresholds.elevated)):
            if (
                shares.cpu_some > factor * limits.cpu_some
                or shares.memory_some > factor * limits.memory_some
                or shares.memory_full > factor * limits.memory_full
                or shares.io_some > factor * limits.io_some
            ):
                return level
        return 0
