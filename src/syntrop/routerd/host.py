# SPDX-License-Identifier: Apache-2.0
"""How hard pressed this machine is, for those who choose between it and others.

Where work can go elsewhere, the kernel tells when memory stalls pass the threshold; that it is over is seen when
the next request is routed. Nothing here has a timer.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, pressure, psi
from syntrop.routerd.scoring import Host
from syntrop.routerd.shedding import Shedding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FRESH = 0.25  # seconds for which a reading is good
_WINDOW_USEC = 2_000_000
_LOW = 0.6  # share of the threshold at which it is over


class Pressed:
    """Readings of pressure, and whether to shed. `threshold`: percent of memory stall."""

    def __init__(self, threshold: float, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._at: float | None = None
        self._host = Host()
        self._readings: dict[str, psi.Pressure] = {}
        self._trigger: psi.Trigger | None = None
        self._refused = False
        self.threshold = 0.0
        self.set_threshold(threshold)

    def set_threshold(self, threshold: float) -> None:
        if threshold != self.threshold:
            self.threshold = threshold
            self._shedding = Shedding(high=threshold, low=threshold * _LOW)
            self._at = None
            self.close()

    def watch(self) -> None:
        """Have the kernel tell: for a configuration in which work can go elsewhere."""
        if self._trigger is not None or self._refused:
            return
        stall = max(1, int(_WINDOW_USEC * min(self.threshold, 100.0) / 100))
        try:
            self._trigger = psi.Trigger(
                "memory", self._told, stall_usec=stall, window_usec=_WINDOW_USEC, lost=self.close
            )
        except (psi.TriggerUnavailable, OSError) as error:
            self._refused = True
            journal.info(f"Pressure is read with each request instead: {error}")

    def close(self) -> None:
        if self._trigger is not None:
            self._trigger.close()
            self._trigger = None
        self._refused = False

    @property
    def watched(self) -> bool:
        return self._trigger is not None

    def host(self) -> Host:
        """The state of the machine, at most `FRESH` seconds old."""
        now = self._clock()
        if self._at is None or now - self._at >= FRESH:
            self._read(now, 0.0)
        return self._host

    def readings(self) -> dict[str, psi.Pressure]:
        self.host()
        return self._readings

    def _told(self) -> None:
        # The kernel's window is shorter than its averages: what it tells of is not in them yet.
        self._read(self._clock(), self.threshold)

    def _read(self, now: float, least: float) -> None:
        self._at = now
        self._readings = pressure.read()
        memory = self._readings.get("memory")
        some = memory.some.avg10 if memory else 0.0
        was = self._shedding.active
        shedding = self._shedding.update(max(some, least), now)
        if shedding != was:
            journal.notice(
                f"Memory stalls {some:.1f} % of the time: new work goes elsewhere where it may"
                if shedding
                else f"Memory stalls {some:.1f} % of the time: new work stays here again"
            )
        self._host = Host(pressure.level(self._readings), some, shedding=shedding)
