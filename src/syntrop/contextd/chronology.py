# SPDX-License-Identifier: Apache-2.0
"""The chronology: a durable ring of events in append-only segments.

    chronology/<number of the first event, 16 hex digits>.log

An event's record is one line of JSON (what is looked at for every event) and its details as they are. Events are
numbered without gaps. The ring is kept by removing whole segments from its old end, so nothing is ever rewritten;
what a segment still holds beyond the ring's length is not shown.
"""

from __future__ import annotations

import json
import os

from syntrop.contextd import clock, ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

EVENTS_MAX = 10_000
BYTES_MAX = 32 << 20
SUMMARY_MAX = 1024  # characters
DETAILS_MAX = 32 << 10  # bytes; a longer text loses its middle
SEGMENTS = 10  # into which a full ring is divided


class Draft:
    """An event that is not recorded yet. `extra` holds what the ranking and the recorder itself need again."""

    __slots__ = ("boot", "details", "extra", "private", "source", "summary", "time_us", "unit")

    def __init__(
        self,
        source: str,
        summary: str,
        *,
        time_us: int | None = None,
        unit: str | None = None,
        details: str | None = None,
        boot: str | None = None,
        private: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.summary = summary[:SUMMARY_MAX]
        self.time_us = clock.now_us() if time_us is None else time_us
        self.unit = unit
        self.details = details
        self.boot = clock.boot_id() if boot is None else boot
        self.private = private
        self.extra = extra or {}

    def unkept(self) -> Event:
        """As an event that is told of and not recorded: its number is 0, its details are in `extra`."""
        extra = {**self.extra, "unkept": self.details}
        head = {"t": self.time_us, "b": self.boot, "s": self.source, "u": self.unit, "m": self.summary}
        return Event(0, {**head, "p": self.private, "x": extra}, False, "", 0)


class Event:
    """A recorded event. `private` details are for those who may read what they were taken from."""

    __slots__ = (
        "boot",
        "extra",
        "has_details",
        "number",
        "offset",
        "private",
        "segment",
        "source",
        "summary",
        "time_us",
        "unit",
    )

    def __init__(self, number: int, head: dict[str, Any], has_details: bool, segment: str, offset: int) -> None:
        self.number = number
        self.time_us: int = head["t"]
        self.boot: str = head.get("b", "")
        self.source: str = head["s"]
        self.unit: str | None = head.get("u")
        self.summary: str = head["m"]
        self.private: bool = head.get("p", False)
        self.extra: dict[str, Any] = head.get("x") or {}
        self.has_details = has_details
        self.segment = segment
        self.offset = offset

    @property
    def id(self) -> str:
        return f"event-{self.number}"


class _Segment:
    """A file of the ring. Its events are read when somebody asks for them: of an old one that is seldom."""

    __slots__ = ("count", "events", "first", "newest_us", "path", "size")

    def __init__(self, path: str, first: int) -> None:
        self.path = path
        self.first = first
        self.size = 0
        self.count = 0
        self.newest_us = 0  # time of the newest event; until they are read, at least that
        self.events: list[Event] | None = None


class Chronology:
    """The ring below a folder. Not to be used by two threads at once."""

    def __init__(
        self,
        folder: str,
        *,
        events_max: int = EVENTS_MAX,
        bytes_max: int = BYTES_MAX,
        retention_us: int = 0,
    ) -> None:
        self._folder = folder
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._retention_us = retention_us
        self._segments = self._found()
        self._next = 1
        if self._segments:
            last = self._segments[-1]
            events = self._read(last, None)
            self._next = events[-1].number + 1 if events else last.first

    def _found(self) -> list[_Segment]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            stem, dot, kind = name.partition(".")
            if kind != "log" or not dot or len(stem) != 16:
                continue
            try:
                segment = _Segment(os.path.join(self._folder, name), int(stem, 16))
            except ValueError:
                continue  # not a name of ours
            status = os.stat(segment.path)
            # Nothing is recorded before it happens. A file's clock is a few milliseconds behind.
            segment.size, segment.newest_us = status.st_size, status.st_mtime_ns // 1000 + 1_000_000
            found.append(segment)
        for place in range(1, len(found)):
            found[place - 1].count = found[place].first - found[place - 1].first
        return found

    def _read(self, segment: _Segment, end: int | None) -> list[Event]:
        """The events of a segment, whose numbers are below `end`."""
        if segment.events is not None:
            return segment.events
        found, segment.size = ledger.load(ledger.read(segment.path))
        split = [payload.partition(b"\n") for _, payload in found]
        events: list[Event] = []
        following = segment.first
        newest_us = 0
        heads = _heads([line for line, _, _ in split])
        for (offset, _), (_, newline, _), head in zip(found, split, heads, strict=True):
            try:
                event = Event(head["n"], head, bool(newline), segment.path, offset)
            except (KeyError, TypeError):
                continue  # of another version: not shown, and not lost
            if event.number >= following and (end is None or event.number < end):
                following = event.number + 1
                events.append(event)
                newest_us = max(newest_us, event.time_us)
        segment.count = len(found)
        segment.newest_us = newest_us
        segment.events = events
        return events

    def _reading(self, since_us: int = 0) -> Iterator[list[Event]]:
        """Events of the segments that have any since a time, newest segment first."""
        end: int | None = None
        for segment in reversed(self._segments):
            if segment.newest_us >= since_us:
                yield self._read(segment, end)
            end = segment.first

    @property
    def events(self) -> list[Event]:
        """Everything that is in the ring, in the order of recording."""
        found: list[Event] = []
        for events in self._reading():
            found[:0] = events
        return found[-self._events_max :]

    def newest(self, wanted: Callable[[Event], bool]) -> Iterator[Event]:
        """The events up to the first one that is not wanted, the one recorded last first."""
        for events in self._reading():
            for event in reversed(events):
                if not wanted(event):
                    return
                yield event

    @property
    def last(self) -> int:
        """Number of the newest event; 0 where there is none."""
        return self._next - 1

    def trust(self, finished: int) -> None:
        """Take what is seen for safe if this event, which was noted when it was, is the newest."""
        if self._segments and self._segments[-1].first <= finished and self.last <= finished:
            ledger.trust(self._folder)
            ledger.trust(self._segments[-1].path)

    def append(self, drafts: Sequence[Draft]) -> list[Event]:
        """Record events; they are on the disk when this returns. Raises OSError, with nothing recorded.

        So are those that were there before, which a predecessor may have been killed over: only the newest
        segment can hold such, since another one is begun when all before it is safe.
        """
        if not drafts:
            if self._segments:
                ledger.settle(self._folder)
                ledger.settle_file(self._segments[-1].path)
            return []
        segment = self._segment()
        if self._segments and self._segments[-1] is not segment:
            ledger.settle_file(self._segments[-1].path)
        heads, payloads = [], []
        for number, draft in enumerate(drafts, self._next):
            head, payload = _encode(number, draft)
            heads.append(head)
            payloads.append(payload)
        offsets = ledger.append(segment.path, payloads, segment.size)
        assert segment.events is not None
        events = []
        for head, payload, offset in zip(heads, payloads, offsets, strict=True):
            event = Event(head["n"], head, b"\n" in payload, segment.path, offset)
            segment.newest_us = max(segment.newest_us, event.time_us)
            events.append(event)
        segment.size = offsets[-1] + len(ledger.frame(payloads[-1]))
        segment.count += len(events)
        segment.events += events
        if segment not in self._segments:
            self._segments.append(segment)
        self._next += len(events)
        self._trim()
        return events

    def _segment(self) -> _Segment:
        if self._segments:
            last = self._segments[-1]
            if last.count < max(1, self._events_max // SEGMENTS) and last.size < self._bytes_max // SEGMENTS:
                return last
        fresh = _Segment(os.path.join(self._folder, f"{self._next:016x}.log"), self._next)
        fresh.events = []
        return fresh

    def _trim(self) -> None:
        oldest = clock.now_us() - self._retention_us if self._retention_us else 0
        total = sum(one.count for one in self._segments)
        size = sum(one.size for one in self._segments)
        while len(self._segments) > 1:
            first = self._segments[0]
            if not (total - first.count >= self._events_max or size > self._bytes_max or first.newest_us < oldest):
                return
            os.unlink(first.path)
            del self._segments[0]
            total -= first.count
            size -= first.size

    def details(self, event: Event) -> str | None:
        """What more is known of an event; None where there is nothing, or it has left the ring."""
        if not event.has_details:
            return None
        payload = ledger.read_record(event.segment, event.offset)
        if payload is None:
            return None
        return payload.partition(b"\n")[2].decode("utf-8", "replace")

    def since(self, time_us: int, wanted: Callable[[Event], bool] | None = None) -> list[Event]:
        """Events not older than a time, newest first."""
        oldest = self._next - self._events_max
        found = [
            one
            for events in self._reading(time_us)
            for one in events
            if one.time_us >= time_us and one.number >= oldest and (wanted is None or wanted(one))
        ]
        found.sort(key=lambda one: (one.time_us, one.number), reverse=True)
        return found

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(one.size for one in self._segments)


def _heads(lines: list[bytes]) -> list[Any]:
    """The lines' JSON, None for one that is none: all at once, which takes a third of the time."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = []
    return found if len(found) == len(lines) else [_head(line) for line in lines]


def _head(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _encode(number: int, draft: Draft) -> tuple[dict[str, Any], bytes]:
    head: dict[str, Any] = {"n": number, "t": draft.time_us, "s": draft.source, "m": draft.summary}
    optional = {"b": draft.boot, "u": draft.unit, "p": draft.private, "x": draft.extra}
    head.update((key, value) for key, value in optional.items() if value)
    # JSON of ASCII letters only: a lone surrogate of a file's name comes back as it was.
    line = json.dumps(head, separators=(",", ":")).encode("ascii")
    if draft.details is None:
        return head, line
    return head, line + b"\n" + shorten(draft.details).encode("utf-8", "replace")


def shorten(text: str, limit: int = DETAILS_MAX) -> str:
    """A text of at most about `limit` bytes: whole lines of its head and tail, and how many are between."""
    if len(text) <= limit and len(text.encode("utf-8", "replace")) <= limit:
        return text
    lines = text.splitlines(keepends=True)
    head: list[str] = []
    tail: list[str] = []
    left = limit - 64
    _fill(head, (line for line in lines), left * 3 // 4)
    _fill(tail, (line for line in reversed(lines[len(head) :])), left // 4)
    cut = len(lines) - len(head) - len(tail)
    return "".join([*head, f"[{cut} lines are left out here]\n", *reversed(tail)])


def _fill(into: list[str], lines: Iterable[str], room: int) -> None:
    for line in lines:
        room -= len(line.encode("utf-8", "replace"))
        if room < 0:
            return
        into.append(line)
