# SPDX-License-Identifier: Apache-2.0
"""Varlink client on the loop: one connection, one call at a time, every wait with a deadline."""

from __future__ import annotations

import errno
import socket

from syntrop.common import loop
from syntrop.common.varlink import idl
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.common.varlink.framing import MessageTooLong
from syntrop.common.varlink.wire import Malformed, Wire, close_all, decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType
    from typing import Any

TIMEOUT = 45.0  # seconds, as in sd-varlink


class Reply:
    """One reply and its descriptors; those not taken are closed with it."""

    __slots__ = ("_fds", "continues", "parameters")

    def __init__(self, parameters: dict[str, Any], fds: list[int], continues: bool) -> None:
        self.parameters = parameters
        self.continues = continues
        self._fds: list[int | None] = list(fds)

    def take_fd(self, index: int) -> int:
        """The descriptor at `index`; the caller owns it. Raises InvalidReply when there is none."""
        if 0 <= index < len(self._fds):
            fd = self._fds[index]
            if fd is not None:
                self._fds[index] = None
                return fd
        raise InvalidReply(f"no descriptor {index} came with the reply")

    def close(self) -> None:
        close_all([fd for fd in self._fds if fd is not None])
        self._fds = []

    def __enter__(self) -> Reply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """A connection to one service. Reconnects once when a service that exits idle has closed it in order."""

    def __init__(self, address: str, wire: Wire) -> None:
        self.address = address
        self._wire = wire
        self._busy = False

    @property
    def closed(self) -> bool:
        return self._wire.closed

    def alive(self) -> bool:
        """Whether the service has not closed this connection, as far as has arrived here. Between calls only."""
        return not self._wire.closed and not self._ended()

    async def call(
        self,
        method: str,
        parameters: dict[str, Any] | None = None,
        *,
        fds: Sequence[int] = (),
        timeout: float | None = TIMEOUT,
    ) -> Reply:
        """Call and wait for the reply; `fds` stay the caller's.

        Raises VarlinkError for an error reply, TimeoutError, ConnectionLost, InvalidReply and
        errors.InvalidParameter for parameters that the interface does not allow.
        """
        async with _Turn(self):
            with loop.deadline(timeout):
                await self._send(method, parameters, fds)
                return await self._receive(method)

    async def stream(
        self,
        method: str,
        parameters: dict[str, Any] | None = None,
        *,
        fds: Sequence[int] = (),
        timeout: float | None = TIMEOUT,
    ) -> AsyncIterator[Reply]:
        """Call with `more` and give every reply; `timeout` bounds the wait for each.

        Closing the generator before its end closes the connection: that is how a caller hangs up.
        """
        async with _Turn(self):
            with loop.deadline(timeout):
                await self._send(method, parameters, fds, more=True)
            while True:
                with loop.deadline(timeout):
                    reply = await self._receive(method)
                yield reply
                if not reply.continues:
                    return

    async def oneway(
        self, method: str, parameters: dict[str, Any] | None = None, *, timeout: float | None = TIMEOUT
    ) -> None:
        """Call without a reply."""
        async with _Turn(self):
            with loop.deadline(timeout):
                await self._send(method, parameters, (), oneway=True)

    def close(self) -> None:
        """Hang up. Safe at any time, and more than once."""
        self._wire.close()

    async def _send(
        self, method: str, parameters: dict[str, Any] | None, fds: Sequence[int], **flags: bool
    ) -> None:
        message: dict[str, Any] = {"method": method, **flags}
        parameters = parameters or {}
        known = _signature(method)
        if known is not None:
            try:
                parameters = known[0].check(known[1].input, parameters)
            except idl.Mismatch as mismatch:
                from syntrop.common.varlink.errors import InvalidParameter

                raise InvalidParameter(mismatch.path) from None
        if parameters:
            message["parameters"] = parameters
        # A service that went idle has closed this connection: seen before anything is sent, or at the send,
        # which the kernel then refuses whole. Either way it did not take the call, so it is sent again, once.
        if self._wire.closed or self._ended():
            await self._reconnect()
            await self._wire.send(message, fds)
            return
        try:
            await self._wire.send(message, fds)
        except ConnectionLost:
            await self._reconnect()
            await self._wire.send(message, fds)

    def _ended(self) -> bool:
        wire = self._wire
        if not wire.eof:
            try:
                wire.read()
            except (Malformed, MessageTooLong):
                wire.eof = True
        # What nobody asked for must not be taken for the answer to the next call.
        return wire.eof or not wire.quiet

    async def _reconnect(self) -> None:
        self._wire.close()
        self._wire = Wire(await _open(self.address))

    async def _receive(self, method: str) -> Reply:
        try:
            received = await self._wire.receive()
            if received is None:
                raise ConnectionLost(f"{self.address} closed the connection during {method}")
            message, fds = received
        except (Malformed, MessageTooLong) as fault:
            raise InvalidReply(f"{method}: {str(fault) or 'message too long'}") from fault
        try:
            return self._reply(method, decode(message), fds)
        except BaseException as fault:
            close_all(fds)
            if isinstance(fault, Malformed):
                raise InvalidReply(f"{method}: {fault}") from fault
            raise

    def _reply(self, method: str, message: dict[str, Any], fds: list[int]) -> Reply:
        parameters = message.get("parameters") or {}
        error = message.get("error")
        if type(parameters) is not dict or not (error is None or type(error) is str):
            raise InvalidReply(f"{method}: not a reply")
        if error is not None:
            close_all(fds)
            fds.clear()
            raise VarlinkError(error, **{str(k): v for k, v in parameters.items()})
        known = _signature(method)
        if known is not None:
            try:
                parameters = known[0].check(known[1].output, parameters)
            except idl.Mismatch as mismatch:
                raise InvalidReply(f"{method}: {mismatch.path}") from None
        return Reply(parameters, fds, message.get("continues") is True)


class _Turn:
    """One call at a time; a call that did not end in order leaves no connection behind."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __aenter__(self) -> None:
        if self._client._busy:
            raise RuntimeError("a call is in flight on this connection")
        self._client._busy = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client._busy = False
        if error is not None and not isinstance(error, VarlinkError):
            self._client.close()


def _signature(method: str) -> tuple[idl.Interface, idl.Method] | None:
    name, _, member = method.rpartition(".")
    interface = idl.find(name) if name else None
    if interface is None or member not in interface.methods:
        return None
    return interface, interface.methods[member]


async def connect(address: str, *, timeout: float | None = 5.0) -> Client:
    """Connect to a Unix socket path (`unix:` before it is allowed).

    Raises OSError (FileNotFoundError, ConnectionRefusedError, …) and TimeoutError.
    """
    address = address.removeprefix("unix:")
    with loop.deadline(timeout):
        return Client(address, Wire(await _open(address)))


async def _open(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        while True:
            result = sock.connect_ex(path)
            if result == 0:
                return sock
            if result != errno.EAGAIN:
                raise OSError(result, f"cannot connect to {path}: {errno.errorcode.get(result, result)}")
            # The backlog of a Unix socket is full and, unlike for TCP, nothing tells when it is not (connect(2)).
            await loop.sleep(0.01)
    except BaseException:
        sock.close()
        raise
