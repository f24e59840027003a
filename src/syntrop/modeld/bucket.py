# SPDX-License-Identifier: Apache-2.0
"""A limit of bytes a second, shared by all that go through it. Pure: time comes in on the monotonic clock."""

from __future__ import annotations


class Bucket:
    """`rate` in bytes a second (0 for no limit); what was not used for a while is saved up to `burst` bytes."""

    __slots__ = ("_level", "_when", "burst", "rate")

    def __init__(self, rate: int, burst: int | None = None) -> None:
        self.rate = rate
        self.burst = max(rate // 4, 65536) if burst is None else burst
        self._level = float(self.burst)
        self._when: float | None = None

    def take(self, amount: int, now: float) -> float:
        """Take bytes that have gone through, and tell how many seconds to wait before the next ones."""
        if not self.rate:
            return 0.0
        if self._when is not None and now > self._when:
            self._level = min(float(self.burst), self._level + (now - self._when) * self.rate)
        self._when = now if self._when is None else max(now, self._when)
        self._level -= amount
        return max(0.0, -self._level / self.rate)
