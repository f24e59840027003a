# SPDX-License-Identifier: Apache-2.0
"""When a provider is left alone after failures, and how it is let back. Pure: times are monotonic seconds."""

from __future__ import annotations

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class Breaker:
    """Closed until `threshold` failures in a row; then open for `cooldown` seconds; then half-open: one request at
    a time is let through; its outcome closes the breaker, or opens it again for twice as long, up to `longest`.

    A sign of life closes it on trial: one failure then opens it again, for twice as long.
    """

    __slots__ = ("_cooldown", "_longest", "_opened", "_pause", "_probing", "_threshold", "_trial", "failures")

    def __init__(self, *, threshold: int = 3, cooldown: float = 5.0, longest: float = 300.0) -> None:
        self._threshold = threshold
        self._cooldown = cooldown
        self._longest = longest
        self._pause = cooldown
        self._opened: float | None = None
        self._probing = False
        self._trial = False
        self.failures = 0  # in a row

    def state(self, now: float) -> str:
        if self._opened is None:
            return CLOSED
        return OPEN if now < self._opened + self._pause else HALF_OPEN

    def admits(self, now: float) -> bool:
        """Whether `enter` would let a request through."""
        state = self.state(now)
        return state == CLOSED or (state == HALF_OPEN and not self._probing)

    def remaining(self, now: float) -> float:
        """Seconds until a request may be let through again; 0 when that is now."""
        return 0.0 if self._opened is None else max(0.0, self._opened + self._pause - now)

    def enter(self, now: float) -> bool:
        """Let a request through, or not. Who is let through tells the outcome by one of the next three."""
        if not self.admits(now):
            return False
        self._probing = self._opened is not None
        return True

    def success(self) -> None:
        self.failures = 0
        self._opened = None
        self._probing = False
        self._trial = False
        self._pause = self._cooldown

    def recovered(self) -> None:
        """A sign of life, which is less than an answer."""
        self.failures = 0
        self._opened = None
        self._probing = False
        self._trial = True

    def failure(self, now: float) -> None:
        self.failures += 1
        if self._opened is not None:
            # A request that was under way when the breaker opened says nothing new; the probe does.
            if self._probing:
                self._probing = False
                self._pause = min(self._pause * 2, self._longest)
                self._opened = now
        elif self._trial or self.failures >= self._threshold:
            if self._trial:
                self._trial = False
                self._pause = min(self._pause * 2, self._longest)
            self._opened = now

    def abandoned(self) -> None:
        """The outcome is not known: the client left first, or the request itself was at fault."""
        self._probing = False
