# SPDX-License-Identifier: Apache-2.0
"""The level of pressure. Read when somebody asks; while leases are held, the kernel tells of stalls, too.

It tells by a trigger of the whole machine; where it grants none (before Linux 6.4, without CAP_SYS_RESOURCE), by
that of our own group, which the service manager opens to us; and where there is neither, a slow timer looks.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, loop, pressure, psi
from syntrop.inferenced.level import Level, Shares, Thresholds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

    from syntrop.common.settings import Settings

FRESH: Final = 0.25
"""Seconds for which a reading is good."""
SLOW: Final = 10.0
"""Seconds between two looks where nobody tells: as long as the kernel's shortest average."""
_WINDOW_USEC: Final = 2_000_000  # without CAP_SYS_RESOURCE the kernel wants windows in multiples of 2 s


class Pressing:
    """Owns the trigger, or the timer. `stalled` is called after a look that nobody asked for."""

    def __init__(self, settings: Settings, stalled: Callable[[], object] = lambda: None) -> None:
        self._level = Level(thresholds(settings))
        self._stall = max(1, int(_WINDOW_USEC * min(settings.critical_memory, 100.0) / 100))
        self._read_at = 0.0
        self._stalled = stalled
        self._trigger: psi.Trigger | None = None
        self._timer: loop.Timer | None = None
        self._ways = [self._of_machine, self._of_group]
        """How stalls may be told to us, the best way first; what was refused is not tried again."""
        self.readings: Mapping[str, psi.Pressure] = {}

    def retune(self, settings: Settings) -> None:
        """Other thresholds, from now on."""
        self._level = Level(thresholds(settings), self._level.now)
        self._read_at = 0.0

    def level(self) -> str:
        """Normal, elevated or critical; unknown where the kernel does not tell."""
        now = monotonic()
        if now - self._read_at >= FRESH:
            self._read(now)
        if len(self.readings) < len(psi.RESOURCES):
            return pressure.UNKNOWN
        return self._level.now

    def watch(self) -> None:
        """Have the kernel tell of stalls that averages over ten seconds would show too late."""
        if self._trigger is not None or self._timer is not None:
            return
        while self._ways:
            try:
                self._trigger = self._ways[0]()
                return
            except (psi.TriggerUnavailable, OSError) as error:
                del self._ways[0]
                instead = "stalls of our own group are told" if self._ways else f"it is read every {SLOW:g} s"
                journal.notice(f"Pressure while leases are held: {instead}, since {error}")
        self._timer = loop.call_later(SLOW, self._due)

    def _of_machine(self) -> psi.Trigger:
        return psi.Trigger(
            "memory", self._critical, stall_usec=self._stall, window_usec=_WINDOW_USEC, lost=self.rest
        )

    def _of_group(self) -> psi.Trigger:
        return psi.GivenTrigger(self._look, lost=self.rest)

    def rest(self) -> None:
        """There is nothing to watch for."""
        if self._trigger is not None:
            self._trigger.close()
            self._trigger = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _critical(self) -> None:
        self._read(monotonic(), at_least_critical=True)
        self._stalled()

    def _look(self) -> None:
        self._read(monotonic())
        self._stalled()

    def _due(self) -> None:
        self._timer = loop.call_later(SLOW, self._due)
        self._look()

    def _read(self, now: float, *, at_least_critical: bool = False) -> None:
        self._read_at = now
        self.readings = pressure.read()
        if len(self.readings) < len(psi.RESOURCES):
            return
        memory = self.readings["memory"]
        shares = Shares(
            cpu_some=self.readings["cpu"].some.avg10,
            memory_some=100.0 if at_least_critical else memory.some.avg10,
            memory_full=memory.full.avg10 if memory.full is not None else 0.0,
            io_some=self.readings["io"].some.avg10,
        )
        self._level.sample(shares, now)


def thresholds(settings: Settings) -> Thresholds:
    """Those of the settings' section `tuning`."""
    usual = Thresholds()
    return Thresholds(
        elevated=Shares(
            cpu_some=settings.elevated_cpu,
            memory_some=settings.elevated_memory,
            memory_full=settings.critical_memory_full,
            io_some=settings.elevated_io,
        ),
        critical=Shares(
            cpu_some=usual.critical.cpu_some,
            memory_some=settings.critical_memory,
            memory_full=settings.critical_memory_full,
            io_some=settings.critical_io,
        ),
        hold=settings.level_hold_sec,
    )
