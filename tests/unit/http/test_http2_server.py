# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 on the loop, over real sockets, with h2's own client at the other end, or none at all."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import loop
from syntrop.common.http import http2
from syntrop.common.http.errors import HttpError
from syntrop.common.http.server import Connection, Disconnected, Exchange, Limits

HEADS = [(":method", "GET"), (":scheme", "http"), (":path", "/a"), (":authority", "localhost")]
Handler = Callable[[Exchange], Awaitable[None]]


class Reply:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.interim: list[int] = []
        self.body = b""
        self.ended = False
        self.reset: int | None = None


class Client:
    """h2's client on the same loop. What was received is handled only in `until()`: a client as slow as needed."""

    def __init__(self, handler: Handler, kind: str = "tcp", limits: Limits | None = None) -> None:
        if kind == "unix":
            self.socket, server = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.socket = socket.create_connection(listener.getsockname())
                server = listener.accept()[0]
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.held = 0
        self.connection = Connection(server, handler, limits=limits, busy=self._busy)
        self.task = loop.spawn(self.connection.run())
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.replies: dict[int, Reply] = {}
        self.goaway: tuple[int, int] | None = None  # last stream, code
        self.closed = False  # by the server
        self.gives_room = True

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

    def begin(self) -> Client:
        self.h2.initiate_connection()
        self.flush()
        return self

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)

    def ask(self, path: str = "/a", *, method: str = "GET", body: bytes | None = None, more: bool = False) -> int:
        """Begin a request; its stream."""
        stream = self.h2.get_next_available_stream_id()
        heads = [(":method", method), HEADS[1], (":path", path), HEADS[3]]
        self.h2.send_headers(stream, heads, end_stream=body is None and not more)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=not more)
        self.replies[stream] = Reply()
        self.flush()
        return stream

    async def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Take what arrives until the condition holds, or the server has closed."""
        with loop.deadline(seconds):
            while not condition():
                assert not self.closed, "the server has closed"
                await self._take()

    async def ended(self, stream: int) -> Reply:
        reply = self.replies[stream]
        await self.until(lambda: reply.ended or reply.reset is not None)
        return reply

    async def end(self) -> None:
        """Take what arrives until the server closes."""
        with loop.deadline(60):
            while not self.closed:
                await self._take()
            self.close()
            await settled(lambda: self.task.done)

    async def _take(self) -> None:
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            await loop.readable(self.socket.fileno())
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
        for event in self.h2.receive_data(data) if data else []:
            self._note(event)
        with contextlib.suppress(OSError):
            self.flush()

    def _note(self, event: h2.events.Event) -> None:
        reply = self.replies.get(getattr(event, "stream_id", 0) or 0, Reply())
        if isinstance(event, h2.events.ResponseReceived):
            reply.headers = {str(name): str(value) for name, value in event.headers or ()}
            reply.status = int(reply.headers[":status"])
        elif isinstance(event, h2.events.InformationalResponseReceived):
            reply.interim += [int(value) for name, value in event.headers or () if name == ":status"]
        elif isinstance(event, h2.events.DataReceived):
            reply.body += event.data or b""
            if self.gives_room:
                self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        elif isinstance(event, h2.events.StreamEnded):
            reply.ended = True
        elif isinstance(event, h2.events.StreamReset):
            reply.reset = int(event.error_code or 0)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event.last_stream_id or 0, int(event.error_code or 0)

    def close(self) -> None:
        loop.forget(self.socket.fileno())
        self.socket.close()


async def settled(condition: Callable[[], object]) -> None:
    with loop.deadline(60):
        while not condition():
            await loop.sleep(0.001)


async def echo(exchange: Exchange) -> None:
    body = await exchange.body()
    await exchange.reply(200, [("X-Path", exchange.request.path)], exchange.request.method.encode() + b" " + body)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with loop.deadline(30):
            return await main()

    return loop.run(bounded())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_requests_side_by_side(kind: str) -> None:
    gate = loop.Event()

    async def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/slow":
            await gate.wait()
        await echo(exchange)

    async def main() -> None:
        client = Client(handler, kind).begin()
        slow = client.ask("/slow", method="POST", body=b"x")
        quick = await client.ended(client.ask("/quick"))
        assert quick.status == 200 and quick.body == b"GET " and quick.headers["x-path"] == "/quick"
        assert quick.headers["x-request-id"].startswith("req_") and quick.headers["content-length"] == "4"
        assert not client.connection.idle and client.held == 1 and not client.replies[slow].ended
        gate.set()
        assert (await client.ended(slow)).body == b"POST x"
        head = await client.ended(client.ask(method="HEAD"))
        assert head.body == b"" and head.headers["content-length"] == "5"
        await settled(lambda: client.connection.idle)
        assert client.connection.served == 3 and client.held == 0
        client.close()
        await settled(lambda: client.task.done)

    run(main)


def test_bodies_larger_than_every_window() -> None:
    size = 3_000_000

    async def handler(exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.start(200, (), body[:10])
        await exchange.send(body[10:])
        await exchange.finish()

    async def main() -> None:
        client = Client(handler).begin()
        body = bytes(range(256)) * (size // 256)
        stream = client.ask(method="POST", more=True)
        rest = memoryview(body)
        with loop.deadline(20):
            while rest:
                room = min(client.h2.local_flow_control_window(stream), 16384)
                if not room:
                    await client._take()
                    continue
                client.h2.send_data(stream, bytes(rest[:room]), end_stream=len(rest) <= room)
                rest = rest[room:]
                data = client.h2.data_to_send()
                while data:
                    with contextlib.suppress(BlockingIOError):
                        data = data[client.socket.send(data) :]
                    if data:
                        await loop.writable(client.socket.fileno())
        assert (await client.ended(stream)).body == body
        client.close()

    run(main)


def test_errors_of_a_handler(capfd: pytest.CaptureFixture[str]) -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/http":
            raise HttpError(429, "Later.", headers=[("retry-after", "1")])
        if exchange.request.path == "/started":
            await exchange.start(200, [], b"x")
        if exchange.request.path == "/header":
            await exchange.reply(200, [("x", "a\r\nb: c")])
        raise ValueError("a secret detail")

    async def main() -> None:
        client = Client(handler).begin()
        reply = await client.ended(client.ask("/http"))
        assert reply.status == 429 and reply.headers["retry-after"] == "1"
        assert set(json.loads(reply.body)["error"]) == {"message", "type", "param", "code"}
        for path in ("/a", "/header"):
            reply = await client.ended(client.ask(path))
            assert reply.status == 500 and b"secret" not in reply.body
        reply = await client.ended(client.ask("/started"))
        assert reply.body == b"x" and reply.reset is not None, "the client knows that it is not whole"
        assert (await client.ended(client.ask("/http"))).status == 429
        client.close()

    run(main)
    assert "a secret detail" in capfd.readouterr().err


def test_bodies_that_are_refused() -> None:
    async def main() -> None:
        client = Client(echo, limits=Limits(body_max=10, body=0.1)).begin()
        large = await client.ended(client.ask(method="POST", body=b"x" * 11, more=True))
        assert large.status == 413 and large.ended
        late = await client.ended(client.ask(method="POST", body=b"x", more=True))
        assert late.status == 408 and late.ended
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, [*HEADS, ("content-length", "11")])
        client.replies[stream] = Reply()
        client.flush()
        assert (await client.ended(stream)).status == 413
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, [*HEADS, ("content-encoding", "gzip")], end_stream=True)
        client.replies[stream] = Reply()
        client.flush()
        assert (await client.ended(stream)).status == 415
        await settled(lambda: client.connection.idle)
        client.close()

    run(main)


def test_expect_100_continue() -> None:
    async def main() -> None:
        client = Client(echo).begin()
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, [(":method", "POST"), *HEADS[1:], ("expect", "100-continue")])
        reply = client.replies[stream] = Reply()
        client.flush()
        await client.until(lambda: reply.interim)
        assert reply.interim == [100] and not reply.status
        client.h2.send_data(stream, b"hi", end_stream=True)
        client.flush()
        assert (await client.ended(stream)).body == b"POST hi"
        client.close()

    run(main)


@pytest.mark.parametrize("how", ["reset", "closed"])
@pytest.mark.parametrize("phase", ["thinking", "streaming", "starved", "body"])
def test_a_hang_up_cancels_the_handler(phase: str, how: str) -> None:
    running = loop.Event()
    gone: list[str] = []

    async def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/other":
            await echo(exchange)
            return
        running.set()
        try:
            if phase == "body":
                await exchange.body()
            if phase == "thinking":
                await loop.sleep(30)
            await exchange.start(200)
            while True:
                await exchange.send(b"x" * (1 << 20) if phase == "starved" else b"x")
                if phase == "streaming":
                    await loop.sleep(30)
        except (loop.Cancelled, Disconnected) as error:
            gone.append(type(error).__name__)
            raise

    async def main() -> None:
        client = Client(handler).begin()
        client.gives_room = False
        stream = client.ask(method="POST", body=b"x", more=phase == "body")
        await running.wait()
        if phase in ("streaming", "starved"):
            await client.until(lambda: client.replies[stream].body)
        if how == "closed":
            client.close()
            await settled(lambda: client.task.done and gone)
        else:
            client.h2.reset_stream(stream)
            client.flush()
            await settled(lambda: gone)
            client.gives_room = True
            if phase != "starved":  # where the window of the connection is used up
                assert (await client.ended(client.ask("/other"))).body == b"GET "
            client.close()
        await settled(lambda: client.held == 0)
        assert gone == ["Cancelled"]

    run(main)


def test_a_stream_that_is_reset_before_it_begins_never_runs() -> None:
    ran: list[str] = []

    async def handler(exchange: Exchange) -> None:
        ran.append(exchange.request.path)
        await exchange.reply(200)

    async def main() -> None:
        client = Client(handler).begin()
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, HEADS, end_stream=True)
        client.h2.reset_stream(stream)
        assert (await client.ended(client.ask("/b"))).status == 200
        assert ran == ["/b"]
        await settled(lambda: client.held == 0)
        client.close()

    run(main)


def test_rapid_resets_end_the_connection_and_hold_nothing() -> None:
    begun = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal begun
        begun += 1
        await loop.sleep(30)

    async def main() -> None:
        client = Client(handler).begin()
        for _ in range(1000):
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, HEADS, end_stream=True)
            client.h2.reset_stream(stream)
        client.flush()
        await client.end()
        assert client.goaway is not None and client.goaway[1] == http2.ENHANCE_YOUR_CALM
        assert client.held == 0 and begun < 300
        client.close()

    run(main)


def test_streams_over_the_cap_are_refused_and_may_be_tried_again() -> None:
    gate = loop.Event()

    async def handler(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.reply(200)

    async def main() -> None:
        client = Client(handler, limits=Limits(streams=3)).begin()
        streams = [client.ask() for _ in range(5)]  # before it knows of our settings
        refused = [(await client.ended(stream)).reset for stream in streams[3:]]
        assert refused == [http2.REFUSED_STREAM] * 2 and client.held == 3
        gate.set()
        assert [(await client.ended(stream)).status for stream in streams[:3]] == [200] * 3
        assert (await client.ended(client.ask())).status == 200
        client.close()

    run(main)


def test_a_stream_without_room_is_given_up_by_itself() -> None:
    ends: list[str] = []

    async def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/small":
            await exchange.reply(200)
            return
        try:
            await exchange.reply(200, (), b"x" * 200_000)
        except Disconnected:
            ends.append("given up")
            raise

    async def main() -> None:
        client = Client(handler, limits=Limits(write=0.2)).begin()
        client.gives_room = False
        stream = client.ask("/large")
        reply = await client.ended(stream)
        assert reply.reset == http2.CANCEL and len(reply.body) == 65535 and ends == ["given up"]
        assert (await client.ended(client.ask("/small"))).status == 200
        await settled(lambda: client.held == 0)
        client.close()

    run(main)


def test_a_slow_reader_holds_the_handler_up() -> None:
    sent = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start(200)
        while True:
            await exchange.send(b"x" * 65536)
            sent += 65536

    async def main() -> None:
        client = Client(flood, "unix", limits=Limits(write=0.5))
        wide = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30}
        client.h2.local_settings = h2.settings.Settings(client=True, initial_values=wide)
        client.begin()
        client.h2.increment_flow_control_window(1 << 30)
        client.ask()
        await settled(lambda: client.task.done)  # nothing is read: the connection is given up
        assert sent < 4_000_000 and client.held == 0
        client.close()

    run(main)


def test_a_client_that_does_not_read_its_acknowledgements_is_not_read() -> None:
    async def main() -> None:
        client = Client(echo, "unix", limits=Limits(write=0.5)).begin()
        ping = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            for _ in range(1000):
                client.socket.sendall(ping * 100)
                await loop.sleep(0)
        await settled(lambda: client.task.done)
        client.close()

    run(main)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_retiring(kind: str) -> None:
    gate = loop.Event()

    async def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/slow":
            await gate.wait()
        await exchange.reply(200, (), b"done")

    async def main() -> None:
        idle = Client(handler, kind).begin()
        first = idle.ask()
        await idle.ended(first)
        await settled(lambda: idle.connection.idle)
        idle.connection.retire()
        await settled(lambda: idle.task.done)
        await idle.end()
        assert idle.goaway == (first, 0)

        arrived = Client(handler, kind).begin()
        await arrived.ended(arrived.ask())
        await settled(lambda: arrived.connection.idle)
        last = arrived.ask()
        arrived.connection.retire()
        await arrived.end()
        assert arrived.goaway == (last, 0) and arrived.replies[last].body == b"done"

        busy = Client(handler, kind).begin()
        slow = busy.ask("/slow")
        await settled(lambda: busy.held == 1)
        busy.connection.retire()
        # What begins later is refused, and may be asked elsewhere.
        crossed = busy.ask("/late")
        assert (await busy.ended(crossed)).reset == http2.REFUSED_STREAM
        gate.set()
        await busy.end()
        assert busy.goaway == (slow, 0) and busy.replies[slow].body == b"done"

    run(main)


def test_an_idle_connection_ends_with_goaway_and_pings_do_not_keep_it() -> None:
    async def main() -> None:
        client = Client(echo, limits=Limits(idle=0.3)).begin()
        await client.ended(client.ask())
        started = monotonic()

        async def ping() -> None:
            while True:
                client.h2.ping(bytes(8))
                with contextlib.suppress(OSError):
                    client.flush()
                await loop.sleep(0.05)

        pinging = loop.spawn(ping())
        with contextlib.suppress(h2.exceptions.ProtocolError):
            await client.end()
        await loop.stop(pinging)
        await settled(lambda: client.task.done)
        assert monotonic() - started < 10
        client.close()

    run(main)


@pytest.mark.parametrize(
    "wire",
    [
        http2.PREFACE[:5],
        http2.PREFACE,
        http2.PREFACE + b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x05\x01",
        http2.PREFACE + b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x01\x01\0\0\0\0\x01\x82",
    ],
    ids=["half a preface", "no settings", "half a frame", "half a head"],
)
def test_what_does_not_come_is_not_waited_for(wire: bytes) -> None:
    async def main() -> None:
        client = Client(echo, limits=Limits(head=0.2))
        client.socket.sendall(wire)
        await settled(lambda: client.task.done)
        assert client.held == 0
        client.close()

    run(main)


def test_an_upgrade() -> None:
    async def main() -> None:
        client = Client(echo)
        setting = client.h2.initiate_upgrade_connection()
        assert setting is not None
        client.socket.sendall(
            b"GET /up HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: " + setting + b"\r\n\r\n"
        )
        received = b""
        with loop.deadline(60):
            while b"\r\n\r\n" not in received:
                try:
                    received += client.socket.recv(1)
                except BlockingIOError:
                    await loop.readable(client.socket.fileno())
        assert received.startswith(b"HTTP/1.1 101 ")
        client.replies[1] = Reply()
        client.flush()
        reply = await client.ended(1)
        assert reply.status == 200 and reply.headers["x-path"] == "/up" and reply.body == b"GET "
        assert (await client.ended(client.ask("/next"))).headers["x-path"] == "/next"
        await settled(lambda: client.connection.idle and client.held == 0)
        client.close()

    run(main)


@pytest.mark.parametrize(
    "head",
    [
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: websocket\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nHTTP2-Settings: \r\n",
    ],
)
def test_an_upgrade_out_of_order_is_passed_over(head: bytes) -> None:
    async def main() -> None:
        client = Client(echo)
        wire = b"GET /a HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n"
        client.socket.sendall(wire)
        received = b""
        with loop.deadline(60):
            while not received.endswith(b"GET "):
                try:
                    received += client.socket.recv(65536)
                except BlockingIOError:
                    await loop.readable(client.socket.fileno())
        assert received.startswith(b"HTTP/1.1 200 ")
        client.close()

    run(main)


def frames(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


GET, POST = (b"\x82\x86\x84\x41\x09localhost", b"\x83\x86\x84\x41\x09localhost")
PIECES = st.one_of(
    st.builds(frames, st.integers(0, 11), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40)),
    st.sampled_from([frames(1, 5, 1, GET), frames(1, 4, 1, POST), frames(1, 5, 3, GET)]),
    st.binary(max_size=30),
)


@given(st.lists(PIECES, max_size=12))
@settings(deadline=None, max_examples=150)
def test_whatever_comes_no_task_is_held(pieces: list[bytes]) -> None:
    async def main() -> None:
        client = Client(echo, "unix")
        for piece in [http2.PREFACE, frames(4, 0, 0, b""), *pieces]:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.socket.sendall(piece)
            await loop.sleep(0)
        client.close()
        await settled(lambda: client.task.done and client.held == 0)
        if client.task._error is not None:
            assert isinstance(client.task._error, loop.Cancelled)

    run(main)
