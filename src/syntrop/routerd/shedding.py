# SPDX-License-Identifier: Apache-2.0
"""Whether new work should leave this machine while its memory is short. Pure: times are monotonic seconds."""

from __future__ import annotations


class Shedding:
    """On from `high` percent of memory stall; off once it has been at `low` or below for `settle` seconds. Between
    the two nothing changes, so that a load which comes and goes with the work itself does not flap."""

    __slots__ = ("_calm", "_high", "_low", "_settle", "active")

    def __init__(self, *, high: float = 25.0, low: float = 15.0, settle: float = 5.0) -> None:
        self._high = high
        self._low = low
        self._settle = settle
        self._calm: float | None = None  # since when
        self.active = False

    def update(self, some: float, now: float) -> bool:
        """Take a reading of memory pressure (`some`, percent) and tell whether to shed."""
        if some >= self._high:
            self.active = True
        if not self.active or some > self._low:
            self._calm = None
        elif self._calm is None:
            self._calm = now
        if self._calm is not None and now - self._calm >= self._settle:
            self.active = False
            self._calm = None
        return self.active
