# SPDX-License-Identifier: Apache-2.0
"""How many actions there may be on the whole machine: so many within any minute and any hour. Pure.

Times are monotonic seconds. A supervisor that is wrong about everything is then wrong slowly.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LIMITS = ((10, 60.0), (60, 3600.0))  # actions, seconds


class Budget:
    """Sliding windows over the times of the actions."""

    __slots__ = ("_limits", "_times")

    def __init__(self, limits: Sequence[tuple[int, float]] = LIMITS) -> None:
        self._times: deque[float] = deque()
        self.retune(limits)

    def retune(self, limits: Sequence[tuple[int, float]]) -> None:
        """Other limits, for what was spent already as well. Raises ValueError."""
        if not limits or any(count < 1 or window <= 0 for count, window in limits):
            raise ValueError("a budget allows at least one action in some time")
        self._limits = tuple(limits)
        self._times = deque(self._times, maxlen=max(count for count, _ in limits))

    def wait(self, now: float) -> float:
        """Seconds until an action is allowed; 0 when it is now."""
        waits = [0.0]
        for count, window in self._limits:
            if len(self._times) >= count:
                waits.append(self._times[-count] + window - now)
        return max(waits)

    def take(self, now: float) -> bool:
        """Spend one action, or not."""
        if self.wait(now) > 0.0:
            return False
        self._times.append(now)
        return True

    def give_back(self) -> None:
        """The action that was spent last did not take place."""
        if self._times:
            self._times.pop()

    def dump(self, now: float) -> list[float]:
        """Ages of the actions, for the disk: the monotonic clock begins anew with each boot."""
        return [now - time for time in self._times]

    def restore(self, ages: Sequence[float], now: float) -> None:
        """What `dump` gave. Raises TypeError and ValueError where it is no such thing."""
        self._times.extend(sorted(now - max(0.0, float(age)) for age in ages))

    def left(self, now: float) -> int:
        """Actions that could be taken at once."""
        return min(
            count - sum(now - time < window for time in list(self._times)[-count:])
            for count, window in self._limits
        )
