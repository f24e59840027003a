# SPDX-License-Identifier: Apache-2.0
"""Takes host memory from what stands still: the kernel moves it to swap, or drops what is in files anyway.

Of a unit the manager lowers `MemoryHigh=`, and sets it back at once: what stands still takes nothing back. A unit
that runs under the low limit would crawl, so the old one is on record meanwhile. A group delegated to us has
`memory.reclaim`. How much was had, the kernel tells.
"""

from __future__ import annotations

from syntrop.common import cgroup, journal, loop
from syntrop.inferenced import targets
from syntrop.inferenced.arbiter import FreezeError
from syntrop.inferenced.freezer import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from syntrop.inferenced.freezer import Manager
    from syntrop.inferenced.records import Log

_UNLIMITED: Final = 2**64 - 1


class Squeezer:
    """`limits`: units whose limit is to be set back, with what it was (None: no limit)."""

    def __init__(self, log: Log, manager: Manager) -> None:
        self._log = log
        self._manager = manager
        self.limits: dict[str, int | None] = {}

    async def push_out(self, target: str, size: int, seconds: float) -> None:
        """Have about `size` bytes taken. That less, or nothing, could be had is no error."""
        try:
            if targets.is_group(target):
                await loop.thread(_reclaim, cgroup.Group(target), size)
                return
            group = cgroup.of_unit(target)
            # Caches go first, and were nobody's: all of them, and then as much as is wanted.
            before, goal = group.memory_high(), max(0, group.memory_in_use() - size)
            self._log.limit(target, before)
            self.limits[target] = before
            try:
                await limit(self._manager, target, goal, seconds)
            finally:
                loop.spawn(self._set_back(target), f"set the limit of {target} back")
        except OSError as error:
            journal.notice(f"No memory was taken from {target}: it cannot be put on record: {error.strerror}")
        except (cgroup.CgroupError, FreezeError) as error:
            journal.notice(f"No memory could be taken from {target}: {error}")

    def take_over(self, limits: dict[str, int | None]) -> None:
        """Set limits back that an earlier process left low."""
        self.limits.update(limits)
        for target in limits:
            loop.spawn(self._set_back(target), f"set the limit of {target} back")

    async def _set_back(self, target: str) -> None:
        pause = 0.1
        while target in self.limits:
            try:
                await limit(self._manager, target, self.limits[target], 10.0)
            except FreezeError as error:
                if not isinstance(error, Refused):
                    await loop.sleep(pause)
                    pause = min(2 * pause, 5.0)
                    continue
                journal.error(f"The memory limit of {target} could not be set back: {error.reason}")
            self.limits.pop(target, None)
            try:
                self._log.unlimit(target)
            except OSError:
                pass  # set once more after a restart, which does no harm


def _reclaim(group: cgroup.Group, size: int) -> None:
    """In a worker thread: it takes as long as the disk does."""
    group.reclaim(group.memory_current() - group.memory_in_use() + size)


async def limit(manager: Manager, unit: str, size: int | None, seconds: float) -> None:
    """Set a unit's `MemoryHigh=` until the next boot. Raises FreezeError."""
    values = [unit, True, [("MemoryHigh", ("t", _UNLIMITED if size is None else size))]]
    await manager.call("SetUnitProperties", "sba(sv)", values, seconds)
