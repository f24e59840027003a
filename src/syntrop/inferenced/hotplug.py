# SPDX-License-Identifier: Apache-2.0
"""Devices that come and go, as the kernel announces them.

pyudev is imported when a monitor is made, which is when somebody holds a lease or watches: nobody else has to
know, and it costs 20 ms of processor time and 4 MiB (measured). The kernel's own announcements are taken, not
udevd's: the topology is read from sysfs, and a container has no udevd. They are small and not kept for us: when
the socket's buffer runs over some are lost, and then it counts as a change.
"""

from __future__ import annotations

import os

from syntrop.common import journal, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    class Source(Protocol):
        """What pyudev's Monitor is to us."""

        def fileno(self) -> int: ...

        def poll(self, timeout: float) -> Announcement | None: ...

    class Announcement(Protocol):
        action: str
        sys_name: str


SUBSYSTEMS = ("drm", "accel")
_ACTIONS = ("add", "remove", "bind", "unbind")
_MOST = 256
"""Announcements taken at a time: a storm of them must not keep the loop."""


class Monitor:
    """Calls `changed()` in the loop when a render node or an accelerator came or went. `close()` it.

    One call stands for all that was announced at once; it says no more than to read the topology again.
    """

    def __init__(self, changed: Callable[[], object], source: Source | None = None) -> None:
        """`source` stands in for the kernel's announcements. Raises OSError where there are none to be had."""
        self._changed = changed
        self._source: Source | None = listen() if source is None else source
        self._task = loop.spawn(self._run(self._source), name="hotplug")

    def close(self) -> None:
        """No call comes after this. pyudev closes the socket with its last reference, so none is kept."""
        if self._source is not None:
            loop.forget(self._source.fileno())
            self._source = None
            self._task.cancel()

    async def _run(self, source: Source) -> None:
        while self._source is not None:
            await loop.readable(source.fileno())
            # Closed meanwhile: the cancellation comes with the next wait, and there must be none on a closed file.
            if self._source is not None and _taken(source):
                try:
                    self._changed()
                except Exception as error:  # the next device must be seen all the same
                    journal.log(journal.ERR, f"after a change of devices: {type(error).__name__}: {error}")


def _taken(source: Source) -> bool:
    """Take what was announced; whether any of it concerns us."""
    concerns = False
    for _ in range(_MOST):
        try:
            one = source.poll(timeout=0)
        except OSError as error:
            journal.log(journal.INFO, f"announcements of devices were lost: {os.strerror(error.errno or 0)}")
            return True
        if one is None:
            break
        concerns |= relevant(one.action, one.sys_name)
    return concerns


def relevant(action: str | None, name: str | None) -> bool:
    """Whether an announcement is about a plane's coming or going: connectors and primary nodes are not."""
    return action in _ACTIONS and name is not None and name.startswith(("renderD", "accel"))


def listen(subsystems: Iterable[str] = SUBSYSTEMS) -> Source:
    """The kernel's announcements for these subsystems. Raises OSError."""
    import pyudev

    try:
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
    except ImportError as error:  # pyudev looks for libudev only now
        raise OSError(str(error)) from None
    return monitor  # type: ignore[no-any-return]
