# SPDX-License-Identifier: Apache-2.0
"""How often something may be done: sliding windows on the monotonic clock. Pure: the caller brings the time."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

KEYS_MAX = 4096


class Rate:
    """At most `limit` events of each key in any `window` seconds. A limit of 0 allows none."""

    __slots__ = ("_seen", "limit", "window")

    def __init__(self, limit: int, window: float = 60.0) -> None:
        self.limit = limit
        self.window = window
        self._seen: dict[Hashable, deque[float]] = {}

    def wait(self, key: Hashable, now: float) -> float:
        """Seconds until one more is allowed; 0 for at once."""
        seen = self._recent(key, now)
        if len(seen) < self.limit:
            return 0.0
        return seen[-self.limit] + self.window - now if self.limit else self.window

    def count(self, key: Hashable, now: float) -> None:
        """Count one, allowed or not."""
        if key not in self._seen and len(self._seen) >= KEYS_MAX:
            for other in [one for one in self._seen if not self._recent(one, now)]:
                del self._seen[other]
            if len(self._seen) >= KEYS_MAX:  # a crowd: the oldest key is forgotten
                del self._seen[next(iter(self._seen))]
        seen = self._seen.setdefault(key, deque(maxlen=max(self.limit, 1)))
        seen.append(now)

    def _recent(self, key: Hashable, now: float) -> deque[float]:
        seen = self._seen.get(key)
        if seen is None:
            return deque()
        while seen and seen[0] <= now - self.window:
            seen.popleft()
        return seen
