# SPDX-License-Identifier: Apache-2.0
"""What must not be smuggled past HTTP/1.1, over a real connection: one refusal, and nothing of what follows it."""

from __future__ import annotations

import socket

import pytest

from syntrop.common import loop
from syntrop.common.http.server import Connection, Exchange, Limits

HEAD = b"POST /first HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"

SMUGGLING = {
    "length and coding": HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding in disguise": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a coding with parameters": HEAD + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "one length twice": HEAD + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": HEAD + b"Content-Length: 0, 0\r\n\r\n",
    "a length in hexadecimals": HEAD + b"Content-Length: 0x0\r\n\r\n",
    "a length with an underscore": HEAD + b"Content-Length: 1_0\r\n\r\n0123456789",
    "a blank before the colon": HEAD + b"Content-Length : 0\r\n\r\n",
    "a blank before the name": HEAD + b" Content-Length: 0\r\n\r\n",
    "a folded header": HEAD + b"X: a\r\n\tContent-Length: 9\r\n\r\n",
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "a line feed at the head's end": HEAD + b"X: a\r\n\n",
    "a carriage return in a value": HEAD + b"X: a\rContent-Length: 0\r\n\r\n",
    "a NUL in a value": HEAD + b"X: a\0\r\n\r\n",
    "a chunk size with a sign": CHUNKED + b"+1\r\na\r\n0\r\n\r\n",
    "a chunk size with a blank": CHUNKED + b" 1\r\na\r\n0\r\n\r\n",
    "a chunk size past 64 bits": CHUNKED + b"10000000000000001\r\na\r\n0\r\n\r\n",
    "no chunk size": CHUNKED + b"\r\na\r\n0\r\n\r\n",
    "a chunk that is longer": CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
    "a chunk that is shorter": CHUNKED + b"5\r\na\r\n0\r\n\r\n",
    "a line feed in an extension": CHUNKED + b"1;a\nb\r\na\r\n0\r\n\r\n",
    "a line feed behind a size": CHUNKED + b"1\na\r\n0\r\n\r\n",
    "a line feed behind a chunk": CHUNKED + b"1\r\na\n0\r\n\r\n",
    "an endless extension": CHUNKED + b"1;" + b"x" * 200_000,
    "an endless trailer": CHUNKED + b"0\r\nX: " + b"y" * 200_000,
    "a length in a trailer": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "a coding in a trailer": CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two hosts": HEAD + b"Host: elsewhere\r\n\r\n",
    "a second version": b"GET / HTTP/1.1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2 in HTTP/1.1": b"PRI * HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("wire", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_what_is_smuggled_reaches_no_handler(wire: bytes) -> None:
    seen: list[str] = []

    async def handler(exchange: Exchange) -> None:
        seen.append(exchange.request.path)
        await exchange.body()
        await exchange.reply(200, (), b"done")

    async def main() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        task = loop.spawn(Connection(theirs, handler, limits=Limits(head=5, body=5)).run())
        rest, reply = memoryview(wire + SMUGGLED), b""
        with loop.deadline(20):
            while True:
                try:
                    while rest:
                        rest = rest[ours.send(rest) :]
                except BlockingIOError:
                    pass
                except OSError:
                    rest = rest[:0]
                try:
                    piece = ours.recv(65536)
                except BlockingIOError:
                    await loop.sleep(0.001)
                    continue
                except ConnectionResetError:
                    break
                if not piece:
                    break
                reply += piece
            ours.close()
            while not task.done:
                await loop.sleep(0.001)
        return reply

    reply = loop.run(main())
    assert seen in ([], ["/first"])
    statuses = [int(part[:3]) for part in reply.split(b"HTTP/1.1 ")[1:]]
    assert len(statuses) == 1 and statuses[0] in (400, 431, 501, 505)
    assert b"connection: close" in reply
