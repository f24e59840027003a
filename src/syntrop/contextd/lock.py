# SPDX-License-Identifier: Apache-2.0
"""One lock for the store. Who wants it urgently (a caller waits) is let in front of a scan in the background."""

from __future__ import annotations

import _thread
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class Lock:
    """`with lock.urgent:` for a caller that waits, `with lock.patient:` for work in the background."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._waiting = 0
        self.urgent = _Urgent(self)
        self.patient = _Patient(self)


class _Urgent:
    def __init__(self, lock: Lock) -> None:
        self._owner = lock

    def __enter__(self) -> None:
        self._owner._waiting += 1
        self._owner._lock.acquire()
        self._owner._waiting -= 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner._lock.release()


class _Patient(_Urgent):
    def __enter__(self) -> None:
        while self._owner._waiting:
            time.sleep(0.001)
        self._owner._lock.acquire()
