# SPDX-License-Identifier: Apache-2.0
"""The client's side of HTTP/1.1 without I/O: the bytes of one response in, its head and body out.

llhttp (through httptools) judges syntax in its strict mode. What it lets through and a client must not is refused
here: versions that are not 1.0 or 1.1, transfer codings other than `chunked`, a change of protocol that nobody
asked for, and anything over the caps. Interim responses (1xx) are passed over. Bytes behind the response are not
its business, but then the connection is no good for another request.
"""

from __future__ import annotations

import httptools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD_MAX = 64 * 1024  # bytes that bring no body: heads, and what frames the body, in a row
HEADERS_MAX = 256
INTERIM_MAX = 16
PIECE_MAX = 64 * 1024  # bytes that are decompressed at a time


class BadResponse(Exception):
    """What the server sent is no acceptable HTTP. The message says what about it."""


class Truncated(Exception):
    """The connection ended before the response did."""


class Parser:
    """One response. `pieces` is what of the body has arrived, for its reader to take; `complete` when nothing more
    belongs to it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []  # names in lower case
        self.head = False  # whether it is complete
        self.complete = False
        self.pieces: list[bytes] = []
        self.received = False  # whether any byte has come
        self._parser = httptools.HttpResponseParser(self)
        self._bare = 0
        self._interim = 0
        self._trailing = False
        self._to_close = False  # the body ends with the connection
        self._keep_alive = False

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent on this connection."""
        return self.complete and self._keep_alive and not self._trailing

    def header(self, name: str) -> str | None:
        """Value of a header (name in lower case), repeated ones joined with a comma; None when absent."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None

    def receive(self, data: bytes) -> None:
        """Take bytes as they arrived. Raises BadResponse."""
        if self.complete or not data:
            self._trailing = self._trailing or bool(data)
            return
        self.received = True
        before = len(self.pieces)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(error)
        if len(self.pieces) > before or self.complete:
            self._bare = 0
        else:
            self._bare += len(data)
            if self._bare > HEAD_MAX:
                raise BadResponse(f"over {HEAD_MAX} bytes without a body")

    def _fail(self, error: Exception) -> None:
        if not self.complete:
            raise _judge(error) from None
        self._trailing = True  # what follows the response is not ours to judge

    def end(self) -> None:
        """The connection has ended. Raises Truncated when the response has not."""
        if not (self.head and self._to_close) and not self.complete:
            raise Truncated
        self.complete = True

    # --- called by httptools -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise BadResponse("another response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head:
            return  # trailers say nothing that we would listen to
        self.headers.append((name.decode("latin-1").lower(), value.strip(b" \t").decode("latin-1")))
        if len(self.headers) > HEADERS_MAX:
            raise BadResponse(f"over {HEADERS_MAX} headers")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise BadResponse(f"version {version} of HTTP")
        if status == 101:
            raise BadResponse("a change of protocol that was not asked for")
        if status < 200:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise BadResponse(f"over {INTERIM_MAX} interim responses")
            self.headers.clear()
            return
        coding = self.header("transfer-encoding")
        if coding is not None and (coding.lower() != "chunked" or version == "1.0"):
            raise BadResponse(f"the transfer coding {coding[:40]!r}")
        bodiless = status in (204, 304)
        self._to_close = not bodiless and coding is None and self.header("content-length") is None
        self._keep_alive = self._parser.should_keep_alive() and not self._to_close
        self.status = status
        self.head = True

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.head:  # not of an interim response
            self.complete = True


def _judge(error: Exception) -> BadResponse:
    if isinstance(error, httptools.HttpParserCallbackError):
        if isinstance(error.__context__, BadResponse):
            return error.__context__
        raise error
    if isinstance(error, httptools.HttpParserUpgrade):
        return BadResponse("a change of protocol that was not asked for")
    return BadResponse(str(error) or "no HTTP")


class Inflater:
    """A body that was compressed all the same, a bounded piece at a time however far it swells."""

    def __init__(self, coding: str) -> None:
        import zlib

        windows = {"gzip": 31, "x-gzip": 31, "deflate": 15}
        if coding not in windows:
            raise BadResponse(f"the content coding {coding[:40]!r}, which was not asked for")
        self._coding = coding
        self._error = zlib.error
        self._inflate: Any = zlib.decompressobj(windows[coding])
        self._rest = b""

    def feed(self, data: bytes) -> None:
        self._rest += data

    def take(self) -> bytes:
        """The next piece; empty when it needs more to be fed. Raises BadResponse."""
        if self._inflate.eof:
            if self._rest or self._inflate.unused_data:
                raise BadResponse(f"bytes behind the end of its {self._coding} body")
            return b""
        try:
            piece: bytes = self._inflate.decompress(self._rest, PIECE_MAX)
        except self._error:
            raise BadResponse(f"a body that is not {self._coding}, as it says it were") from None
        self._rest = self._inflate.unconsumed_tail
        return piece

    def end(self) -> None:
        """Nothing more will be fed. Raises BadResponse when the body is not whole."""
        if not self._inflate.eof:
            raise BadResponse(f"a {self._coding} body that is cut off")
