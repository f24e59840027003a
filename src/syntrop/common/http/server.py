# SPDX-License-Identifier: Apache-2.0
"""HTTP connections on the loop: one task each, one exchange at a time on it.

While a handler runs nothing more is read (what the client pipelines waits in the socket) and the connection is
watched: when the client goes away the handler's task is cancelled at its next wait. On TCP a FIN counts as going
away, since the kernel cannot tell a client that closed from one that only ended its sending (Go's server judges
alike). On Unix sockets it can, and only a closed peer counts.

HTTP/2 comes in by the same door: a connection that begins with its preface, or asks for it with `Upgrade: h2c`,
goes on as a `http2_server.Session`, which is imported then. Both kinds give handlers an `Exchange`.

Nothing is buffered on the way out but what one `send()` was given: a slow reader holds its handler up, and one
without progress for `write` seconds is given up.
"""

from __future__ import annotations

import socket

from syntrop.common import loop, peer
from syntrop.common.caps import Caps
from syntrop.common.http import http1
from syntrop.common.http.errors import HttpError
from syntrop.common.http.exchange import JSON, Disconnected, Exchange, Limits, answer, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from syntrop.common.http.exchange import Handler
    from syntrop.common.http.http2_server import Session

__all__ = ["Connection", "Disconnected", "Exchange", "Limits", "Server"]

_READ = 64 * 1024
_STEPS = 32  # reads or writes of one connection in a row
_LINGER = 1.0  # seconds for a client to read a refusal while it is still sending
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # what every connection of HTTP/2 begins with


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
        who: peer.Peer | None = None,
    ) -> None:
        sock.setblocking(False)
        self.peer = who or peer.Peer(None, peer.UNKNOWN, peer.UNKNOWN, 0)
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
        self._early = b""  # the first bytes, while they may still become the preface
        self._session: Session | None = None
        self._steps = 0
        self._task: loop.Task[Any] | None = None
        if not self.local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def idle(self) -> bool:
        """Between requests, with nothing of a next one seen."""
        if self._session is not None:
            return self._session.idle
        return not self._serving and not self.events and self._protocol.between and not self._early

    def retire(self) -> None:
        """End in order: at once when idle, else with `Connection: close` on the next reply."""
        self.retired = True
        if self._session is not None:
            self._session.retire()
        elif self._task is None or not self.idle:
            return
        elif self.local:
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
            await self._begin()
            while self._session is None and await self._arrival():
                if self._busy is None:
                    more = await self._serve()
                else:
                    with self._busy():
                        more = await self._serve()
                if not more:
                    break
            if self._session is not None:
                await self._session.run()
        except Disconnected:
            pass
        finally:
            self._task = None
            self._closed = True
            loop.forget(self._fd)
            self._socket.close()
            self.peer.close()
            if self._ended is not None:
                self._ended()

    # --- in ----------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Find out by its first bytes what is spoken here."""
        patience = self.limits.idle
        while _PREFACE.startswith(self._early) and len(self._early) < len(_PREFACE):
            try:
                with loop.deadline(patience):
                    data = await self._receive()
            except TimeoutError:
                data = b""
            if not data:
                if not self._early:
                    raise Disconnected
                break
            self._early += data
            patience = self.limits.head
        first, self._early = self._early, b""
        if first.startswith(_PREFACE):
            from syntrop.common.http.http2_server import Session

            self._session = self._open(Session)
            self._session.take(first)
        else:
            self.events += self._protocol.receive(first)

    def _open(self, kind: type[Session], asked: http1.Head | None = None) -> Session:
        return kind(self, self._socket, self._handler, busy=self._busy, asked=asked)

    def _upgrade(self, head: http1.Head) -> bool:
        """Go on in HTTP/2 when a request asks for it in order; else the wish is passed over."""
        if self.retired or self.events != [http1.End()]:
            return False
        from syntrop.common.http.http2 import Malformed
        from syntrop.common.http.http2_server import Session

        try:
            self._session = self._open(Session, head)
        except Malformed:
            return False
        self.events.clear()
        return True

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
        data = await self._receive()
        self.events += self._protocol.receive(data)
        return bool(data)

    async def _receive(self) -> bytes:
        await self._breathe()
        while True:
            try:
                return self._socket.recv(_READ)
            except BlockingIOError:
                await loop.readable(self._fd)
            except OSError:
                return b""

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
            return await self._refuse(refusal(head))
        assert isinstance(head, http1.Head)
        if self.events and isinstance(self.events[0], http1.Refused):
            # A body that announces itself as too large is refused before it is asked for.
            return await self._refuse(refusal(self.events[0]))
        if head.h2c is not None and self._upgrade(head):
            return False
        exchange = Exchange(self, head)
        self._watch()
        self._serving = True
        try:
            await answer(self._handler, exchange)
        finally:
            self._serving = False
        self.served += 1
        if not exchange.finished:
            return False
        if exchange.close:
            if exchange.unread or self._waiting():
                await self.linger()
            return False
        return True

    async def _refuse(self, error: HttpError) -> bool:
        request = http1.Head("GET", "/", "", (), keep_alive=False)
        await Exchange(self, request).reply(error.status, (*error.headers, JSON), error.encode())
        await self.linger()
        return False

    async def linger(self) -> None:
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
        self.limits = limits or Limits()  # of connections that are yet to come
        self._busy = busy
        self._caps = Caps(connections_max, connections_per_uid)

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over; None, with the socket closed, where a cap forbids it."""
        who = peer.of(sock)
        if not self._caps.admit(who.uid):
            who.close()
            sock.close()
            return None
        return Connection(
            sock,
            self._handler,
            limits=self.limits,
            busy=self._busy,
            ended=lambda: self._caps.release(who.uid),
            who=who,
        )
