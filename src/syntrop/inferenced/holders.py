# SPDX-License-Identifier: Apache-2.0
"""Who holds leases, and the moment in which they are gone.

A process is held by a descriptor of it (pidfd), which becomes readable when it ends; a unit by `cgroup.events` of
its group, which tells when its last process is gone. Nothing is polled.
"""

from __future__ import annotations

import errno
import os

from syntrop.common import cgroup, loop, peer
from syntrop.inferenced import targets
from syntrop.inferenced.lease import Holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

    from syntrop.inferenced.lease import Key


_SETTLED: Final = 0.05  # seconds
_NO_PROCESS: Final = (errno.ESRCH, errno.ENOENT, errno.EINVAL)
"""The last two, by the kernel's version, of a thread: it is in /proc, too, and is no process."""


class Gone(Exception):
    """There is no such process or unit (any more)."""


def of_process(uid: int, pid: int, start: int | None = None, delegated: Sequence[str] = ()) -> Holder:
    """A process as holder; `start` where it is known already. Raises Gone."""
    found = peer.start_time(pid) if start is None else start
    if found is None:
        raise Gone(f"there is no process {pid}")
    try:
        target = targets.of_group(cgroup.of_pid(pid).path, delegated)
    except cgroup.CgroupError:
        target = ""
    return Holder(uid, pid, found, None, target)


def open_process(pid: int, start: int) -> int:
    """A descriptor of that very process, the caller's. Raises Gone, OSError (no descriptors left)."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            raise Gone(f"there is no process {pid}") from None
        raise
    # The number may have passed on to another before the descriptor was opened.
    if peer.start_time(pid) != start or peer.exited(fd):
        os.close(fd)
        raise Gone(f"process {pid} has ended")
    return fd


def of_unit(uid: int, unit: str) -> Holder:
    """A unit as holder. Raises Gone where it has no processes."""
    try:
        if not cgroup.of_unit(unit).is_populated():
            raise Gone(f"unit {unit} has no processes")
    except cgroup.CgroupError as error:
        raise Gone(str(error)) from None
    return Holder(uid, None, None, unit, unit)


def pids(holder: Holder) -> list[int]:
    """The processes of a holder; empty when they are gone."""
    if holder.unit is not None:
        try:
            return _tree(cgroup.of_unit(holder.unit))
        except cgroup.CgroupError:
            return []
    return [holder.pid] if holder.pid is not None else []


def _tree(group: cgroup.Group) -> list[int]:
    found = group.pids()
    for folder, names, _ in os.walk(group.folder):
        for name in names:
            inner = cgroup.Group(
                os.path.join(group.path, os.path.relpath(os.path.join(folder, name), group.folder))
            )
            try:
                found += inner.pids()
            except cgroup.CgroupError:
                continue
    return found


class Watcher:
    """Calls `ended(key)` in the loop once a holder is gone. Owns one descriptor for each, of many leases, too."""

    def __init__(self, ended: Callable[[Key], None]) -> None:
        self._ended = ended
        self._descriptors: dict[Key, int] = {}
        self._count: dict[Key, int] = {}

    def add(self, holder: Holder) -> None:
        """One lease more of a holder. Raises Gone, OSError (no descriptors left)."""
        what = holder.key
        if what is None:
            return
        if what not in self._descriptors:
            self._descriptors[what] = self._unit(what) if isinstance(what, str) else self._process(what)
        self._count[what] = self._count.get(what, 0) + 1

    def __contains__(self, holder: Holder) -> bool:
        """Whether it is watched, so that its end will be told."""
        return holder.key is None or holder.key in self._descriptors

    def remove(self, holder: Holder) -> None:
        """One lease less."""
        what = holder.key
        if what is None or what not in self._count:
            return
        self._count[what] -= 1
        if not self._count[what]:
            self._drop(what)

    def close(self) -> None:
        for what in list(self._descriptors):
            self._drop(what)

    def _process(self, what: tuple[int, int]) -> int:
        fd = open_process(*what)
        loop.readable(fd).when_done(lambda _: self._gone(what, fd))
        return fd

    def _unit(self, unit: str) -> int:
        try:
            folder = cgroup.of_unit(unit).folder
            fd = os.open(os.path.join(folder, "cgroup.events"), os.O_RDONLY | os.O_CLOEXEC)
        except cgroup.CgroupError as error:
            raise Gone(str(error)) from None
        except FileNotFoundError:
            raise Gone(f"unit {unit} has no processes") from None
        loop.watch(fd, lambda _events: self._look(unit, fd))
        if self._is_empty(fd):
            loop.forget(fd)
            os.close(fd)
            raise Gone(f"unit {unit} has no processes")
        return fd

    def _look(self, unit: str, fd: int, again: bool = True) -> None:
        if self._descriptors.get(unit) != fd:
            return
        if self._is_empty(fd):
            self._gone(unit, fd)
        elif again:
            # The kernel keeps a second event back for 10 ms, and forgets it when the group is removed meanwhile.
            loop.call_later(_SETTLED, self._look, unit, fd, False)

    @staticmethod
    def _is_empty(fd: int) -> bool:
        # Reading also ends the kernel's signal, which would be given again and again.
        try:
            return b"populated 0" in os.pread(fd, 4096, 0)
        except OSError:
            return True  # ENODEV: the group was removed

    def _gone(self, what: Key, fd: int) -> None:
        if self._descriptors.get(what) == fd:
            self._drop(what)
            self._ended(what)

    def _drop(self, what: Key) -> None:
        fd = self._descriptors.pop(what)
        self._count.pop(what, None)
        loop.forget(fd)
        os.close(fd)
