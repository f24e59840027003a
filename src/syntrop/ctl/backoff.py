# SPDX-License-Identifier: Apache-2.0
"""How long a failing service is left alone.

1. The first failure costs `RestartSec=`, each further one in a row twice the one before, up to the cap
   (`RestartMaxDelaySec=` if the unit has one).
2. A start that ended well, or lived long enough (`STEADY`), wipes the slate.
3. Starts beyond the socket's trigger limit wait until the window has room again: that is how a service that
   exits without taking its connection is kept from being spun.
"""

from __future__ import annotations

from collections import deque

CAP = 30.0
STEADY = 30.0
SMALLEST = 0.1  # a unit with RestartSec=0 is not spun either


class Backoff:
    """Failures in a row, and starts in the trigger window, of one service. Times on the monotonic clock."""

    __slots__ = ("burst", "cap", "delay", "failures", "interval", "starts")

    def __init__(self, delay: float, cap: float = CAP, interval: float = 2.0, burst: int = 20) -> None:
        self.delay = max(delay, SMALLEST)
        self.cap = max(min(cap, CAP), self.delay)
        self.interval, self.burst = interval, burst
        self.failures = 0
        self.starts: deque[float] = deque()

    def started(self, now: float) -> None:
        self.starts.append(now)

    def ended_well(self) -> None:
        self.failures = 0

    def failed(self, lived: float) -> float:
        """Count one failure of a start that lived so long; seconds to wait before the next."""
        self.failures = 1 if lived >= STEADY else self.failures + 1
        return self.next_delay()

    def next_delay(self) -> float:
        """Seconds that the failures so far cost; 0 without any."""
        if not self.failures:
            return 0.0
        return float(min(self.delay * 2 ** min(self.failures - 1, 32), self.cap))

    def hold(self, now: float) -> float:
        """Seconds until the trigger limit allows another start; 0 when it does now."""
        if self.interval <= 0 or self.burst <= 0:
            return 0.0  # systemd: either of them 0 switches the limit off
        while self.starts and now - self.starts[0] >= self.interval:
            self.starts.popleft()
        if len(self.starts) < self.burst:
            return 0.0
        return self.interval - (now - self.starts[0])
