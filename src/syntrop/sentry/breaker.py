# SPDX-License-Identifier: Apache-2.0
"""When a unit is left alone because it fails again and again. Pure: times are monotonic seconds.

Three failures within a minute open the breaker: no action until the cooldown is over, which is 30 s at first and
twice as long each time, up to 1800 s. Then one action is let through (half open): success closes the breaker,
failure opens it again. The third opening within 900 s locks it until an operator resets it.

Only failures of the unit count. That a model or a daemon of ours failed says nothing of the unit.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLOSED, OPEN, HALF_OPEN, LOCKED = "closed", "open", "half_open", "locked"
FAILURES, WINDOW = 3, 60.0
COOLDOWN, COOLDOWN_MAX = 30.0, 1800.0
TRIPS, TRIPS_WINDOW = 3, 900.0


class Breaker:
    """The breaker of one unit."""

    __slots__ = ("_failures", "_locked", "_opened", "_trial", "_trips", "level")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """An operator's word: as new."""
        self._failures: list[float] = []  # within WINDOW, oldest first
        self._trips: list[float] = []  # within TRIPS_WINDOW
        self._opened: float | None = None
        self._trial = False  # an action was let through while half open
        self._locked = False
        self.level = 0  # how often it opened since it was last closed by a success

    def state(self, now: float) -> str:
        if self._locked:
            return LOCKED
        if self._opened is None:
            return CLOSED
        return OPEN if now < self._opened + self.cooldown() else HALF_OPEN

    def cooldown(self) -> float:
        """Seconds that it stays open, or stayed last."""
        return min(COOLDOWN_MAX, COOLDOWN * 2.0 ** max(0, min(self.level, 16) - 1))

    def remaining(self, now: float) -> float | None:
        """Seconds until an action may pass; 0 when one may now; None when only a reset helps."""
        if self._locked:
            return None
        return 0.0 if self._opened is None else max(0.0, self._opened + self.cooldown() - now)

    def admits(self, now: float) -> bool:
        """Whether `enter` would let an action through."""
        state = self.state(now)
        return state == CLOSED or (state == HALF_OPEN and not self._trial)

    def enter(self, now: float) -> bool:
        """Let an action through, or not. While half open it is one; how it went is told by `failure`, `success`
        or `abandoned`."""
        if not self.admits(now):
            return False
        if self.state(now) == HALF_OPEN:
            self._trial = True
        return True

    def failure(self, now: float) -> None:
        """The unit failed, whether or not an action preceded it."""
        self._failures = [*self._within(self._failures, now, WINDOW), now][-FAILURES:]
        if self._locked or self.state(now) == OPEN:
            return  # known
        if self.state(now) == HALF_OPEN or len(self._failures) >= FAILURES:
            self._trip(now)

    def success(self, now: float) -> None:
        """The unit was healthy for its probation. That closes a breaker that was half open; while it is closed,
        failures still count for their minute: a unit that fails again and again does not become sound by running
        in between. A lock is for an operator to take away."""
        if self.state(now) == HALF_OPEN:
            self._opened, self._trial, self.level = None, False, 0
            self._failures.clear()

    def lock(self) -> None:
        """Nothing that could be done helps: it is an operator's."""
        self._locked = True

    def abandoned(self) -> None:
        """The action that was let through did not take place."""
        self._trial = False

    def recent(self, now: float) -> int:
        """Failures within the window."""
        return len(self._within(self._failures, now, WINDOW))

    def idle(self, now: float) -> bool:
        """Whether nothing is remembered that could still matter: it need not be kept."""
        return (
            self.state(now) == CLOSED and not self.recent(now) and not self._within(self._trips, now, TRIPS_WINDOW)
        )

    def _trip(self, now: float) -> None:
        self._trips = [*self._within(self._trips, now, TRIPS_WINDOW), now][-TRIPS:]
        self._opened, self._trial = now, False
        self.level += 1
        self._failures.clear()
        self._locked = len(self._trips) >= TRIPS

    @staticmethod
    def _within(times: list[float], now: float, window: float) -> list[float]:
        return [time for time in times if now - time < window]

    def dump(self, now: float) -> dict[str, Any]:
        """As JSON: times become ages, since the monotonic clock begins anew with each boot."""
        return {
            "failures": [now - time for time in self._failures],
            "trips": [now - time for time in self._trips],
            "opened": None if self._opened is None else now - self._opened,
            "locked": self._locked,
            "level": self.level,
        }

    @classmethod
    def load(cls, kept: dict[str, Any], now: float) -> Breaker:
        """What `dump` gave. An action that was let through before is not waited for. Raises KeyError, TypeError,
        ValueError where it is no such thing."""
        breaker = cls()
        breaker._failures = sorted(now - max(0.0, float(age)) for age in kept["failures"])[-FAILURES:]
        breaker._trips = sorted(now - max(0.0, float(age)) for age in kept["trips"])[-TRIPS:]
        breaker._opened = None if kept["opened"] is None else now - max(0.0, float(kept["opened"]))
        breaker._locked = bool(kept["locked"])
        breaker.level = max(0, int(kept["level"]))
        return breaker
