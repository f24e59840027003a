# SPDX-License-Identifier: Apache-2.0
"""Byte streams to servers elsewhere, on the loop: TCP, and what may be wrapped around it (`tls`)."""

from __future__ import annotations

import errno
import os
import socket

from syntrop.common import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_READ = 64 * 1024
_EACH = 2.0  # seconds for an address that is not the last


class Unreachable(Exception):
    """There is no connection to be had."""


class Untrusted(Unreachable):
    """The server's certificate is not the one of whom we wanted, or nobody that we trust vouches for it."""


class Broken(Exception):
    """The connection was lost, or ended where it should not."""


class Wire:
    """A connected stream, and the owner of its descriptor."""

    _want_read: tuple[type[Exception], ...] = (BlockingIOError,)
    _want_write: tuple[type[Exception], ...] = (BlockingIOError,)

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.fd = sock.fileno()
        self.closed = False
        self._early = b""  # read while we were writing

    async def read(self) -> bytes:
        """What arrives next; empty at the end of the stream. Raises Broken."""
        if self._early:
            early, self._early = self._early, b""
            return early
        while True:
            try:
                return self._socket.recv(_READ)
            except self._want_read:
                await loop.readable(self.fd)
            except self._want_write:
                await loop.writable(self.fd)
            except OSError as error:
                raise Broken(reason(error)) from None

    async def write(self, data: bytes, patience: float) -> bool:
        """Send all of it; False when the server answers, or ends, before it has taken all.

        Raises TimeoutError after `patience` seconds without progress.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except self._want_write:
                with loop.deadline(patience):
                    if await self._blocked():
                        return False
            except self._want_read:
                with loop.deadline(patience):
                    await loop.readable(self.fd)
            except OSError:
                return False  # what it said before it hung up may be there to be read
        return True

    async def _blocked(self) -> bool:
        """Wait until there is room; True when the server says something first."""
        either: loop.Future[object] = loop.Future()
        loop.readable(self.fd).when_done(either.set_result)
        loop.writable(self.fd).when_done(either.set_result)
        try:
            await either
        finally:
            loop.forget(self.fd)
        try:
            self._early = self._socket.recv(_READ)
        except (*self._want_read, *self._want_write):
            return False
        except OSError:
            return True
        return True

    def quiet(self) -> bool:
        """Whether the stream is open with nothing said on it, as it should be between requests."""
        try:
            self._socket.recv(1)
        except self._want_read:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Hang up, at once. Safe more than once."""
        if not self.closed:
            self.closed = True
            loop.forget(self.fd)
            self._socket.close()


async def connect(host: str, port: int) -> socket.socket:
    """A socket that is connected to a server; the caller bounds the time. Raises Unreachable."""
    return await _dial(await _resolve(host, port))


async def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """(family, address) pairs. Names are looked up in a worker thread: the resolver knows no other way."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    try:
        found = await loop.thread(_lookup, host, port)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host} cannot be looked up: {reason(error)}") from None
    return found


def _lookup(host: str, port: int) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _dial(addresses: list[tuple[int, Any]]) -> socket.socket:
    """Connected to the first address that answers. One that swallows what is sent to it must not hide the rest."""
    failure = "it has no address"
    for left, (family, address) in enumerate(addresses, 1 - len(addresses)):
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with loop.deadline(_EACH if left else None):
                await _connected(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:  # TimeoutError is one
            failure = reason(error)
        except BaseException:
            _drop(sock)
            raise
        _drop(sock)
    raise Unreachable(failure)


def _drop(sock: socket.socket) -> None:
    loop.forget(sock.fileno())
    sock.close()


async def _connected(sock: socket.socket, address: Any) -> None:
    number = sock.connect_ex(address)
    if number == errno.EINPROGRESS:
        await loop.writable(sock.fileno())
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))


def reason(error: BaseException) -> str:
    """What went wrong, in few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
