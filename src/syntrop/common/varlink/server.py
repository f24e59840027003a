# SPDX-License-Identifier: Apache-2.0
"""Varlink server on the loop: one task a connection, one call at a time on it.

While a handler runs nothing more is read from its connection (what the caller pipelines waits in the socket),
and the connection is watched for the caller's hang-up, which cancels the handler. Shutting down one's writing
side is no hang-up: the replies still have a reader.
"""

from __future__ import annotations

import socket

from syntrop.common import journal, loop, peer
from syntrop.common.caps import Caps
from syntrop.common.varlink import idl
from syntrop.common.varlink.errors import (
    ConnectionLost,
    ExpectedMore,
    InterfaceNotFound,
    InternalError,
    InvalidParameter,
    MethodNotFound,
    MethodNotImplemented,
    VarlinkError,
)
from syntrop.common.varlink.framing import MessageTooLong
from syntrop.common.varlink.wire import Fixed, Malformed, Wire, close_all, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from syntrop.common.peer import Peer
    from syntrop.common.varlink.idl import Interface

CONNECTIONS_MAX = 4096
CONNECTIONS_PER_UID = 1024
SEND_TIMEOUT = 45.0  # seconds without progress after which a slow reader is given up, as in sd-varlink
STEPS = 8  # calls or replies of one connection in a row, about half a millisecond of small ones
RECEIVE_TIMEOUT = 45.0  # seconds in which a message that has begun is to be whole: half a call holds no daemon
SERVICE = "org.varlink.service"


class Identity:
    """What `org.varlink.service.GetInfo` says of a service."""

    __slots__ = ("product", "url", "vendor", "version")

    def __init__(self, vendor: str, product: str, version: str, url: str) -> None:
        self.vendor = vendor
        self.product = product
        self.version = version
        self.url = url


class Call:
    """One method call, as its handler sees it. Descriptors not taken are closed when the call ends."""

    __slots__ = ("_fds", "_given", "_output", "connection", "interface", "method", "more", "oneway")

    def __init__(
        self,
        connection: Connection,
        interface: Interface,
        method: idl.Method,
        *,
        more: bool,
        oneway: bool,
        fds: list[int],
    ) -> None:
        self.connection = connection
        self.interface = interface
        self.method = f"{interface.name}.{method.name}"
        self.more = more
        self.oneway = oneway
        self._output = method.output
        self._fds: list[int | None] = list(fds)
        self._given: list[int] = []

    @property
    def peer(self) -> Peer:
        return self.connection.peer

    def take_fd(self, index: int | None) -> int:
        """The descriptor that a parameter names by its index; the handler owns it from now on.

        Raises InvalidParameter when the caller passed none there, or it was taken already.
        """
        if index is not None and 0 <= index < len(self._fds):
            fd = self._fds[index]
            if fd is not None:
                self._fds[index] = None
                return fd
        raise InvalidParameter("fd")

    def give_fd(self, fd: int) -> int:
        """Pass `fd` with the next reply; returns its index there. The transport owns and closes it."""
        self._given.append(fd)
        return len(self._given) - 1

    def require_more(self) -> None:
        """Raises ExpectedMore unless the caller asked for several replies."""
        if not self.more:
            raise ExpectedMore

    async def send(self, parameters: dict[str, Any]) -> None:
        """One of several replies. Waits for a slow reader; raises ExpectedMore without `more`."""
        self.require_more()
        await self._reply(parameters, continues=True)
        await self.connection.breathe()

    async def _reply(self, parameters: dict[str, Any], *, continues: bool) -> None:
        given, self._given = self._given, []
        try:
            try:
                checked = parameters
                if type(parameters) is not Fixed:
                    checked = self.interface.check(self._output, parameters)
                elif parameters.encoded is None:
                    whole = self.interface.check(self._output, dict(parameters))
                    parameters.encoded = encode({"parameters": whole})
            except idl.Mismatch as mismatch:
                # The handler broke its own contract: ours, not the caller's fault.
                journal.error(
                    f"{self.method} gave a reply that its interface does not allow: {mismatch.path}",
                    message_id=journal.INTERNAL_ERROR,
                )
                raise InternalError from None
            message: dict[str, Any] = {"parameters": checked}
            if continues:
                message["continues"] = True
            await self.connection.reply(message, given)
        finally:
            close_all(given)

    def close(self) -> None:
        close_all([fd for fd in self._fds if fd is not None])
        close_all(self._given)
        self._fds = []
        self._given = []


class _Service:
    """`org.varlink.service`, which every server has."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def GetInfo(self, call: Call) -> dict[str, Any]:
        who = self._server.identity
        return {
            "vendor": who.vendor,
            "product": who.product,
            "version": who.version,
            "url": who.url,
            "interfaces": list(self._server.interfaces),
        }

    async def GetInterfaceDescription(self, call: Call, interface: str) -> dict[str, Any]:
        known = self._server.interfaces.get(interface)
        if known is None:
            raise InterfaceNotFound(interface)
        return {"description": known[0].description}


class Server:
    """The interfaces of a service, and the connections to it."""

    def __init__(
        self,
        identity: Identity,
        handlers: Mapping[str | Interface, object],
        *,
        connections_max: int = CONNECTIONS_MAX,
        connections_per_uid: int = CONNECTIONS_PER_UID,
        send_timeout: float = SEND_TIMEOUT,
        after_call: Callable[[], None] = lambda: None,
        receive_timeout: float = RECEIVE_TIMEOUT,
    ) -> None:
        self.identity = identity
        self.send_timeout = send_timeout
        self.after_call = after_call
        self.receive_timeout = receive_timeout
        self.interfaces: dict[str, tuple[Interface, object]] = {}
        for key, handler in {SERVICE: _Service(self), **handlers}.items():
            interface = idl.load(key) if isinstance(key, str) else key
            self.interfaces[interface.name] = (interface, handler)
        self.caps = Caps(connections_max, connections_per_uid)

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over; None, with the socket closed, where a cap forbids it."""
        who = peer.of(sock)
        if not self.caps.admit(who.uid):
            who.close()
            sock.close()
            return None
        return Connection(self, sock, who)

    def disconnected(self, who: Peer) -> None:
        self.caps.release(who.uid)

    def lookup(self, full: str) -> tuple[Interface, idl.Method, object]:
        """Interface, method and handler of a full method name. Raises the errors of org.varlink.service."""
        name, dot, member = full.rpartition(".")
        if not dot:
            raise InterfaceNotFound(full)
        known = self.interfaces.get(name)
        if known is None:
            raise InterfaceNotFound(name)
        method = known[0].methods.get(member)
        if method is None:
            raise MethodNotFound(full)
        return known[0], method, known[1]


class Connection:
    """One caller. `run()` serves it to its end; `retire()` ends it without losing a call."""

    __slots__ = ("_on_close", "_retired", "_steps", "_wire", "calling", "peer", "served", "server")

    def __init__(self, server: Server, sock: socket.socket, who: Peer) -> None:
        self._on_close: list[Callable[[], object]] = []
        self.server = server
        self.peer = who
        self.calling = False
        self.served = 0
        self._retired = False
        self._steps = 0
        self._wire = Wire(sock)

    @property
    def idle(self) -> bool:
        """Between calls, with nothing of a next one seen."""
        return not self.calling and self._wire.quiet

    def when_closed(self, function: Callable[[], object]) -> None:
        """Have `function` called once the connection has ended, however it did."""
        self._on_close.append(function)

    def retire(self) -> None:
        """End the connection in order: calls that have arrived are answered, later ones fail to be sent.

        After shutdown(SHUT_RD) the kernel refuses the peer's writes with EPIPE while what it had accepted can
        still be read, so that the peer knows exactly which calls were not taken.
        """
        if not self._retired and not self._wire.closed:
            self._retired = True
            try:
                self._wire.socket.shutdown(socket.SHUT_RD)
            except OSError:
                pass  # the peer was faster

    async def breathe(self) -> None:
        """Give the others their turn now and then: a caller as fast as we are never makes us wait for it."""
        self._steps += 1
        if self._steps == STEPS:
            self._steps = 0
            await loop.sleep(0)

    async def run(self) -> None:
        wire = self._wire
        try:
            while True:
                received = await wire.receive(self.server.receive_timeout)
                if received is None:
                    return
                self.calling = True
                try:
                    await self._serve(*received)
                finally:
                    self.calling = False
                    self.server.after_call()
                self.served += 1
                await self.breathe()
        except MessageTooLong:
            await self._refuse("message longer than the limit")
        except Malformed as fault:
            await self._refuse(str(fault))
        except (ConnectionLost, TimeoutError):
            pass  # nobody is left to be told
        finally:
            wire.close()
            self.server.disconnected(self.peer)
            self.peer.close()
            for function in self._on_close:
                function()
            self._on_close.clear()

    async def _refuse(self, why: str) -> None:
        journal.debug(f"Closed a connection of uid {self.peer.uid}: {why}")
        try:
            await self.reply(_error(InvalidParameter("message")), ())
        except (ConnectionLost, TimeoutError):
            pass

    async def reply(self, message: dict[str, Any], fds: list[int] | tuple[()]) -> None:
        await self._wire.send(message, fds, self.server.send_timeout)

    async def _serve(self, message: bytes, fds: list[int]) -> None:
        try:
            request = decode(message)
            oneway = request.get("oneway") is True
            if type(request.get("method")) is not str:
                raise Malformed("no method")
        except BaseException:
            close_all(fds)
            raise
        call: Call | None = None
        error: VarlinkError | None = None
        try:
            for flag in ("more", "oneway"):
                if type(request.get(flag, False)) is not bool:
                    raise InvalidParameter(flag)
            if request.get("upgrade", False) is not False:
                raise InvalidParameter("upgrade")
            interface, method, handler = self.server.lookup(request["method"])
            more = request.get("more") is True and not oneway
            call = Call(self, interface, method, more=more, oneway=oneway, fds=fds)
            function = getattr(handler, method.name, None)
            if function is None:
                raise MethodNotImplemented(call.method)
            given = request.get("parameters")
            try:
                parameters = interface.check(method.input, {} if given is None else given)
            except idl.Mismatch as mismatch:
                raise InvalidParameter(mismatch.path) from None
            except RecursionError:  # a type that holds itself, nested as deep as JSON can be
                raise InvalidParameter("parameters") from None
            task = loop.spawn(self._run(call, function, parameters), call.method, eager=True)
            await self._attend(task)
        except VarlinkError as raised:
            # Its traceback has this frame: a ring that would keep the request until the collector comes.
            error = raised.with_traceback(None)
        finally:
            if call is not None:
                call.close()
            else:
                close_all(fds)
        if error is not None and not oneway:
            await self.reply(_error(self._declared(error)), ())

    async def _run(self, call: Call, function: Any, parameters: dict[str, Any]) -> None:
        """The handler and its last reply. Raises VarlinkError, ConnectionLost and TimeoutError only."""
        try:
            # Called in here: a signature that does not fit its interface is an internal fault like any other.
            result = await function(call, **parameters)
            if not call.oneway:
                await call._reply({} if result is None else result, continues=False)
        except (VarlinkError, ConnectionLost):
            raise
        except Exception as fault:
            if isinstance(fault, TimeoutError) and self._wire.closed:
                raise
            journal.exception(f"{call.method} failed", fault)
            raise InternalError from None

    async def _attend(self, task: loop.Task[None]) -> None:
        """Wait for the call, and cancel it when its caller goes away first."""
        settled: loop.Future[None] = loop.Future()

        def settle(_done: object) -> None:
            settled.set_result(None)

        task.when_done(settle)
        if not task.done:
            loop.hangup(self._wire.fd).when_done(settle)
            try:
                await settled
            finally:
                if not task.done:
                    await loop.stop(task)
        try:
            task.result()
        except loop.TaskCancelled:
            raise ConnectionLost("the caller hung up") from None

    def _declared(self, error: VarlinkError) -> VarlinkError:
        """The error, if its interface declares it so; otherwise our fault, and logged."""
        owner, _, name = error.error.rpartition(".")
        known = self.server.interfaces.get(owner)
        if known is None:
            return error  # io.systemd.System and the like: declared elsewhere
        fields = known[0].errors.get(name)
        if fields is not None:
            try:
                error.parameters = known[0].check(fields, error.parameters)
                return error
            except idl.Mismatch as mismatch:
                journal.error(
                    f"{error.error} does not fit its declaration: {mismatch.path}",
                    message_id=journal.INTERNAL_ERROR,
                )
        elif owner == SERVICE:
            return error  # PermissionDenied and ExpectedMore came later than the published text
        else:
            journal.error(f"{error.error} is not declared", message_id=journal.INTERNAL_ERROR)
        return InternalError()


def _error(error: VarlinkError) -> dict[str, Any]:
    return {"error": error.error, "parameters": error.parameters}
