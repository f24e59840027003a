# SPDX-License-Identifier: Apache-2.0
"""Server-sent events (WHATWG HTML, 9.2), without I/O: framing out, and a parser of what others send."""

from __future__ import annotations

HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx would collect the stream before it passes it on
)
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

EVENT_MAX = 16 * 1024 * 1024


def encode(data: str, event: str | None = None) -> bytes:
    """One event. Lines of `data` become lines of the event."""
    if event is None and "\n" not in data and "\r" not in data:
        return f"data: {data}\n\n".encode()
    head = f"event: {event}\n" if event else ""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return (head + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


class ServerEvent:
    """An event as it was sent: its data, and its type (`message` unless named)."""

    __slots__ = ("data", "type")

    def __init__(self, data: str, type: str = "message") -> None:
        self.data = data
        self.type = type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerEvent) and (self.data, self.type) == (other.data, other.type)

    def __hash__(self) -> int:
        return hash((self.data, self.type))

    def __repr__(self) -> str:
        return f"ServerEvent({self.data!r}, {self.type!r})"


class EventTooLong(Exception):
    """The peer sent more than the cap without ending the event."""


class Parser:
    """Bytes in, whole events out. Lines end with LF, CR LF or CR and may be cut anywhere."""

    __slots__ = ("_cr", "_data", "_held", "_limit", "_line", "_start", "_type")

    def __init__(self, limit: int = EVENT_MAX) -> None:
        self._limit = limit
        self._line = bytearray()
        self._cr = False  # the last line ended with a CR: an LF that follows belongs to it
        self._start = True
        self._data: list[str] = []
        self._type = ""
        self._held = 0

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Take bytes as they arrived. Raises EventTooLong."""
        if self._cr and data:
            self._cr = False
            if data[:1] == b"\n":
                data = data[1:]
        if data.endswith(b"\r"):
            self._cr = True
        *ends, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events: list[ServerEvent] = []
        for end in ends:
            self._hold(len(end))
            if self._line:
                end = bytes(self._line) + end
                self._line.clear()
            self._take(end, events)
        self._hold(len(rest))
        self._line += rest
        return events

    def end(self) -> list[ServerEvent]:
        """No more bytes follow. An event whose last line, or empty line, was never written is given all the same:
        whether it is whole is in its data."""
        events: list[ServerEvent] = []
        if self._line:
            line = bytes(self._line)
            self._line.clear()
            self._take(line, events)
        self._take(b"", events)
        return events

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._limit:
            raise EventTooLong

    def _take(self, line: bytes, events: list[ServerEvent]) -> None:
        if self._start:
            self._start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(ServerEvent("\n".join(self._data), self._type or "message"))
            self._data = []
            self._type = ""
            self._held = 0
            return
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
