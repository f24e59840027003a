# SPDX-License-Identifier: Apache-2.0
"""Which processes have a device open: as the lookout tells, which sees them all, or as far as we see ourselves."""

from __future__ import annotations

import socket

from syntrop.common import journal, loop, paths
from syntrop.common.turn import Turn
from syntrop.inferenced import fdinfo, lookout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Final

ENDPOINT: Final = "lookout.sock"
ANSWER_SEC: Final = 5.0
ANSWER_MAX: Final = 16 << 20  # bytes


class Sight:
    """Connects to the lookout, which lives by that: for one look, or from `keep()` until `rest()`."""

    def __init__(self) -> None:
        self.kept = False
        """Whether it stays connected."""
        self._socket: socket.socket | None = None
        self._turn = Turn()
        self._noted = False

    async def look(self, pids: Collection[int] | None = None) -> fdinfo.Look:
        """Look at these processes, or at all."""
        if pids is not None and not pids:
            return fdinfo.Look()
        async with self._turn:
            try:
                with loop.deadline(ANSWER_SEC):
                    return await self._ask(pids)
            except (OSError, ValueError) as error:  # TimeoutError is an OSError
                self._close()
                if not self._noted:
                    journal.info(f"The lookout does not tell who has devices open: {error or 'no answer'}")
                self._noted = True
            except BaseException:
                self._close()  # the answer may still be on its way
                raise
            finally:
                if not self.kept:
                    self._close()
        return await loop.thread(fdinfo.look, pids)

    def keep(self) -> None:
        """There will be looks that must not wait for the lookout to start."""
        self.kept = True

    def rest(self) -> None:
        """There will be none for the time being."""
        self.kept = False
        if not self._turn.taken:
            self._close()

    async def _ask(self, pids: Collection[int] | None) -> fdinfo.Look:
        request = b" ".join(b"%d" % pid for pid in pids or ()) + b"\n"
        if len(request) > lookout.REQUEST_MAX:
            request = b"\n"  # all of them, then
        if self._socket is None:
            kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            self._socket = socket.socket(socket.AF_UNIX, kind)
            self._socket.connect(paths.endpoint(ENDPOINT))
        own = self._socket
        while request:
            try:
                request = request[own.send(request, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                await loop.writable(own.fileno())
        answer = bytearray()
        while not answer.endswith(b"\n"):
            try:
                piece = own.recv(1 << 18)
            except BlockingIOError:
                await loop.readable(own.fileno())
                continue
            if not piece or len(answer) > ANSWER_MAX:
                raise ConnectionResetError("it hung up")
            answer += piece
        self._noted = False
        return lookout.decode(bytes(answer))

    def _close(self) -> None:
        if self._socket is not None:
            loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
