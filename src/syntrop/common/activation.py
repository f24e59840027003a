# SPDX-License-Identifier: Apache-2.0
"""Sockets passed by the service manager (sd_listen_fds(3)), told apart by unit name *and bound address*.

The order of descriptors over several socket units is arbitrary and one `FileDescriptorName=` holds for a whole
unit, so neither a number nor a name alone says which endpoint a descriptor is.
"""

from __future__ import annotations

import os
import socket
import stat

from syntrop.common import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST = 3  # SD_LISTEN_FDS_START
TCP = "tcp"
NETLINK = "netlink:"
"""With the number of the protocol, the endpoint name of a netlink socket (`ListenNetlink=`)."""
BACKLOG = 4096
# What a manager writes where a socket unit gave no name, or a tool passed none.
_ANONYMOUS = ("", "unknown", "stored", "connection")


class ActivationError(Exception):
    """The passed descriptors, or the addresses to bind, cannot be used."""


class Listener:
    """A listening stream socket, or one to ask the kernel by. `endpoint` is its name in the suite: `tcp`, the path
    below the run root, or `netlink:NUMBER`.
    """

    __slots__ = ("address", "endpoint", "socket", "unit")

    def __init__(self, sock: socket.socket, unit: str) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.unit = unit
        self.address: str
        name = sock.getsockname()
        if sock.family == socket.AF_NETLINK:
            self.address = self.endpoint = f"{NETLINK}{sock.proto}"
        elif sock.family == socket.AF_UNIX:
            self.address = name if isinstance(name, str) else "@" + name[1:].decode(errors="replace")
            self.endpoint = self.address
        else:
            host = f"[{name[0]}]" if sock.family == socket.AF_INET6 else name[0]
            self.address = f"{host}:{name[1]}"
            self.endpoint = TCP


def adopt() -> list[Listener] | None:
    """The passed sockets, or None when nothing was passed to this process. Raises ActivationError.

    The variables are unset, so that no child takes them for its own, and the descriptors are closed on exec.
    """
    pid = os.environ.pop("LISTEN_PID", "")
    count = os.environ.pop("LISTEN_FDS", "")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if not count or pid != str(os.getpid()):
        return None
    if not (count.isascii() and count.isdigit()):
        raise ActivationError(f"LISTEN_FDS={count} is not a number")
    listeners = []
    for index in range(int(count)):
        fd = FIRST + index
        try:
            is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            raise ActivationError(f"descriptor {fd} of LISTEN_FDS={count} is not open") from None
        os.set_inheritable(fd, False)
        name = names[index] if index < len(names) else ""
        if not is_socket:
            raise ActivationError(f"descriptor {fd} ({name}) is not a socket")
        sock = socket.socket(fileno=fd)
        if sock.family != socket.AF_NETLINK and not _listens(sock):
            raise ActivationError(f"descriptor {fd} ({name}) is not a listening stream socket (Accept=no?)")
        listeners.append(Listener(sock, name))
    return listeners


def _listens(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def claim(listeners: Sequence[Listener], endpoint: str, unit: str) -> list[Listener]:
    """Those bound to the endpoint's address, which must come from `unit` where the manager names units.

    Raises ActivationError for a listener at the right address from another unit: a mixed-up installation.
    """
    address = endpoint
    if endpoint != TCP and not endpoint.startswith(NETLINK):
        address = os.path.abspath(paths.endpoint(endpoint))
    claimed = [one for one in listeners if one.endpoint == address]
    for one in claimed:
        if one.unit not in (unit, *_ANONYMOUS):
            raise ActivationError(f"{one.address} came from {one.unit}, not from {unit}")
    return claimed


def bind(address: str, mode: int = 0o666) -> Listener:
    """Bind by hand: an absolute path, `HOST:PORT` or `[HOST]:PORT`. Raises OSError and ActivationError.

    A path gets `mode` before anybody can connect. Who may call what is judged by the peer's credentials anyway.
    """
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(address)
            os.makedirs(os.path.dirname(address), exist_ok=True)
            sock.bind(address)
            os.chmod(address, mode)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        return Listener(sock, "")
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ActivationError(f"{address!r} is neither an absolute path nor HOST:PORT")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host.strip("[]"), int(port)))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return Listener(sock, "")


def _remove_stale(path: str) -> None:
    """Unlink a socket that nobody listens on any more."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return  # bind(2) will say that the address is in use
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except BlockingIOError:
            pass  # its backlog is full: very much alive


def accept(listener: socket.socket) -> socket.socket | None:
    """One waiting connection, non-blocking and closed on exec; None when there is none. Raises OSError."""
    try:
        sock, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    sock.setblocking(False)
    return sock
