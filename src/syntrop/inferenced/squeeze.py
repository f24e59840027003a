# SPDX-License-Identifier: Apache-2.0
"""Takes host memory from what stands still: the kernel moves it to swap, and drops what is in files anyway.

Of a unit the manager lowers `MemoryHigh=`. Newer systemd (257) leaves the group of a frozen unit alone, so there
it runs for a moment, under the low limit; and only once it runs again can the old limit come back, which is on
record until it has. A group delegated to us has `memory.reclaim`. How much was had, the kernel tells.
"""

from __future__ import annotations

from syntrop.common import cgroup, journal, loop
from syntrop.inferenced import targets
from syntrop.inferenced.freezer import Refused
from syntrop.inferenced.standstill import FreezeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from syntrop.inferenced.freezer import Manager
    from syntrop.inferenced.records import Log

_UNLIMITED: Final = 2**64 - 1
_MARGIN: Final = 16 << 20
"""Bytes that are taken beyond, with an eighth: what runs for a moment takes some back."""


class Squeezer:
    """`limits`: units whose limit is to be set back, with what it was (None: no limit)."""

    def __init__(self, log: Log, manager: Manager) -> None:
        self._log = log
        self._manager = manager
        self.limits: dict[str, int | None] = {}

    async def push_out(self, target: str, size: int, seconds: float) -> None:
        """Have about `size` bytes taken of what stands still. That less, or nothing, could be had is no error.

        Raises FreezeError if it runs now, and could not be stopped again.
        """
        try:
            if targets.is_group(target):
                await loop.thread(_reclaim, cgroup.Group(target), size)
                return
            group = cgroup.of_unit(target)
            # Caches go first, and were nobody's: all of them, and then as much as is wanted.
            before, goal = group.memory_high(), max(0, group.memory_in_use() - size - size // 8 - _MARGIN)
            if target not in self.limits:
                self._log.limit(target, before)
                self.limits[target] = before
            await limit(self._manager, target, goal, seconds)
            if group.memory_high() != before:
                return
        except OSError as error:
            journal.notice(f"No memory was taken from {target}: it cannot be put on record: {error.strerror}")
            return
        except (cgroup.CgroupError, FreezeError) as error:
            journal.notice(f"No memory could be taken from {target}: {error}")
            return
        try:
            await self._manager.call("ThawUnit", "s", [target], seconds)
            await limit(self._manager, target, goal, seconds)
        except FreezeError as error:
            journal.notice(f"No memory could be taken from {target}: {error}")
        finally:
            await self._stop_again(target, group, seconds)

    def thawed(self, target: str) -> None:
        """It runs: it gets its limit back."""
        if target in self.limits:
            loop.spawn(self._set_back(target), f"set the limit of {target} back")

    def take_over(self, limits: dict[str, int | None]) -> None:
        """Set limits back that an earlier process left low."""
        self.limits.update(limits)
        for target in limits:
            self.thawed(target)

    async def _stop_again(self, target: str, group: cgroup.Group, seconds: float) -> None:
        try:
            await self._manager.call("FreezeUnit", "s", [target], seconds)
            await group.wait_frozen(seconds)
        except cgroup.NoSuchGroup:
            pass  # it has ended meanwhile
        except cgroup.CgroupError as error:
            raise FreezeError(str(error), target) from None

    async def _set_back(self, target: str) -> None:
        pause = 0.1
        while target in self.limits:
            try:
                size = self.limits[target]
                await limit(self._manager, target, size, 10.0)
                group = cgroup.of_unit(target)
                if group.memory_high() != size and group.is_frozen():
                    return  # it stands still again; when it is thawed we are called again
            except cgroup.CgroupError:
                pass  # it is gone
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
