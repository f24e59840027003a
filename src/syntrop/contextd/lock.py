# SPDX-License-Identifier: Apache-2.0
"""One lock for the store. Who wants it urgently (a caller waits) is let in front of a scan in the background."""

from __future__ import annotations

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class Lock:
    """`with lock.urgent:` for a caller that waits, `with lock.patient:` for work in the background.

    Who waits for the lock holds the gate before it, so nobody overtakes a caller that is there already; and of the
    patient only one at a time comes to the gate, so a caller waits for one of them at most.
    """

    def __init__(self) -> None:
        self.held = _thread.allocate_lock()
        self.gate = _thread.allocate_lock()
        self.patience = _thread.allocate_lock()
        self.urgent = _Urgent(self)
        self.patient = _Patient(self)


class _Urgent:
    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        with self._lock.gate:
            self._lock.held.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.held.release()


class _Patient(_Urgent):
    def __enter__(self) -> None:
        self._lock.patience.acquire()
        super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._lock.patience.release()
