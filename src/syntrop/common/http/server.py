# SPDX-License-Identifier: Apache-2.0
"""HTTP connections on the loop: one task each, one exchange at a time on it.

While a handler runs nothing more is read (what the client pipelines waits in the socket) and the connection is
watched: when the client goes away the handler's task is cancelled at its next wait. On TCP a FIN counts as going
away, since the kernel cannot tell a client that closed from one that only ended its sending (Go's server judges
alike). On Unix sockets it can, and only a closed peer counts.

HTTP/2 will come in by the same door: `Server.connect()` gives a connection, whose first bytes say what is spoken
on it, and both kinds give handlers an `Exchange`. Until then its preface is refused with 505.

Nothing is buffered on the way out but what one `send()` was given: a slow reader holds its handler up, and one
without progress for `write` seconds is given up.
"""

from __future__ import annotations

import os
import socket
from time import time

from syntrop.common import journal, loop, peer
from syntrop.common.caps import Caps
from syntrop.common.http import http1
from syntrop.common.http.errors import HttpError, InternalFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    Handler = Callable[["Exchange"], Awaitable[None]]
    Headers = Iterable[tuple[str, str]]

_READ = 64 * 1024
_STEPS = 32  # reads or writes of one connection in a row
_LINGER = 1.0  # seconds for a client to read a refusal while it is still sending
_JSON = ("content-type", "application/json")


class Disconnected(Exception):
    """The client is gone, or so slow that it was given up. Handlers let it pass."""


class Limits:
    """Deadlines in seconds and caps in bytes. `idle`: between requests; `head`, `body`: to receive them whole;
    `write`: without progress."""

    __slots__ = ("body", "body_max", "head", "idle", "write")

    def __init__(
        self,
        *,
        idle: float = 75.0,
        head: float = 10.0,
        body: float = 120.0,
        write: float = 45.0,
        body_max: int = http1.BODY_MAX,
    ) -> None:
        self.idle = idle
        self.head = head
        self.body = body
        self.write = write
        self.body_max = body_max


class Exchange:
    """One request and its reply, as a handler sees them.

    Either `reply()`, or `start()`, any number of `send()` and `finish()`. A handler that raises HttpError before
    it started is answered so; one that ends without `finish()` breaks the connection off, which tells the client
    that the reply is not whole.
    """

    __slots__ = ("_connection", "_framed", "_received", "close", "finished", "id", "request", "started", "unread")

    def __init__(self, connection: Connection, request: http1.Head) -> None:
        self._connection = connection
        self._received = False
        self._framed = False
        self.request = request
        self.id = "req_" + os.urandom(12).hex()
        self.close = not request.keep_alive
        self.started = False
        self.finished = False
        self.unread = False

    @property
    def local(self) -> bool:
        """Whether the client came over a Unix socket."""
        return self._connection.local

    @property
    def uid(self) -> int:
        """The client's user on a Unix socket; `peer.UNKNOWN` on TCP."""
        return self._connection.uid

    async def body(self) -> bytes:
        """The whole body. Raises HttpError (408, 413, 415 and malformed ones) and Disconnected."""
        connection = self._connection
        coding = self.request.header("content-encoding")
        if coding is not None and coding.strip().lower() != "identity":
            self.close = True
            raise HttpError(415, f"A body with the encoding {coding[:40]} is not read; send it as it is.")
        if self.request.expects_continue and not connection.events:
            await connection.write(http1.CONTINUE)
        pieces = []
        try:
            with loop.deadline(connection.limits.body):
                while True:
                    event = await connection.event()
                    if isinstance(event, http1.Body):
                        pieces.append(event.data)
                    elif isinstance(event, http1.Refused):
                        self.close = True
                        raise _error(event)
                    else:
                        break
        except TimeoutError:
            self.close = True
            raise HttpError(408, "The body of the request did not arrive in time.") from None
        self._received = True
        return b"".join(pieces)

    async def reply(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """The whole reply at once."""
        data = self._head(status, (*headers, ("content-length", str(len(body)))))
        self.started = self.finished = True
        await self._connection.write(data if self.request.method == "HEAD" else data + body)

    async def start(self, status: int, headers: Headers = (), first: bytes = b"") -> None:
        """Begin a reply of unknown length; `first` is a first piece of it, sent along."""
        # HTTP/1.0 has no chunks: there the end of the connection is the end of the reply.
        self._framed = self.request.minor >= 1
        if self._framed:
            data = self._head(status, (*headers, ("transfer-encoding", "chunked")))
        else:
            self.close = True
            data = self._head(status, headers)
        self.started = True
        await self._connection.write(data + self._piece(first))

    async def send(self, data: bytes) -> None:
        """One more piece. Waits while the client is slow; raises Disconnected."""
        if data:
            await self._connection.write(self._piece(data))

    async def finish(self) -> None:
        self.finished = True
        if self._framed and self.request.method != "HEAD":
            await self._connection.write(http1.LAST_CHUNK)

    def _piece(self, data: bytes) -> bytes:
        if self.request.method == "HEAD":
            return b""
        return http1.encode_chunk(data) if self._framed else data

    def _head(self, status: int, headers: Headers) -> bytes:
        if self.started:
            raise RuntimeError("a reply was started already")
        connection = self._connection
        # A body that nobody read stands between us and the next request.
        self.unread = not (self._received or connection.take_end())
        self.close = self.close or connection.retired or self.unread
        how = []
        if self.close:
            how.append(("connection", "close"))
        elif self.request.minor == 0:
            how.append(("connection", "keep-alive"))
        return http1.encode_head(
            status, [("date", http1.http_date(time())), ("x-request-id", self.id), *headers, *how]
        )


class Connection:
    """One client. `run()` serves it to its end; `retire()` ends it in order."""

    def __init__(
        self,
        sock: socket.socket,
        handler: Handler,
        *,
        limits: Limits | None = None,
        busy: Callable[[], AbstractContextManager[object]] | None = None,
        ended: Callable[[], None] | None = None,
        uid: int = peer.UNKNOWN,
    ) -> None:
        sock.setblocking(False)
        self.uid = uid
        self.limits = limits or Limits()
        self.local = sock.family == socket.AF_UNIX
        self.retired = False
        self.served = 0
        self.events: list[http1.Event] = []
        self._socket = sock
        self._fd = sock.fileno()
        self._handler = handler
        self._busy = busy
        self._ended = ended
        self._protocol = http1.Protocol(body_max=self.limits.body_max)
        self._closed = False
        self._watched = False
        self._serving = False
        self._steps = 0
        self._task: loop.Task[Any] | None = None
        if not self.local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def idle(self) -> bool:
        """Between requests, with nothing of a next one seen."""
        return not self._serving and not self.events and self._protocol.between

    def retire(self) -> None:
        """End in order: at once when idle, else with `Connection: close` on the next reply."""
        self.retired = True
        if self._task is None or not self.idle:
            return
        if self.local:
            # The kernel refuses what the client still sends, and lets us read what it had accepted.
            try:
                self._socket.shutdown(socket.SHUT_RD)
            except OSError:
                pass  # the client was faster
        elif not self._waiting():
            self._task.cancel()

    def _waiting(self) -> bool:
        """Whether bytes have arrived that we have not read."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    async def run(self) -> None:
        """Serve until the client or we close. The socket is closed then."""
        self._task = loop.current()
        try:
            while await self._arrival():
                if self._busy is None:
                    more = await self._serve()
                else:
                    with self._busy():
                        more = await self._serve()
                if not more:
                    break
        except Disconnected:
            pass
        finally:
            self._task = None
            self._closed = True
            loop.forget(self._fd)
            self._socket.close()
            if self._ended is not None:
                self._ended()

    # --- in ----------------------------------------------------------------------------------------------

    async def _arrival(self) -> bool:
        """Wait for the first byte of a request; False when there will be none."""
        if not self.idle:
            return True
        try:
            with loop.deadline(self.limits.idle):
                return await self._read()
        except TimeoutError:
            return False

    async def _read(self) -> bool:
        """Read once; False at the end of the stream."""
        await self._breathe()
        while True:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                await loop.readable(self._fd)
                continue
            except OSError:
                return False
            break
        self.events += self._protocol.receive(data)
        return bool(data)

    async def event(self) -> http1.Event:
        """The next event. Raises Disconnected when the client ends before it."""
        while not self.events:
            if not await self._read():
                raise Disconnected
        return self.events.pop(0)

    def take_end(self) -> bool:
        """Pass over the end of a request without a body, or with one that has arrived already."""
        for i, event in enumerate(self.events):
            if isinstance(event, http1.End):
                del self.events[: i + 1]
                return True
            if not isinstance(event, http1.Body):
                break
        return False

    # --- exchanges ---------------------------------------------------------------------------------------

    async def _serve(self) -> bool:
        """One request and its reply; False when the connection ends with it."""
        try:
            with loop.deadline(self.limits.head):
                head = await self.event()
        except TimeoutError:
            return await self._refuse(HttpError(408, "The head of the request did not arrive in time."))
        if isinstance(head, http1.Refused):
            return await self._refuse(_error(head))
        assert isinstance(head, http1.Head)
        if self.events and isinstance(self.events[0], http1.Refused):
            # A body that announces itself as too large is refused before it is asked for.
            return await self._refuse(_error(self.events[0]))
        exchange = Exchange(self, head)
        self._watch()
        self._serving = True
        try:
            await self._answer(exchange)
        finally:
            self._serving = False
        self.served += 1
        if not exchange.finished:
            return False
        if exchange.close:
            if exchange.unread or self._waiting():
                await self._linger()
            return False
        return True

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
            return
        except Disconnected:
            raise
        except HttpError as error:
            failure = error
            if exchange.started:
                journal.error(f"{exchange.id} failed after its reply had started: {error.message}")
        except Exception as fault:  # the boundary: logged here, and told without detail
            request = exchange.request
            journal.exception(f"{exchange.id} {request.method} {request.path} failed", fault)
            failure = InternalFault(exchange.id)
        if not exchange.started:
            await exchange.reply(failure.status, (*failure.headers, _JSON), failure.encode())

    async def _refuse(self, error: HttpError) -> bool:
        request = http1.Head("GET", "/", "", (), keep_alive=False)
        await Exchange(self, request).reply(error.status, (*error.headers, _JSON), error.encode())
        await self._linger()
        return False

    async def _linger(self) -> None:
        """Close without losing the reply: a reset, sent for bytes that we did not read, would overtake it."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            with loop.deadline(_LINGER):
                while True:
                    await self._breathe()
                    try:
                        if not self._socket.recv(_READ):
                            return
                    except BlockingIOError:
                        await loop.readable(self._fd)
        except (OSError, TimeoutError):
            pass

    async def _breathe(self) -> None:
        """Give the others their turn now and then: a client as fast as we are never makes us wait for it."""
        self._steps += 1
        if self._steps == _STEPS:
            self._steps = 0
            await loop.sleep(0)

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            loop.hangup(self._fd, half=not self.local).when_done(self._hung_up)

    def _hung_up(self, _future: object) -> None:
        self._watched = False
        if self._serving and self._task is not None and not self._closed:
            self._task.cancel()

    # --- out ---------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send all of it. Raises Disconnected."""
        await self._breathe()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                try:
                    with loop.deadline(self.limits.write):
                        await loop.writable(self._fd)
                except TimeoutError:
                    raise Disconnected("the client does not read") from None
            except OSError as error:
                raise Disconnected(str(error)) from error


class Server:
    """The connections of a daemon's HTTP endpoints. `connect` is what `Daemon.serve()` asks for."""

    def __init__(
        self,
        handler: Handler,
        *,
        limits: Limits | None = None,
        busy: Callable[[], AbstractContextManager[object]] | None = None,
        connections_max: int = 4096,
        connections_per_uid: int = 1024,
    ) -> None:
        self._handler = handler
        self._limits = limits or Limits()
        self._busy = busy
        self._caps = Caps(connections_max, connections_per_uid)

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over; None, with the socket closed, where a cap forbids it."""
        uid = peer.of(sock).uid
        if not self._caps.admit(uid):
            sock.close()
            return None
        return Connection(
            sock,
            self._handler,
            limits=self._limits,
            busy=self._busy,
            ended=lambda: self._caps.release(uid),
            uid=uid,
        )


def _error(refused: http1.Refused) -> HttpError:
    return HttpError(refused.status, f"{refused.reason[0].upper()}{refused.reason[1:]}.")
