# SPDX-License-Identifier: Apache-2.0
"""The manager's end of sd_notify(3): one datagram socket for every service, senders told apart by the kernel."""

from __future__ import annotations

import array
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

UCRED = struct.Struct("3i")  # pid, uid, gid: unix(7)
LARGEST = 4096  # a message is a handful of lines; systemd's own cap is a page as well
MAX_FDS = 253  # SCM_MAX_FD


class NotifySocket:
    """`NOTIFY_SOCKET` for the children: `receive()` yields the sender's pid and its assignments."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        before = os.umask(0o111)  # services of other accounts write here too; the kernel tells who they are
        try:
            self.socket.bind(path)
        finally:
            os.umask(before)

    def fileno(self) -> int:
        return self.socket.fileno()

    def receive(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Every message that is queued now. Descriptors that come along are closed.

        Closing is the answer to `BARRIER=1`; a descriptor store is not offered (FileDescriptorStoreMax=).
        """
        room = socket.CMSG_SPACE(UCRED.size) + socket.CMSG_SPACE(MAX_FDS * 4)
        while True:
            try:
                data, control, flags, _ = self.socket.recvmsg(LARGEST, room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            pid = 0
            for level, kind, content in control:
                if level != socket.SOL_SOCKET:
                    continue
                if kind == socket.SCM_CREDENTIALS and len(content) >= UCRED.size:
                    pid = UCRED.unpack_from(content)[0]
                elif kind == socket.SCM_RIGHTS:
                    handles = array.array("i")
                    handles.frombytes(content[: len(content) - len(content) % 4])
                    for handle in handles:
                        os.close(handle)
            if pid and not flags & socket.MSG_TRUNC:
                yield pid, parse(data)

    def close(self) -> None:
        self.socket.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass


def parse(data: bytes) -> dict[str, str]:
    """Assignments of one message; lines without `=` are skipped, the last of a repeated name wins."""
    out = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        name, equals, value = line.partition("=")
        if equals and name:
            out[name] = value
    return out


def microseconds(text: str) -> float | None:
    """A `…_USEC` value in seconds; None when it is not a number that fits 64 bits."""
    return int(text) / 1e6 if text.isascii() and text.isdigit() and len(text) < 20 else None
