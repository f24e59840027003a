# SPDX-License-Identifier: Apache-2.0
"""Whether a provider is well, told by how its requests end. Pure: times are monotonic seconds.

Failures in a row open its breaker. One that asks to be left alone (`retry-after`) is, without being thought ill.
The local engine is always let through: to ask it costs nothing, and where it cannot answer it says so at once.
"""

from __future__ import annotations

from syntrop.common.http import chat
from syntrop.routerd.breaker import CLOSED, Breaker

LONGEST_PAUSE = 300.0  # seconds that a provider may ask for


class Health:
    """Of one provider. Whoever was let in by `enter` tells the outcome by one of the three that follow it."""

    __slots__ = ("_resting", "breaker", "errors", "guarded", "latency", "requests")

    def __init__(self, *, guarded: bool = True, breaker: Breaker | None = None) -> None:
        self.breaker = breaker or Breaker()
        self.guarded = guarded
        self.requests = 0
        self.errors = 0
        self.latency = 0.0  # seconds to the first event of the last answer
        self._resting = 0.0  # until when it asked to be left alone

    def healthy(self, now: float) -> bool:
        return self.breaker.state(now) == CLOSED

    def open_for(self, now: float) -> float:
        """Seconds for which nothing is let through."""
        rest = max(0.0, self._resting - now)
        return max(rest, self.breaker.remaining(now)) if self.guarded else rest

    def enter(self, now: float) -> bool:
        """Let a request through, or not."""
        if now < self._resting or (not self.breaker.enter(now) and self.guarded):
            return False
        self.requests += 1
        return True

    def success(self, latency: float) -> None:
        self.latency = latency
        self.breaker.success()

    def failure(self, error: chat.EngineError, now: float) -> None:
        self.errors += 1
        if error.retry_after is not None:
            self._resting = max(self._resting, now + min(error.retry_after, LONGEST_PAUSE))
        # Who is busy, or lacks a model's memory, is not broken.
        if isinstance(error, chat.Overloaded | chat.Unfit):
            self.breaker.abandoned()
        else:
            self.breaker.failure(now)

    def abandoned(self) -> None:
        self.breaker.abandoned()

    def probed(self, alive: bool, now: float) -> None:
        """The outcome of a sign of life that was asked for after `breaker.enter`; it counts as no request."""
        if alive:
            self.breaker.recovered()
        else:
            self.breaker.failure(now)
