# SPDX-License-Identifier: Apache-2.0
"""One request and its reply, as handlers see them, whichever version of HTTP carries them."""

from __future__ import annotations

import os
from time import time

from syntrop.common import journal, loop
from syntrop.common.http import http1
from syntrop.common.http.errors import HttpError, InternalFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from syntrop.common.http.server import Connection
    from syntrop.common.peer import Peer

    Handler = Callable[["Exchange"], Awaitable[None]]
    Headers = Iterable[tuple[str, str]]

JSON = ("content-type", "application/json")


class Disconnected(Exception):
    """The client is gone, or so slow that it was given up. Handlers let it pass."""


class Limits:
    """Deadlines in seconds and caps in bytes. `idle`: between requests; `head`, `body`: to receive them whole;
    `write`: without progress. `streams`: requests at a time on one connection of HTTP/2."""

    __slots__ = ("body", "body_max", "head", "idle", "streams", "write")

    def __init__(
        self,
        *,
        idle: float = 75.0,
        head: float = 10.0,
        body: float = 120.0,
        write: float = 45.0,
        body_max: int = http1.BODY_MAX,
        streams: int = 128,
    ) -> None:
        self.idle = idle
        self.head = head
        self.body = body
        self.write = write
        self.body_max = body_max
        self.streams = streams


class Exchange:
    """One request and its reply, as a handler sees them; this one speaks HTTP/1.1.

    Either `reply()`, or `start()`, any number of `send()` and `finish()`. A handler that raises HttpError before
    it started is answered so; one that ends without `finish()` breaks the connection off, or the stream in
    HTTP/2, which tells the client that the reply is not whole.
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
        return self._connection.peer.uid

    @property
    def peer(self) -> Peer:
        """Who the client is, as far as the kernel knows."""
        return self._connection.peer

    async def body(self) -> bytes:
        """The whole body. Raises HttpError (408, 413, 415 and malformed ones) and Disconnected."""
        connection = self._connection
        coding = self.request.header("content-encoding")
        if coding is not None and coding.strip().lower() != "identity":
            self.close = True
            raise compressed(coding)
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
                        raise refusal(event)
                    else:
                        break
        except TimeoutError:
            self.close = True
            raise late() from None
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


async def answer(handler: Handler, exchange: Exchange) -> None:
    """Have the handler answer, and answer for it when it fails. Raises Disconnected."""
    try:
        await handler(exchange)
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
        await exchange.reply(failure.status, (*failure.headers, JSON), failure.encode())


def refusal(refused: http1.Refused) -> HttpError:
    return HttpError(refused.status, f"{refused.reason[0].upper()}{refused.reason[1:]}.")


def compressed(coding: str) -> HttpError:
    return HttpError(415, f"A body with the encoding {coding[:40]} is not read; send it as it is.")


def late() -> HttpError:
    return HttpError(408, "The body of the request did not arrive in time.")
