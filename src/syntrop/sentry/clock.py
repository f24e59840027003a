# SPDX-License-Identifier: Apache-2.0
"""The clocks of a course. Tests have their own."""

from __future__ import annotations

import time


class Clock:
    """Monotonic for deadlines, UTC for records, local time for maintenance windows."""

    __slots__ = ()

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def seconds(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def local(self) -> tuple[int, int]:
        """Day of the week (0 is Monday) and minute of the day."""
        now = time.localtime()
        return now.tm_wday, now.tm_hour * 60 + now.tm_min
