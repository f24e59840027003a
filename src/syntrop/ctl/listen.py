# SPDX-License-Identifier: Apache-2.0
"""Bind the sockets of a socket unit as systemd.socket(5) says."""

from __future__ import annotations

import errno
import os
import socket
import stat

from syntrop.ctl import holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.ctl.folders import RuntimeFolder
    from syntrop.ctl.units import SocketUnit

PORT = 32768  # the suite's own HTTP port; `--port` moves it


class BindError(Exception):
    """An address could not be had; the message says why and who has it."""


class Listener:
    """One bound, listening socket of a unit."""

    __slots__ = ("address", "socket", "unit")

    def __init__(self, unit: SocketUnit, address: str, bound: socket.socket) -> None:
        self.unit, self.address, self.socket = unit, address, bound

    @property
    def path(self) -> str:
        """Path in the file system, or empty for TCP and abstract sockets."""
        name = self.socket.getsockname() if self.socket.family == socket.AF_UNIX else ""
        return name if isinstance(name, str) else ""

    @property
    def tcp(self) -> tuple[str, int] | None:
        return None if self.socket.family == socket.AF_UNIX else self.socket.getsockname()[:2]

    def close(self) -> None:
        path = self.path
        self.socket.close()
        if path:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass


class Binder:
    """Binds addresses, with `/run` moved to the runtime folder and port 32768 to another if one was given."""

    def __init__(self, runtime: RuntimeFolder, port: int = PORT) -> None:
        self.runtime = runtime
        self.port = port
        self.notes: list[str] = []

    def bind(self, unit: SocketUnit, address: str) -> Listener | None:
        """One listening socket; None where the machine has no such family (noted). Raises BindError."""
        try:
            if address[0] in "/@":
                return Listener(unit, address, self._unix(unit, self.runtime.path(address)))
            bound = self._tcp(unit, address)
        except OSError as error:
            raise BindError(f"{unit.name}: {address}: {error.strerror or error}") from None
        return Listener(unit, address, bound) if bound else None

    def _unix(self, unit: SocketUnit, path: str) -> socket.socket:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if path[0] == "@":
                bound.bind("\0" + path[1:])
            else:
                if len(os.fsencode(path)) > 107:  # sun_path is 108 bytes with its NUL, unix(7)
                    raise BindError(f"{path}: longer than a socket's path may be; set RUNTIME_DIRECTORY")
                self.runtime.make(os.path.dirname(path), unit.directory_mode)
                _unlink_stale(path)
                self.runtime.claim(path)
                before = os.umask(0o777 & ~unit.mode)
                try:
                    bound.bind(path)
                finally:
                    os.umask(before)
                self._own(unit, path)
            bound.listen(unit.backlog)
        except BaseException:
            bound.close()
            raise
        return bound

    def _own(self, unit: SocketUnit, path: str) -> None:
        import grp
        import pwd

        try:
            user = pwd.getpwnam(unit.user).pw_uid if unit.user else -1
            group = grp.getgrnam(unit.group).gr_gid if unit.group else -1
        except KeyError:
            account = unit.group or unit.user
            self._note(f"{unit.name}: there is no account {account} here, so its sockets are ours alone")
            return
        if user == group == -1:
            return
        try:
            os.chown(path, user, group)
        except PermissionError:
            self._note(f"{unit.name}: we may not give its sockets to {unit.user}:{unit.group}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _tcp(self, unit: SocketUnit, address: str) -> socket.socket | None:
        host, port = split_address(address)
        if port == PORT:
            port = self.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
            self._note(f"{unit.name}: {address}: this machine has no such address family")
            return None
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for name, (level, option) in OPTIONS.items():
                if unit.options[name]:
                    bound.setsockopt(level, option, 1)
            if unit.options["FreeBind"]:
                bound.setsockopt(*FREEBIND[family], 1)
            if family == socket.AF_INET6:
                only = host != "::" or unit.ipv6_only == "ipv6-only"
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only))
            bound.bind((host, port))
            bound.listen(unit.backlog)
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRNOTAVAIL:
                self._note(f"{unit.name}: {address}: this machine has no such address")
                return None
            if error.errno == errno.EADDRINUSE:
                who = holder.find(port) or "its holder is gone again, try once more"
                raise BindError(f"port {port} is taken: {who}") from None
            raise
        if port == 0 and self.port == 0:
            self.port = bound.getsockname()[1]  # the IPv6 twin gets the same
        return bound


OPTIONS = {
    "NoDelay": (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    "KeepAlive": (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    "ReusePort": (socket.SOL_SOCKET, socket.SO_REUSEPORT),
}
FREEBIND = {  # ip(7), ipv6(7): options that the socket module does not name
    socket.AF_INET: (socket.IPPROTO_IP, 15),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 78),
}


def split_address(address: str) -> tuple[str, int]:
    """`[::1]:80`, `127.0.0.1:80` or `80` (every address) to host and port. Raises BindError."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host = "::"
    if not port.isdigit() or int(port) > 65535:
        raise BindError(f"not an address to listen on: {address!r}")
    return host.strip("[]"), int(port)


def _unlink_stale(path: str) -> None:
    """A socket file that somebody left; the runtime folder's lock says that nobody serves it."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
