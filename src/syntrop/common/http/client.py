# SPDX-License-Identifier: Apache-2.0
"""Requests to one server over HTTP/1.1, on the loop, with the connections kept for the next ones.

A connection carries one request at a time, and closing a response before its end hangs up: that is how work
elsewhere is cancelled. Every wait has a deadline. A kept connection that ended before a byte of the answer came
was most likely given up by the server while it was idle; the request is sent again then, once, on a new one.

Redirects are answers like others here: whoever asks decides, and nobody follows them with a key in hand.
"""

from __future__ import annotations

from time import monotonic

from syntrop import __version__
from syntrop.common import loop
from syntrop.common.http import wire
from syntrop.common.http.response import BadResponse, Inflater, Parser, Truncated
from syntrop.common.http.wire import Broken, Unreachable, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    Headers = Iterable[tuple[str, str]]


class Silent(Exception):
    """The server said nothing, or took nothing, for too long."""


class TooMany(Exception):
    """As many connections as there may be are in use."""


class _Stale(Exception):
    """A kept connection had ended already."""


class Limits:
    """Deadlines in seconds: `connect` with the look-up of the name and TLS; `write`: without progress; `head`: for
    the whole head of the answer; `idle`: between pieces of its body; `kept`: unused. Then the most connections
    that are open, and kept."""

    __slots__ = ("connect", "connections", "head", "idle", "kept", "kept_most", "write")

    def __init__(
        self,
        *,
        connect: float = 10.0,
        write: float = 45.0,
        head: float = 300.0,
        idle: float = 300.0,
        kept: float = 30.0,
        connections: int = 2048,
        kept_most: int = 32,
    ) -> None:
        self.connect = connect
        self.write = write
        self.head = head
        self.idle = idle
        self.kept = kept
        self.connections = connections
        self.kept_most = kept_most


class Client:
    """One server, by the URL that all paths are below. `authorities`: see `tls.rules`. Raises ValueError for a URL
    that is none."""

    def __init__(self, url: str, *, limits: Limits | None = None, authorities: str | None = None) -> None:
        self.limits = limits or Limits()
        self.secure, self.host, self.port, self.base = split_url(url)
        self._authorities = authorities
        self._rules: ssl.SSLContext | None = None
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.secure else 80)
        self._authority = name if usual else f"{name}:{self.port}"
        self._kept: list[tuple[Wire, float]] = []  # with the time since when, the oldest first
        self._sweeping: loop.Timer | None = None
        self._closed = False
        self.open = 0  # connections, kept ones and those being made included

    async def request(self, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Response:
        """Send a request and wait for the head of its answer; the caller closes the response.

        Raises Unreachable, TooMany, Silent, Broken and BadResponse.
        """
        data = self._encode(method, path, headers, body)
        kept = self._take()
        if kept is not None:
            try:
                return await self._exchange(kept, data, fresh=False)
            except _Stale:
                pass
        return await self._exchange(await self._connect(), data, fresh=True)

    def _encode(self, method: str, path: str, headers: Headers, body: bytes) -> bytes:
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"host: {self._authority}",
            f"user-agent: syntrop/{__version__}",
            "accept-encoding: identity",
        ]
        if body or method == "POST":
            lines.append(f"content-length: {len(body)}")
        for name, value in headers:
            if not value.isprintable():
                raise ValueError(f"header {name} has a control character in its value")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    async def _exchange(self, line: Wire, data: bytes, *, fresh: bool) -> Response:
        response = Response(self, line)
        try:
            await response.begin(data)
        except Truncated:
            response.close()
            if not response.received and not fresh:
                raise _Stale from None
            raise Broken("the connection ended before the answer was complete") from None
        except Broken:
            response.close()
            if not response.received and not fresh:
                raise _Stale from None
            raise
        except BaseException:
            response.close()
            raise
        return response

    # --- connections -------------------------------------------------------------------------------------

    async def _connect(self) -> Wire:
        if self.open >= self.limits.connections:
            raise TooMany(f"{self.open} connections to {self.host} are in use")
        self.open += 1
        try:
            with loop.deadline(self.limits.connect):
                if not self.secure:
                    return Wire(await wire.connect(self.host, self.port))
                if self._rules is None:
                    self._rules = await loop.thread(_rules, self._authorities)
                from syntrop.common.http import tls

                return await tls.secure(await wire.connect(self.host, self.port), self.host, self._rules)
        except TimeoutError:
            self.open -= 1
            raise Unreachable(f"no connection within {self.limits.connect:g} s") from None
        except BaseException:
            self.open -= 1
            raise

    def _take(self) -> Wire | None:
        """The connection that was used last, if any that is kept is still good."""
        while self._kept:
            line, _ = self._kept.pop()
            loop.forget(line.fd)
            if line.quiet():
                return line
            self._drop(line)
        return None

    def give_back(self, line: Wire, *, reusable: bool) -> None:
        """End the use of a connection: it is kept, or closed."""
        if not reusable or self._closed or len(self._kept) >= self.limits.kept_most:
            self._drop(line)
            return
        self._kept.append((line, monotonic()))
        loop.hangup(line.fd, half=True).when_done(lambda _: self._ended(line))
        if self._sweeping is None:
            self._sweeping = loop.call_later(self.limits.kept, self._sweep)

    def _drop(self, line: Wire) -> None:
        line.close()
        self.open -= 1

    def _ended(self, line: Wire) -> None:
        """The server closed a connection that was kept."""
        for i, (one, _) in enumerate(self._kept):
            if one is line:
                del self._kept[i]
                self._drop(line)
                return

    def _sweep(self) -> None:
        self._sweeping = None
        now = monotonic()
        while self._kept and self._kept[0][1] + self.limits.kept <= now:
            self._drop(self._kept.pop(0)[0])
        if self._kept:
            self._sweeping = loop.call_later(self._kept[0][1] + self.limits.kept - now, self._sweep)

    @property
    def kept(self) -> int:
        """Connections that wait for a next request."""
        return len(self._kept)

    def close(self) -> None:
        """Keep no connections any more; those in use are closed by their responses."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        kept, self._kept = self._kept, []
        for line, _ in kept:
            self._drop(line)


class Response:
    """An answer. Its head is there; the body comes piece by piece, or whole. Whoever asked closes it."""

    def __init__(self, client: Client, line: Wire) -> None:
        self._client = client
        self._line: Wire | None = line
        self._parser = Parser()
        self._whole = True  # the request was sent to its end
        self._inflater: Inflater | None = None
        self._error: BadResponse | None = None

    @property
    def status(self) -> int:
        return self._parser.status

    @property
    def received(self) -> bool:
        """Whether a byte of the answer has come."""
        return self._parser.received

    @property
    def complete(self) -> bool:
        """Whether the whole answer has arrived, though it may not have been read."""
        return self._parser.complete

    def header(self, name: str) -> str | None:
        """Value of a header (name in lower case), repeated ones joined with a comma; None when absent."""
        return self._parser.header(name)

    async def begin(self, data: bytes) -> None:
        """Send the request, and receive the head of the answer."""
        line, limits, parser = self._line, self._client.limits, self._parser
        assert line is not None
        try:
            self._whole = await line.write(data, limits.write)
        except TimeoutError:
            raise Silent(f"the request was not taken for {limits.write:g} s") from None
        try:
            with loop.deadline(limits.head):
                while not parser.head:
                    await self._receive(line)
                    if self._error is not None and not parser.head:
                        raise self._error
        except TimeoutError:
            raise Silent(f"no answer within {limits.head:g} s") from None
        coding = (parser.header("content-encoding") or "identity").strip().lower()
        if coding != "identity":
            self._inflater = Inflater(coding)

    async def _receive(self, line: Wire) -> None:
        data = await line.read()
        if not data:
            self._parser.end()
            return
        try:
            self._parser.receive(data)
        except BadResponse as error:  # what of the body came before it is delivered first
            self._error = error

    async def piece(self) -> bytes:
        """The next piece of the body; empty at its end. Raises Silent, Broken and BadResponse."""
        parser, inflater = self._parser, self._inflater
        while True:
            if inflater is not None and (piece := inflater.take()):
                return piece
            if parser.pieces:
                piece = b"".join(parser.pieces)
                parser.pieces.clear()
                if inflater is None:
                    return piece
                inflater.feed(piece)
                continue
            if self._error is not None:
                raise self._error
            if parser.complete:
                if inflater is not None:
                    inflater.end()
                return b""
            if self._line is None:
                raise Broken("the response was closed")
            try:
                with loop.deadline(self._client.limits.idle):
                    await self._receive(self._line)
            except TimeoutError:
                raise Silent(f"nothing came for {self._client.limits.idle:g} s") from None
            except Truncated:
                raise Broken("the connection ended before the answer was complete") from None

    async def read(self, most: int) -> bytes:
        """The rest of the body, of at most so many bytes. Raises what `piece` does."""
        pieces = []
        size = 0
        while piece := await self.piece():
            size += len(piece)
            if size > most:
                raise BadResponse(f"a body over {most} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection back where the answer is complete; hang up where it is not."""
        line, self._line = self._line, None
        if line is not None:
            reusable = self._whole and self._error is None and self._parser.reusable
            self._client.give_back(line, reusable=reusable)


def _rules(authorities: str | None) -> ssl.SSLContext:
    """Runs in a worker thread: `ssl` is imported for the first https alone, and takes a while."""
    from syntrop.common.http import tls

    return tls.rules(authorities)


def split_url(url: str) -> tuple[bool, str, int, str]:
    """(whether it is https, host, port, path without its last slash) of an http or https URL."""
    scheme, _, rest = url.partition("://")
    secure = scheme.lower() == "https"
    if not secure and scheme.lower() != "http":
        raise ValueError(f"{url!r} is no http or https URL")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{url!r} has a host that is none")
    if not host or "@" in host or (port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)):
        raise ValueError(f"{url!r} has no host, or a port that is none")
    if not host.isascii():
        host = host.encode("idna").decode()
    escaped = "".join(chr(b) if 0x20 < b < 0x7F else f"%{b:02X}" for b in (slash + path).encode())
    return secure, host, int(port) if port else (443 if secure else 80), escaped.rstrip("/")
