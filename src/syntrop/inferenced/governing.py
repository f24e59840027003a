# SPDX-License-Identifier: Apache-2.0
"""The governors of all planes at work: holders are asked to spill, and told when they may prefetch.

Planes are looked at when requests come and when the kernel tells of stalls, so that a quiet machine is not woken;
only while an excess is being spilled, or a calm is awaited, a timer looks again.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import cgroup, loop, paths
from syntrop.inferenced.governor import Governor, Occupant, Watermarks
from syntrop.inferenced.lease import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

    from syntrop.common.settings import Settings
    from syntrop.inferenced.gauges import Fill
    from syntrop.inferenced.lease import Key, Lease
    from syntrop.inferenced.table import Table
    from syntrop.inferenced.watch import Watchers

AGAIN: Final = 1.0
"""Seconds after which an excess is looked at again."""


class Governing:
    """`look` samples the planes anew, which calls `observe()`."""

    def __init__(self, table: Table, watchers: Watchers, marks: Watermarks, look: Callable[[], None]) -> None:
        self._table = table
        self._watchers = watchers
        self._look = look
        self._governors: dict[str, Governor] = {}
        self._worked: dict[Key, int] = {}
        self._timer: loop.Timer | None = None
        self.marks = marks

    def retune(self, marks: Watermarks) -> None:
        """Other watermarks, from now on."""
        self.marks = marks
        self._governors.clear()

    def observe(self, fills: Mapping[str, Fill]) -> None:
        """What each plane's use means for its leases."""
        now = monotonic()
        next_look: float | None = None
        for plane, fill in fills.items():
            if fill.used is None or not fill.total or not self._table.lent(plane):
                continue
            governor = self._governors.setdefault(plane, Governor(self.marks))
            high = fill.used >= self.marks.high * fill.total or governor.spilling
            occupants = self._occupants(plane) if high else []
            spills, prefetch = governor.sample(now, fill.used, fill.total, occupants)
            share = f"{100 * fill.used / fill.total:.0f} % of {plane} is in use"
            for spill in spills:
                lease = self._table.leases.get(spill.id)
                if lease is not None:
                    self._watchers.ask(lease, spill.size, None, share)
            if prefetch:
                for lease in self._on(plane):
                    self._watchers.tell("prefetch_allowed", lease, share)
            wait = AGAIN if governor.spilling else governor.wait(now)
            if wait is not None and (next_look is None or wait < next_look):
                next_look = wait
        self._plan(next_look)

    def rest(self) -> None:
        """No leases are left."""
        self._governors.clear()
        self._worked.clear()
        self._plan(None)

    def _plan(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = loop.call_later(max(0.05, seconds), self._due)

    def _due(self) -> None:
        self._timer = None
        self._look()

    def _on(self, plane: str) -> list[Lease]:
        return [one for one in self._table if any(part.memory == plane for part in one.slices)]

    def _occupants(self, plane: str) -> list[Occupant]:
        """Leases that could give some memory: gangs only as a whole, so not at all."""
        there = [one for one in self._on(plane) if one.state is State.ACTIVE and len(one.slices) == 1]
        idle = {key: self._is_idle(key) for key in {one.holder.key for one in there}}
        return [Occupant(one.id, one.size, idle[one.holder.key]) for one in there]

    def _is_idle(self, key: Key | None) -> bool:
        """Whether a holder has used no processor since it was last looked at."""
        if key is None:
            return False
        worked = _processor_time(key)
        before = self._worked.get(key)
        self._worked[key] = worked
        return before == worked


def _processor_time(key: Key) -> int:
    """Time on processors of a process (ticks) or a unit (microseconds) so far; 0 when it is gone."""
    try:
        if isinstance(key, str):
            return cgroup.of_unit(key).cpu_stat().get("usage_usec", 0)
        with open(paths.proc(str(key[0]), "stat"), "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, cgroup.CgroupError, ValueError, IndexError):
        return 0


def watermarks(settings: Settings) -> Watermarks:
    """Those of the settings. Raises ValueError unless calm < low < high."""
    marks = Watermarks(settings.high_watermark, settings.low_watermark, settings.calm_watermark, settings.calm_sec)
    if not marks.calm < marks.low < marks.high:
        raise ValueError("calm_watermark, low_watermark and high_watermark must rise in this order")
    return marks
