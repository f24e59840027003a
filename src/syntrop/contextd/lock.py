# SPDX-License-Identifier: Apache-2.0
"""One lock for the store's threads, and one against other processes.

Who wants the store urgently (a caller waits) is let in front of a scan in the background.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def claim(folder: str) -> int:
    """Take a store for this process alone; the descriptor that holds it, until it is closed or the process ends.

    Raises OSError, EBUSY where another process has it.
    """
    handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise OSError(errno.EBUSY, f"another contextd keeps {folder}") from None
        raise
    return handle


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
