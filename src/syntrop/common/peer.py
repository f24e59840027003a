# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket, as the kernel knows it.

All of it is what held when the peer connected (or made the socket pair): a peer that has changed its user
since, or passed the socket on, is still judged by what it was then.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from syntrop.common import paths

# asm-generic/socket.h; Python 3.11 knows neither.
SO_PEERGROUPS = 59
SO_PEERPIDFD = 77  # Linux 6.5

UNKNOWN = -1  # uid and gid of a peer that the kernel says nothing about, such as one on TCP

_CREDENTIALS = struct.Struct("iII")
_NOBODY = 0xFFFFFFFF
# socket.getsockopt() refuses larger buffers; NGROUPS_MAX is 65536 groups of four bytes.
_PYTHON_MAX, _GROUPS_MAX = 1024, 65536 * 4


class Peer:
    """A peer's credentials. `groups` and `pidfd` are fetched at first use, so while the socket is open."""

    __slots__ = ("_groups", "_identity", "_pidfd", "_socket", "gid", "pid", "uid")

    def __init__(self, sock: socket.socket | None, uid: int, gid: int, pid: int) -> None:
        self.uid = uid
        self.gid = gid
        self.pid = pid
        self._socket = sock
        self._groups: frozenset[int] | None = None
        self._pidfd: int | None = None
        self._identity: tuple[int, int, str] | None = None

    @property
    def known(self) -> bool:
        """Whether the kernel vouches for the peer at all."""
        return self.uid != UNKNOWN

    @property
    def groups(self) -> frozenset[int]:
        """All groups of the peer, the primary one included. Just the primary if the kernel tells no more."""
        if self._groups is None:
            found = _groups(self._socket) if self._socket is not None else ()
            self._groups = frozenset((self.gid, *found)) if self.known else frozenset()
        return self._groups

    @property
    def pidfd(self) -> int | None:
        """A descriptor of the peer's process, owned by this object; None when the process is gone.

        Before Linux 6.5 it is opened by number, which a process that died since may have left to another:
        compare `uid` before trusting it with more than the peer's own.
        """
        if self._pidfd is None and self.pid > 0 and self._socket is not None:
            self._pidfd = _pidfd(self._socket, self.pid)
        return self._pidfd

    def identity(self) -> tuple[int, int, str] | None:
        """Process number, start time in clock ticks since boot and boot id: what no other process ever has.

        None when the process is gone.
        """
        if self.pid <= 0:
            return None
        pidfd = self.pidfd
        if self._identity is None or pidfd is None:  # a process that is held keeps what tells it from others
            started = start_time(self.pid)
            self._identity = None if started is None else (self.pid, started, boot_id())
        if pidfd is not None and exited(pidfd):
            # The number may already have been another's when the rest was read.
            return None
        return self._identity

    def close(self) -> None:
        """Give the process descriptor back. The socket is its owner's to close."""
        pidfd, self._pidfd, self._socket = self._pidfd, None, None
        if pidfd is not None:
            os.close(pidfd)

    def __repr__(self) -> str:
        return f"Peer(uid={self.uid}, gid={self.gid}, pid={self.pid})"


def of(sock: socket.socket) -> Peer:
    """The peer of a connected socket. One that is not a Unix socket has a peer with nothing known."""
    if sock.family != socket.AF_UNIX:
        return Peer(None, UNKNOWN, UNKNOWN, 0)
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    if uid == _NOBODY:
        return Peer(None, UNKNOWN, UNKNOWN, 0)
    return Peer(sock, uid, gid, pid)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process."""
    try:
        with open(paths.proc(str(pid), "stat"), "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is a name in parentheses that may hold anything, parentheses and blanks included.
    return int(line[line.rindex(b")") + 2 :].split()[19])


def boot_id() -> str:
    """Identifier of this boot of the kernel."""
    with open(paths.proc("sys", "kernel", "random", "boot_id"), encoding="ascii") as file:
        return file.read().strip()


def exited(pidfd: int) -> bool:
    """Whether the process of a descriptor is gone."""
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _pidfd(sock: socket.socket, pid: int) -> int | None:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        # The peer's process was reaped: ESRCH, or EINVAL before Linux 6.16, or no pidfd of a thread.
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _PYTHON_MAX)
    except OSError as error:
        if error.errno == errno.ERANGE:
            raw = _many_groups(sock)
        elif error.errno in (errno.ENOPROTOOPT, errno.ENODATA):
            return ()
        else:
            raise
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _many_groups(sock: socket.socket) -> bytes:
    """The groups of a peer that has more of them than Python's own call can fetch."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_GROUPS_MAX)
    length = ctypes.c_uint32(_GROUPS_MAX)
    if libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, buffer, ctypes.byref(length)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]
