# SPDX-License-Identifier: Apache-2.0
"""A connection of HTTP/2 on the loop: one task reads, one task a stream answers.

Every stream is an `Exchange` for the handler. A stream that its client resets, and every stream of a client that
goes away, has its handler cancelled at once. Pieces wait for room in the windows and in what is yet to be sent
(bounded): a slow reader holds its own handler up, and a stream that may not send for `write` seconds is given up
by itself. What a client sends is taken only while what we owe it is bounded.

The end in order: streams that begin from then on are refused, so that the client may ask again elsewhere, and
after the last reply GOAWAY says which was the last that is served. On an idle connection that is at once.
"""

from __future__ import annotations

import socket
from time import monotonic, time

from syntrop.common import loop
from syntrop.common.http import http1, http2
from syntrop.common.http.exchange import Disconnected, Exchange, answer, compressed, late, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from syntrop.common.http.exchange import Handler, Headers
    from syntrop.common.http.server import Connection

_READ = 64 * 1024
_FRAMES = 32  # that are handled in a row before others have their turn
_READS = 32  # in a row, when we look a last time for what has arrived
_STEPS = 32  # pieces that are sent in a row
_OUT_MAX = 128 * 1024  # bytes that may wait to be sent before streams, and the reader, wait as well
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
_HOPS = ("connection", "upgrade", "http2-settings")


class Stream:
    """What is known of one request and its reply."""

    __slots__ = ("arrived", "body", "complete", "failure", "gone", "hold", "id", "owed", "room", "task", "wanted")

    def __init__(self, number: int) -> None:
        self.id = number
        self.body = bytearray()
        self.owed = 0  # bytes of the windows to give back once a handler wants the body
        self.wanted = False
        self.complete = False  # the request
        self.failure: http1.Refused | None = None  # of the body
        self.gone = False  # the stream: nothing can be sent on it
        self.arrived = loop.Event()  # something of the body, or its end
        self.room = loop.Event()  # there may be some
        self.hold: AbstractContextManager[object] | None = None
        self.task: loop.Task[None] | None = None


class StreamExchange(Exchange):
    """An exchange on a stream of HTTP/2."""

    __slots__ = ("_session", "_stream")

    def __init__(self, session: Session, stream: Stream, request: http1.Head) -> None:
        super().__init__(session.connection, request)
        self._session = session
        self._stream = stream

    async def body(self) -> bytes:
        coding = self.request.header("content-encoding")
        if coding is not None and coding.strip().lower() != "identity":
            raise compressed(coding)
        stream, session = self._stream, self._session
        if self.request.expects_continue and not stream.complete and not stream.body:
            session.headers(stream, [(":status", "100")], end=False)
        session.want(stream)
        try:
            with loop.deadline(self._connection.limits.body):
                while not stream.complete and stream.failure is None:
                    stream.arrived.clear()
                    await stream.arrived.wait()
        except TimeoutError:
            raise late() from None
        if stream.failure is not None:
            raise refusal(stream.failure)
        body, stream.body = bytes(stream.body), bytearray()
        return body

    async def reply(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        bare = not body or self.request.method == "HEAD"
        self._begin(status, (*headers, ("content-length", str(len(body)))), end=bare)
        if not bare:
            await self._session.send(self._stream, body, end=True)
        self.finished = True

    async def start(self, status: int, headers: Headers = (), first: bytes = b"") -> None:
        self._begin(status, headers, end=self.request.method == "HEAD")
        await self.send(first)

    async def send(self, data: bytes) -> None:
        if data and self.request.method != "HEAD":
            await self._session.send(self._stream, data, end=False)

    async def finish(self) -> None:
        if self.request.method != "HEAD":
            await self._session.send(self._stream, b"", end=True)
        self.finished = True

    def _begin(self, status: int, headers: Headers, *, end: bool) -> None:
        if self.started:
            raise RuntimeError("a reply was started already")
        fields = [(":status", str(status)), ("date", http1.http_date(time())), ("x-request-id", self.id), *headers]
        self._session.headers(self._stream, fields, end=end)
        self.started = True


class Session:
    """One connection. `asked`: the request with which it asked for HTTP/2 (raises http2.Malformed)."""

    def __init__(
        self,
        connection: Connection,
        sock: socket.socket,
        handler: Handler,
        *,
        busy: Callable[[], AbstractContextManager[object]] | None,
        asked: http1.Head | None = None,
    ) -> None:
        self.connection = connection
        self._limits = connection.limits
        self._socket = sock
        self._fd = sock.fileno()
        self._handler = handler
        self._busy = busy
        self._streams: dict[int, Stream] = {}
        self._out = bytearray()
        self._flushing = False  # a flush is due in this turn
        self._steps = 0
        self._drainer: loop.Task[None] | None = None
        self._drained = loop.Event()
        self._timer: loop.Timer | None = None
        self._timed = ""  # what for
        self._task: loop.Task[Any] | None = None
        self._over = False
        self._lingers = False  # a reply may still be on its way when we close
        self._closed = False
        self._protocol = http2.Protocol(
            streams=self._limits.streams,
            body_max=self._limits.body_max,
            h2c=None if asked is None else asked.h2c or "",
        )
        if asked is not None:
            self._out += _SWITCH
            headers = tuple(pair for pair in asked.headers if pair[0] not in _HOPS)
            head = http1.Head(asked.method, asked.path, asked.query, headers, authority=asked.authority)
            self._begin(1, head, None).complete = True

    @property
    def idle(self) -> bool:
        """No stream, and nothing seen of a next one."""
        return not self._streams and not self._protocol.partial

    def take(self, data: bytes) -> None:
        """Bytes that have arrived."""
        self._protocol.feed(data)

    def retire(self) -> None:
        """Serve what has arrived, and no more."""
        if self._task is None or self._over:
            return
        for _ in range(_READS):
            try:
                data = self._socket.recv(_READ)
            except OSError:
                break
            if not data:
                break
            self._protocol.feed(data)
            self._handle(None)
        self._leave()
        if self._protocol.failed is not None:
            self._stop()

    async def run(self) -> None:
        """Serve until the client or we close. Raises Disconnected."""
        self._task = loop.current()
        try:
            self._flush()
            while await self._pump():
                if self.connection.retired:
                    self._leave()
                while len(self._out) > _OUT_MAX:
                    self._drained.clear()
                    await self._drained.wait()
                self._protocol.feed(await self._receive())
        except loop.Cancelled:
            # Our own end in order; any other cancellation comes from above.
            if not self._over:
                raise
        finally:
            self._close()
        if self._protocol.failed is not None or self._lingers:
            await self.connection.linger()

    async def _receive(self) -> bytes:
        while True:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                await loop.readable(self._fd)
                continue
            except OSError as error:
                raise Disconnected(str(error)) from error
            if not data:
                raise Disconnected
            return data

    def _close(self) -> None:
        """Nothing more is served."""
        self._over = True
        self._flush()
        self._closed = True
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
        if self._drainer is not None:
            self._drainer.cancel()
        for stream in list(self._streams.values()):
            self._drop(stream)

    # --- in ----------------------------------------------------------------------------------------------

    async def _pump(self) -> bool:
        """Handle what has arrived; False at the end of the connection."""
        while self._handle(_FRAMES):
            self._flush()
            await loop.sleep(0)
        return self._protocol.failed is None

    def _handle(self, frames: int | None) -> bool:
        """Handle so many frames; whether there may be more."""
        now = monotonic()
        while frames is None or frames > 0:
            events = self._protocol.step(now)
            if events is None:
                self._flush_soon()
                self._rearm()
                return False
            for event in events:
                self._apply(event)
            if frames is not None:
                frames -= 1
        return True

    def _apply(self, event: http1.Event) -> None:
        if isinstance(event, http2.Request):
            self._admit(event)
        elif isinstance(event, http2.Data):
            self._data(event)
        elif isinstance(event, http2.Ended):
            stream = self._streams.get(event.stream)
            if stream is not None:
                stream.complete = True
                stream.arrived.set()
        elif isinstance(event, http2.Reset):
            stream = self._streams.get(event.stream)
            if stream is not None and not stream.gone:
                self._drop(stream)
                self._fail(self._protocol.pay())
        elif isinstance(event, http2.Opened):
            for stream in self._streams.values():
                if event.stream in (0, stream.id):
                    stream.room.set()
        elif isinstance(event, http2.Leaving):
            self._leave()
        else:
            self._fail([event])

    def _fail(self, events: list[http1.Event]) -> None:
        if events:
            for stream in list(self._streams.values()):
                self._drop(stream)

    def _admit(self, request: http2.Request) -> None:
        last = self._protocol.last
        if (last is not None and request.stream > last) or len(self._streams) >= self._limits.streams:
            self._fail(self._protocol.refuse(request.stream))
        else:
            self._begin(request.stream, request.head, request.refused)

    def _begin(self, number: int, head: http1.Head, refused: http1.Refused | None) -> Stream:
        stream = Stream(number)
        exchange = StreamExchange(self, stream, head)
        if self._busy is not None:
            stream.hold = self._busy()
            stream.hold.__enter__()
        self._streams[number] = stream
        stream.task = loop.spawn(self._answer(exchange, refused), f"stream {number}")
        # Not in the task itself: one that is cancelled before its first step never gets there.
        stream.task.when_done(lambda _task: self._ended(stream, exchange))
        return stream

    def _data(self, event: http2.Data) -> None:
        stream = self._streams.get(event.stream)
        if stream is None or stream.gone or stream.failure is not None:
            self._protocol.acknowledge(event.stream, event.size)
            return
        stream.body += event.data
        stream.owed += event.size
        if len(stream.body) > self._limits.body_max:
            stream.body.clear()
            stream.failure = http1.Refused(413, f"the body of the request is over {self._limits.body_max} bytes")
        if stream.wanted:
            self.want(stream)
        stream.arrived.set()

    def want(self, stream: Stream) -> None:
        """A handler reads the body: what of it has arrived makes room for more."""
        stream.wanted = True
        owed, stream.owed = stream.owed, 0
        self._protocol.acknowledge(stream.id, owed)
        self._flush_soon()

    # --- streams -----------------------------------------------------------------------------------------

    async def _answer(self, exchange: StreamExchange, refused: http1.Refused | None) -> None:
        async def refuse(_exchange: Exchange) -> None:
            assert refused is not None
            raise refusal(refused)

        try:
            await answer(self._handler if refused is None else refuse, exchange)
        except Disconnected:
            pass

    def _drop(self, stream: Stream) -> None:
        """The client wants no reply."""
        stream.gone = True
        if stream.task is not None:
            stream.task.cancel()

    def _ended(self, stream: Stream, exchange: StreamExchange) -> None:
        """The handler has ended, however."""
        del self._streams[stream.id]
        if stream.hold is not None:
            stream.hold.__exit__(None, None, None)
        self.connection.served += 1
        if self._closed:
            return
        self.want(stream)
        if not stream.gone:
            if not exchange.finished:
                self._protocol.reset(stream.id, http2.CANCEL if exchange.started else http2.INTERNAL_ERROR)
            elif not stream.complete:
                self._protocol.reset(stream.id, http2.NO_ERROR)  # nobody will read the rest of its body
        self._flush_soon()
        self._rearm()

    # --- out ---------------------------------------------------------------------------------------------

    def headers(self, stream: Stream, headers: Headers, *, end: bool) -> None:
        """Send a head. Raises Disconnected and ValueError."""
        if stream.gone:
            raise Disconnected
        self._protocol.headers(stream.id, headers, end=end)
        self._flush_soon()

    async def send(self, stream: Stream, data: bytes, *, end: bool) -> None:
        """Send all of it, in as many frames as it takes. Raises Disconnected."""
        rest = memoryview(data)
        while True:
            size = await self._wait_for_room(stream) if rest else 0
            if stream.gone:
                raise Disconnected
            piece, rest = rest[:size], rest[size:]
            self._protocol.data(stream.id, piece, rest=len(rest), end=end and not rest)
            self._flush_soon()
            self._steps += 1
            if self._steps >= _STEPS:
                # A client as fast as we are never makes us wait for it; the others have their turn all the same.
                self._steps = 0
                self._flush()
                await loop.sleep(0)
            if not rest:
                return

    async def _wait_for_room(self, stream: Stream) -> int:
        """Bytes that may be sent. Raises Disconnected after `write` seconds without room."""
        try:
            with loop.deadline(self._limits.write):
                while True:
                    if stream.gone:
                        raise Disconnected
                    if len(self._out) <= _OUT_MAX and (room := self._protocol.room(stream.id)):
                        return room
                    stream.room.clear()
                    await stream.room.wait()
        except TimeoutError:
            raise Disconnected("the client does not read") from None

    def _flush_soon(self) -> None:
        """What several streams have to say in one turn of the loop is sent together."""
        if not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._closed:
            return
        leaving = self._protocol.last is not None and not self._streams
        if leaving:
            self._protocol.goaway()
        self._out += self._protocol.output()
        self._push()
        if self._out and self._drainer is None:
            self._drainer = loop.spawn(self._drain(), "drain")
        if leaving and not self._out:
            self._stop()

    def _push(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except BlockingIOError:
                break
            except OSError:
                self._out.clear()  # the reader hears of it
                break
            del self._out[:sent]
        if len(self._out) <= _OUT_MAX:
            self._drained.set()

    async def _drain(self) -> None:
        """Send what the client has not taken at once."""
        try:
            while self._out:
                with loop.deadline(self._limits.write):
                    await loop.writable(self._fd)
                self._push()
                for stream in self._streams.values():
                    stream.room.set()
        except TimeoutError:
            self._out.clear()
            self._stop()
        self._drainer = None
        self._flush()

    # --- the end -----------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._lingers = self._lingers or bool(self._streams)
        self._protocol.leave()
        self._flush()

    def _stop(self) -> None:
        """End the reader, wherever it waits."""
        if self._task is not None and not self._over:
            self._over = True
            self._task.cancel()

    def _rearm(self) -> None:
        """Set the deadline of what is awaited now, once when that begins."""
        protocol = self._protocol
        if self._closed:
            return
        if protocol.heading or (protocol.partial and not self._streams):
            awaited, seconds = "head", self._limits.head
        elif not self._streams:
            awaited, seconds = "idle", self._limits.idle
        else:
            awaited, seconds = "", 0.0
        if awaited != self._timed:
            self._timed = awaited
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(seconds, self._expire, awaited) if awaited else None

    def _expire(self, awaited: str) -> None:
        self._timer = None
        self._leave()
        if awaited == "head":
            self._stop()  # with its streams: a connection whose head does not come cannot go on
