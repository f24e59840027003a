# SPDX-License-Identifier: Apache-2.0
"""Connections on the loop, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import loop
from syntrop.common.http.errors import HttpError
from syntrop.common.http.http1 import End, Protocol, Refused
from syntrop.common.http.server import Connection, Exchange, Limits, Server

HOST = b"Host: localhost\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
Handler = Callable[[Exchange], Awaitable[None]]


def pair(kind: str) -> tuple[socket.socket, socket.socket]:
    """Client and server end, both non-blocking."""
    if kind == "unix":
        ends = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            ends = client, listener.accept()[0]
    for end in ends:
        end.setblocking(False)
    return ends


class Client:
    """The other end, on the same loop."""

    def __init__(self, handler: Handler, kind: str = "tcp", limits: Limits | None = None) -> None:
        self.socket, server = pair(kind)
        self.held = 0
        self.connection = Connection(server, handler, limits=limits, busy=self._busy)
        self.task = loop.spawn(self.connection.run())
        self.received = b""

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    async def until(self, end: bytes) -> bytes:
        """What arrives up to and with `end`."""
        with loop.deadline(60):
            while end not in self.received:
                if not await self._read():
                    raise AssertionError(f"closed after {self.received!r}")
        found, self.received = self.received.split(end, 1)
        return found + end

    async def rest(self) -> bytes:
        """What arrives until the server closes."""
        with loop.deadline(60):
            while await self._read():
                pass
        found, self.received = self.received, b""
        return found

    async def _read(self) -> bool:
        while True:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                await loop.readable(self.socket.fileno())
                continue
            except ConnectionResetError:
                return False
            self.received += data
            return bool(data)

    async def ended(self) -> None:
        with loop.deadline(60):
            while not self.task.done:
                await loop.sleep(0.001)

    def close(self) -> None:
        loop.forget(self.socket.fileno())
        self.socket.close()


async def echo(exchange: Exchange) -> None:
    body = await exchange.body()
    await exchange.reply(200, [("x-path", exchange.request.path)], exchange.request.method.encode() + b" " + body)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with loop.deadline(20):
            return await main()

    return loop.run(bounded())


def split(reply: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_requests_on_one_connection_in_order(kind: str) -> None:
    async def main() -> None:
        client = Client(echo, kind)
        client.send(GET)
        status, headers, _ = split(await client.until(b"GET "))
        assert status == 200 and headers["x-path"] == "/a" and headers["content-length"] == "4"
        assert headers["x-request-id"].startswith("req_") and headers["date"].endswith("GMT")
        assert "connection" not in headers
        post = b"POST /b HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nxyz"
        client.send(post + GET + post)
        await client.until(b"POST xyz")
        await client.until(b"GET ")
        await client.until(b"POST xyz")
        assert client.connection.idle and client.connection.served == 4 and client.held == 0
        client.close()
        await client.ended()

    run(main)


def test_last_requests_close() -> None:
    async def main() -> None:
        client = Client(echo)
        client.send(b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n" + GET)
        status, headers, _ = split(await client.rest())
        assert status == 200 and headers["connection"] == "close"
        old = Client(echo)
        old.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert split(await old.until(b"GET "))[1]["connection"] == "keep-alive"
        old.send(b"GET / HTTP/1.0\r\n\r\n")
        assert split(await old.rest())[1]["connection"] == "close"

    run(main)


def test_expect_100_continue() -> None:
    async def main() -> None:
        client = Client(echo)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"hi")
        await client.until(b"POST hi")
        big = Client(echo, limits=Limits(body_max=10))
        big.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 11\r\n\r\n")
        status, headers, body = split(await big.rest())
        assert status == 413 and headers["connection"] == "close"
        assert json.loads(body)["error"]["type"] == "invalid_request_error"

    run(main)


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"nonsense\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999\r\n\r\n" + b"x" * 500_000, 413),
    ],
)
def test_refusals_reach_the_client_in_openai_s_shape(wire: bytes, status: int) -> None:
    async def main() -> None:
        client = Client(echo)
        client.socket.setblocking(True)
        client.socket.settimeout(60)
        await loop.thread(_send, client, wire)
        client.socket.setblocking(False)
        found, headers, body = split(await client.rest())
        assert found == status and headers["connection"] == "close"
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}

    run(main)


def _send(client: Client, wire: bytes) -> None:
    with contextlib.suppress(OSError):
        client.socket.sendall(wire)


def test_streams() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.start(200, [("content-type", "text/plain")], b"one")
        await exchange.send(b"two")
        await exchange.finish()

    async def main() -> None:
        client = Client(handler)
        client.send(GET + GET.replace(b"GET", b"HEAD") + b"GET / HTTP/1.0\r\n\r\n")
        reply = await client.until(b"0\r\n\r\n")
        assert split(reply)[1]["transfer-encoding"] == "chunked"
        assert split(reply)[2] == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert split(await client.until(b"\r\n\r\n"))[2] == b""
        _, headers, body = split(await client.rest())
        assert body == b"onetwo" and headers["connection"] == "close" and "transfer-encoding" not in headers

    run(main)


def test_errors_of_a_handler(capfd: pytest.CaptureFixture[str]) -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/http":
            raise HttpError(429, "Later.", headers=[("retry-after", "1")])
        if exchange.request.path == "/started":
            await exchange.start(200, [], b"x")
        raise ValueError("a secret detail")

    async def main() -> None:
        client = Client(handler)
        client.send(GET.replace(b"/a", b"/http"))
        status, headers, _ = split(await client.until(b"}}"))
        assert status == 429 and headers["retry-after"] == "1" and "connection" not in headers
        client.send(GET)
        status, headers, body = split(await client.until(b"}}"))
        assert status == 500 and headers["x-should-retry"] == "false" and b"secret" not in body
        assert headers["x-request-id"].encode() in body
        client.send(GET.replace(b"/a", b"/started"))
        _, _, body = split(await client.rest())
        assert body == b"1\r\nx\r\n", "without the last chunk the client knows that it is not whole"

    run(main)
    assert "a secret detail" in capfd.readouterr().err


def test_a_compressed_body_is_refused_and_not_taken_for_text() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.reply(200, (), await exchange.body())

    async def main() -> None:
        client = Client(handler)
        length = b"Content-Length: 2\r\n"
        client.send(b"POST /a HTTP/1.1\r\n" + HOST + length + b"Content-Encoding: identity\r\n\r\n{}")
        assert (await client.until(b"{}")).startswith(b"HTTP/1.1 200 ")
        client.send(b"POST /a HTTP/1.1\r\n" + HOST + length + b"Content-Encoding: gzip\r\n\r\n{}")
        reply = await client.rest()
        assert reply.startswith(b"HTTP/1.1 415 ") and b"gzip" in reply

    loop.run(main())


def test_a_body_that_nobody_read_ends_the_connection() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.reply(200, (), b"done")

    async def main() -> None:
        client = Client(handler)
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nab")
        assert split(await client.until(b"done"))[1]["connection"] == "close"
        client.send(b"cde" + GET)
        assert await client.rest() == b""
        whole = Client(handler)
        whole.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab" + GET)
        assert "connection" not in split(await whole.until(b"done"))[1]
        await whole.until(b"done")

    run(main)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("phase", ["thinking", "streaming", "blocked", "body"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_hang_up_cancels_the_handler(kind: str, phase: str, pipelined: bool) -> None:
    cancelled: list[float] = []

    async def handler(exchange: Exchange) -> None:
        try:
            if phase == "body":
                await exchange.body()
            if phase == "thinking":
                await loop.sleep(30)
            await exchange.start(200)
            while True:
                await exchange.send(b"x" * (1 << 20) if phase == "blocked" else b"x")
                if phase == "streaming":
                    await loop.sleep(30)
        finally:
            cancelled.append(monotonic())

    async def main() -> float:
        client = Client(handler, kind)
        if phase == "body":
            client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nab")
        else:
            client.send(GET + GET * pipelined)
        await loop.sleep(0.05)
        left = monotonic()
        client.close()
        await client.ended()
        assert client.held == 0
        return cancelled[0] - left

    assert run(main) < 0.05


def test_ending_one_s_sending_is_no_hang_up_on_a_unix_socket() -> None:
    async def handler(exchange: Exchange) -> None:
        await loop.sleep(0.05)
        await exchange.reply(200, (), b"done")

    async def main() -> None:
        client = Client(handler, "unix")
        client.send(GET)
        client.socket.shutdown(socket.SHUT_WR)
        assert split(await client.rest())[2] == b"done"

    run(main)


def test_slow_clients() -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.start(200)
        while True:
            await exchange.send(b"x" * 65536)

    limits = Limits(idle=0.1, head=0.1, body=0.1, write=0.1)

    async def main() -> None:
        idle = Client(echo, limits=limits)
        assert await idle.rest() == b""
        head = Client(echo, limits=limits)
        head.send(GET[:10])
        assert split(await head.rest())[0] == 408
        body = Client(echo, limits=limits)
        body.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nab")
        assert split(await body.rest())[0] == 408
        reader = Client(flood, limits=limits)
        reader.send(GET)
        started = monotonic()
        await reader.ended()
        assert monotonic() - started < 2

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
        client = Client(flood)
        client.send(GET)
        await loop.sleep(0.2)
        before = sent
        await loop.sleep(0.2)
        assert sent == before, "what the kernel does not take waits with the handler"
        await client.until(b"x" * 1000)
        client.close()
        await client.ended()

    run(main)


PIECES = [
    GET,
    b"POST /b HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nxyz",
    b"POST /b HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /b HTTP/1.1\r\n" + HOST + b"Content-Length: 9999999999\r\n\r\n",
    b"POST /b HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc",
    b"\x00\xff",
    b"\r\n",
]


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), data=st.data())
@settings(deadline=None, max_examples=60)
def test_split_merged_and_truncated_requests(pieces: list[bytes], data: st.DataObject) -> None:
    """Each whole request is answered, and what is none is refused once, however the bytes are cut."""
    wire = b"".join(pieces)
    wire = wire[: data.draw(st.integers(1, len(wire)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    events = Protocol().receive(wire)
    expected = [200 if isinstance(e, End) else e.status for e in events if isinstance(e, End | Refused)]

    async def main() -> list[int]:
        client = Client(echo, "unix")
        for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            with contextlib.suppress(BrokenPipeError):
                client.send(wire[start:end])
            await loop.sleep(0)
        client.socket.shutdown(socket.SHUT_WR)
        replies = await client.rest()
        await client.ended()
        client.close()
        return [int(part[:3]) for part in replies.split(b"HTTP/1.1 ")[1:]]

    assert run(main) == expected


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_retiring(kind: str) -> None:
    async def slow(exchange: Exchange) -> None:
        await loop.sleep(0.05)
        await exchange.reply(200, (), b"done")

    async def main() -> None:
        idle = Client(slow, kind)
        idle.send(GET)
        await idle.until(b"done")
        idle.connection.retire()
        await idle.ended()
        assert await idle.rest() == b""

        busy = Client(slow, kind)
        busy.send(GET)
        await loop.sleep(0.01)
        busy.connection.retire()
        assert split(await busy.rest())[1]["connection"] == "close"

        arrived = Client(slow, kind)
        arrived.send(GET)
        await arrived.until(b"done")
        arrived.send(GET)
        arrived.connection.retire()
        status, headers, body = split(await arrived.rest())
        assert (status, headers["connection"], body) == (200, "close", b"done")

    run(main)


def test_caps_on_connections(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        server = Server(echo, connections_max=3, connections_per_uid=2)
        mine = [server.connect(pair("unix")[1]) for _ in range(3)]
        assert [one is None for one in mine] == [False, False, True]
        ends = [pair("tcp") for _ in range(2)]
        others = [server.connect(end) for _, end in ends]
        assert [one is None for one in others] == [False, True]
        with contextlib.suppress(TimeoutError), loop.deadline(0.05):
            assert mine[0] is not None
            await mine[0].run()
        assert server.connect(pair("unix")[1]) is not None

    run(main)
    assert "Refused" in capfd.readouterr().err
