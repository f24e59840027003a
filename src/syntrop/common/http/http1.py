# SPDX-License-Identifier: Apache-2.0
"""The server's side of HTTP/1.1 without I/O: bytes in, typed events out.

Theory of operation. `Protocol.receive()` turns the bytes of one connection into a flat list of events: for
each request `Head`, any number of `Body` and one `End`, in the order of the wire, so that pipelined requests
come one after the other. However the bytes are split, the events are the same, but for where `Body` pieces
are cut. `Refused` is the last event of a connection: what follows it, or follows the end of a request after which
the connection closes, is ignored.

llhttp (through httptools) judges syntax in its strict mode: bare line feeds, folded headers, blanks before
colons, control characters, two lengths, and a length beside `Transfer-Encoding` are all errors there. What it
lets through and a server must not is refused here: versions that are not 1.0 or 1.1, transfer codings other
than `chunked`, chunked bodies in HTTP/1.0, a missing or second `Host`, tunnels, and anything over the caps.
"""

from __future__ import annotations

import httptools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD_MAX = 32 * 1024  # request line and headers; nginx takes 8 KiB a line and 32 KiB in all
HEADERS_MAX = 128
BODY_MAX = 8 * 1024 * 1024
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE")

REASONS = {
    100: "Continue",
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Event:
    """Something that a connection's bytes say."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Head(Event):
    """A request's head.

    `headers` holds (name in lower case, value) in the order of the wire. `length` is the body's length in
    bytes, None when it is chunked. `authority` is the host that the request is for, None in HTTP/1.0 without
    a `Host`. `h2c` holds the settings with which the client asks to go on in HTTP/2, None when it does not.
    """

    __slots__ = (
        "authority",
        "expects_continue",
        "h2c",
        "headers",
        "keep_alive",
        "length",
        "method",
        "minor",
        "path",
        "query",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: tuple[tuple[str, str], ...],
        *,
        authority: str | None = None,
        minor: int = 1,
        length: int | None = 0,
        keep_alive: bool = True,
        expects_continue: bool = False,
        h2c: str | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.authority = authority
        self.minor = minor
        self.length = length
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.h2c = h2c

    def header(self, name: str) -> str | None:
        """Value of a header (name in lower case), repeated ones joined with a comma; None when absent."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None


class Body(Event):
    """A piece of the body."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class End(Event):
    """The request is complete."""

    __slots__ = ()


class Refused(Event):
    """The bytes are no acceptable HTTP: answer with this status and close."""

    __slots__ = ("reason", "status")

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class _Refusal(Exception):
    """Ends the parser from inside of its callbacks."""

    def __init__(self, status: int, reason: str) -> None:
        self.event = Refused(status, reason)


class Protocol:
    """One connection's requests. `receive()` is the interface, `between` and `closed` say where it stands."""

    def __init__(
        self, *, head_max: int = HEAD_MAX, headers_max: int = HEADERS_MAX, body_max: int = BODY_MAX
    ) -> None:
        self._head_max = head_max
        self._headers_max = headers_max
        self._body_max = body_max
        self._parser = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._closed = False
        self._muted = False  # while a head is parsed a second time, without its wish to upgrade
        self._replay = b""
        self._in_head = True
        self._last = False
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._size = 0
        self._received = 0  # bytes of the body
        self._unfinished = 0  # bytes taken since the last head, or the last request, was complete
        # True while no byte of a request has arrived since the last one ended.
        self.between = True

    @property
    def closed(self) -> bool:
        """Nothing that still arrives is listened to."""
        return self._closed

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes as they arrived; the events that they complete."""
        if self._closed or not data:
            return []
        self._unfinished += len(data)
        refused = None
        try:
            self._feed(data)
            self._check_unfinished()
        except _Refusal as refusal:
            refused = refusal.event
        except httptools.HttpParserError as error:
            refused = _judge(error)
        # After the end of the last request, whatever comes is not ours to judge.
        if refused is not None and not self._closed:
            self._events.append(refused)
            self._closed = True
        events, self._events = self._events, []
        return events

    def _check_unfinished(self) -> None:
        """Bound what the parser may hoard: a header line, or a trailer or chunk extension, without an end."""
        if self._in_head:
            if self._unfinished > self._head_max + 4096:
                raise _Refusal(431, f"the head of the request is over {self._head_max} bytes")
        elif self._unfinished > 16 * self._received + 2 * self._head_max:
            # A chunk of one byte takes six.
            raise _Refusal(400, "the body of the request is mostly framing")

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as pause:
                # RFC 9110, 7.8: a server may ignore Upgrade. llhttp stops there and drops the body, so the
                # same head is given to a new parser without the header, and then the rest.
                data = data[pause.args[0] :]
                replay, self._replay = self._replay, b""
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(replay)

    # --- called by the parser ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head = True
        self.between = False
        if not self._muted:
            self._target = b""
            self._headers = []
            self._size = 0

    def on_url(self, piece: bytes) -> None:
        if not self._muted:
            self._target += piece
            self._count(len(piece))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._muted:
            return
        self._count(len(name) + len(value) + 4)
        if self._in_head:  # trailers say nothing that we would listen to
            self._headers.append((name.decode("ascii").lower(), value.rstrip(b" \t").decode("latin-1")))
            if len(self._headers) > self._headers_max:
                raise _Refusal(431, f"the request has more than {self._headers_max} headers")

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._head_max:
            raise _Refusal(431, f"the head of the request is over {self._head_max} bytes")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unfinished = 0
        if self._muted:  # the same head for the second time
            self._muted = False
            return
        head = self._head()
        if self._parser.should_upgrade():
            if head.method == "CONNECT":
                raise _Refusal(501, "tunnels are not offered here")
            self._muted = True
            self._replay = _without_upgrade(head, self._target)
            head.h2c = _h2c(head)
        self._events.append(head)
        self._received = 0
        self._last = not head.keep_alive
        if head.length is not None and head.length > self._body_max:
            raise self._too_large()

    def _head(self) -> Head:
        method = self._parser.get_method().decode("ascii")
        if method not in METHODS:
            raise _Refusal(501, f"the method {method} is not understood")
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _Refusal(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
        hosts: list[str] = []
        length: int | None = 0
        expects = False
        for name, value in self._headers:
            if name == "host":
                hosts.append(value)
            elif name == "content-length":
                length = int(value)
            elif name == "transfer-encoding":
                if value.lower() != "chunked" or version == "1.0":
                    raise _Refusal(501, f"transfer coding {value!r} is not understood")
                length = None
            elif name == "expect":
                if value.lower() != "100-continue":
                    raise _Refusal(417, f"expectation {value!r} cannot be met")
                expects = version == "1.1"
        # RFC 9112, 3.2: exactly one Host, though an old client may have none.
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            raise _Refusal(400, "a request has exactly one Host header")
        authority = hosts[0] if hosts else None
        path, authority = _split_target(self._target, authority)
        path, _, query = path.partition("?")
        return Head(
            method,
            path,
            query,
            tuple(self._headers),
            authority=authority,
            minor=int(version[2]),
            length=length,
            keep_alive=self._parser.should_keep_alive(),
            expects_continue=expects and length != 0,
        )

    def _too_large(self) -> _Refusal:
        return _Refusal(413, f"the body of the request is over {self._body_max} bytes")

    def on_body(self, piece: bytes) -> None:
        self._received += len(piece)
        if self._received > self._body_max:
            raise self._too_large()
        self._events.append(Body(piece))

    def on_message_complete(self) -> None:
        if self._muted:
            return
        self._events.append(End())
        self._in_head = True
        self._unfinished = 0
        self.between = True
        if self._last:
            self._closed = True


def _judge(error: httptools.HttpParserError) -> Refused:
    if isinstance(error, httptools.HttpParserCallbackError):
        if isinstance(error.__context__, _Refusal):
            return error.__context__.event
        raise error
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refused(501, "the request's method is not understood")
    reason = str(error) or "not HTTP"
    if reason in ("Invalid HTTP version", "Pause on PRI/Upgrade"):  # the latter is HTTP/2's preface
        return Refused(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    return Refused(400, f"malformed request: {reason}")


def _split_target(target: bytes, authority: str | None) -> tuple[str, str | None]:
    """Path with query, and the host: an absolute target outranks `Host` (RFC 9112, 3.2.2)."""
    text = target.decode("latin-1")
    if text.startswith("/") or text == "*":
        return text, authority
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() in ("http", "https"):
        slash = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
        path = rest[slash:]
        return (path if path.startswith("/") else "/" + path), rest[:slash]
    return text, authority  # CONNECT's form; refused by who asks for it


def _h2c(head: Head) -> str | None:
    """The settings in a request for HTTP/2 (RFC 7540, 3.2), None where it is not in order.

    One with a body is answered in HTTP/1.1, as RFC 9110, 7.8 allows: all of it had to arrive before the change.
    """
    if head.minor < 1 or head.length != 0 or not head.keep_alive:
        return None
    settings = [value for name, value in head.headers if name == "http2-settings"]
    protocols = [word.strip().lower() for word in (head.header("upgrade") or "").split(",")]
    options = [word.strip().lower() for word in (head.header("connection") or "").split(",")]
    if len(settings) != 1 or "h2c" not in protocols or not {"upgrade", "http2-settings"} <= set(options):
        return None
    return settings[0]


def _without_upgrade(head: Head, target: bytes) -> bytes:
    lines = [f"{head.method} ".encode(), target, f" HTTP/1.{head.minor}\r\n".encode()]
    for name, value in head.headers:
        if name not in ("upgrade", "http2-settings"):
            lines.append(f"{name}: {value}\r\n".encode("latin-1"))
    return b"".join([*lines, b"\r\n"])


# --- replies ---------------------------------------------------------------------------------------------


def encode_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Status line and headers. Raises ValueError for a value that would break out of its line."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}\r\n"]
    for name, value in headers:
        if "\r" in value or "\n" in value or "\0" in value:
            raise ValueError(f"header {name} has a line break in its value")
        lines.append(f"{name}: {value}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1", "replace")


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; nothing for no data, since an empty chunk would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


_told = (0, "Thu, 01 Jan 1970 00:00:00 GMT")  # the second that was written last


def http_date(seconds: float) -> str:
    """A time since 1970 as HTTP writes it, whatever the locale."""
    global _told
    second, text = _told
    if second != int(seconds):
        text = _date(int(seconds))
        _told = (int(seconds), text)
    return text


def _date(second: int) -> str:
    from time import gmtime

    t = gmtime(second)
    return (
        f"{_DAYS[t.tm_wday]}, {t.tm_mday:02} {_MONTHS[t.tm_mon - 1]} {t.tm_year:04} "
        f"{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} GMT"
    )
