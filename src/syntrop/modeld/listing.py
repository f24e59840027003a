# SPDX-License-Identifier: Apache-2.0
"""The answer to `List`, kept on the disk. A change adds a line to it; only what the lines name is looked at again.

    <JSON: format, mark, bytes and checksum of the answer>\\n<the answer>\\n<lines>

A line is its checksum, a space and a JSON object:

    {"again": […]}   digests and names whose rows may be true no more
    {"loose": […]}   names that name nothing: they might again, once what they name comes back
    {"times": […]}   of the store's folders, after the changes of the lines before

Before the store changes anything, it adds what that is (`again`) and syncs it. So the file may be torn, or its
last lines may be missing, but what it says of anything that is not named behind it is true, whatever was lost. All
else is written without waiting for the disk. Where the last line does not tell the times that the folders have, a
change was cut short, or somebody changed something by hand: then the file is not believed. Everything here blocks.
"""

from __future__ import annotations

import json
import os
from binascii import crc32

from syntrop.modeld import disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    Times = tuple[int, ...]
    """What tells that somebody changed something by hand."""

FORMAT = 1
"""To be raised with every change of what a row consists of: answers of another format are not believed."""
TAIL_MAX = 16 << 10
"""Bytes of lines, some hundred changes, after which the answer should be written anew."""

_HEAD_MAX = 256  # bytes
_LINE_MAX = 512  # bytes of the line of times
_BEFORE, _BETWEEN, _AFTER = b'{"parameters":{"models":[', b",\n", b"]}}"
_DIGEST = b'"digest":"sha256:'


def split(answer: bytes) -> list[bytes]:
    """The rows of an answer, each a JSON object, in the order of their identifiers."""
    rows = answer[len(_BEFORE) : -len(_AFTER)]
    return rows.split(_BETWEEN) if rows else []


def join(rows: Iterable[bytes]) -> bytes:
    """The answer of these rows.

    Each begins with its identifier, which holds nothing that sorts before the quote that ends it: their order is
    that of the identifiers. No line break is within one, since JSON writes it otherwise.
    """
    return _BEFORE + _BETWEEN.join(sorted(rows)) + _AFTER


def digest(row: bytes) -> str:
    """The hexadecimal digits of a row's digest."""
    at = row.index(_DIGEST) + len(_DIGEST)
    return row[at : at + 64].decode()


def identifier(row: bytes) -> str:
    """The identifier of a row."""
    start = row.index(b":") + 2
    return row[start : row.index(b'"', start)].decode()


def without(rows: Iterable[bytes], digests: Collection[str]) -> tuple[list[bytes], list[bytes]]:
    """The rows of other models than these, and those of these."""
    wanted = {one.encode() for one in digests}
    others: list[bytes] = []
    theirs: list[bytes] = []
    for row in rows:
        at = row.index(_DIGEST) + len(_DIGEST)
        (theirs if row[at : at + 64] in wanted else others).append(row)
    return others, theirs


class Kept:
    """What a file says. `times` is None where its last line tells none: amid a change, or after one cut short."""

    __slots__ = ("again", "answer", "end", "head", "loose", "times")

    def __init__(self, head: bytes, answer: bytes, end: int) -> None:
        self.head = head
        """Another one is of another file."""
        self.answer = answer
        self.end = end
        """Where the lines end that were read."""
        self.again: set[str] = set()
        """What is to be looked at again before the answer is true."""
        self.loose: set[str] = set()
        self.times: Times | None = None


def read(path: str, since: Kept | None = None) -> Kept | None:
    """What is kept; None where there is no whole one. Of the file of `since`, only what was added is read.

    What `since` says is taken to be true: its `again` is looked at no more.
    """
    try:
        with open(path, "rb", opener=_looking) as file:
            head = file.readline(_HEAD_MAX)
            if since is not None and since.head == head:
                kept = Kept(head, since.answer, since.end)
                kept.loose, kept.times = since.loose, since.times
                file.seek(since.end)
            else:
                known = json.loads(head)
                answer = file.read(known["bytes"])
                if [known["format"], known["crc"]] != [FORMAT, crc32(answer)] or file.read(1) != b"\n":
                    return None
                kept = Kept(head, answer, file.tell())
            lines = file.read()
        for line in lines.splitlines(keepends=True):
            _take(kept, _decode(line))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    kept.end += len(lines)
    return kept


def write(path: str, answer: bytes, loose: Collection[str], times: Times) -> bool:
    """Keep another answer; the store is locked. Where that cannot be, none is kept.

    There is no sync of the content: a torn one is not believed. But the old file must not come back once what is
    added goes to the new one. Raises OSError when it might.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}")
    mark = os.urandom(8).hex()
    head = {"format": FORMAT, "mark": mark, "bytes": len(answer), "crc": crc32(answer)}
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(json.dumps(head).encode() + b"\n" + answer + b"\n")
            if loose:
                file.write(_encode("loose", sorted(loose)))
            file.write(_encode("times", times))
        replaced = os.path.lexists(path)
        os.rename(temporary, path)
        if replaced:
            disk.sync(folder)
        return True
    except OSError:
        drop(path)
        disk.unlink(temporary)
        return False


def drop(path: str) -> None:
    """Remove it, so that it does not come back. Raises OSError."""
    if disk.unlink(path):
        disk.sync(os.path.dirname(path))


class Additions:
    """What one who holds the store's lock adds to the file, or None of it where there is no good one."""

    def __init__(self, path: str, times: Times) -> None:
        """Removes one that is not true of folders with these times. Raises OSError."""
        self._path = path
        self._handle = -1
        self._begin = 0
        self._changed = False
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            good = self._is_true(times)
        except FileNotFoundError:
            return
        except OSError:
            good = False
        if not good:
            self.lose()

    @property
    def is_kept(self) -> bool:
        return self._handle >= 0

    @property
    def is_long(self) -> bool:
        """Whether there is so much to be looked at again that the answer should be written anew."""
        return self.is_kept and os.fstat(self._handle).st_size - self._begin > TAIL_MAX

    def again(self, changing: Iterable[str]) -> None:
        """Tell, durably, which models and names are about to change. Raises OSError."""
        if not self.is_kept:
            return
        self._changed = True
        try:
            self._add(_encode("again", list(changing)))
            os.fdatasync(self._handle)
        except OSError:
            self.lose()  # a full disk, most likely, which nothing may keep from being made room on

    def settle(self, times: Times) -> None:
        """Whatever came of all that was told, the folders have these times now."""
        if self._changed and self.is_kept:
            try:
                self._add(_encode("times", times))
            except OSError:
                pass  # whoever reads it does not believe it

    def lose(self) -> None:
        """Remove the file. Raises OSError."""
        self.close()
        drop(self._path)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _is_true(self, times: Times) -> bool:
        size = os.fstat(self._handle).st_size
        head = os.pread(self._handle, _HEAD_MAX, 0).partition(b"\n")[0]
        last = os.pread(self._handle, _LINE_MAX, max(0, size - _LINE_MAX)).removesuffix(b"\n").rpartition(b"\n")[2]
        try:
            known = json.loads(head)
            self._begin = len(head) + known["bytes"] + 2
            return bool(known["format"] == FORMAT and _decode(last + b"\n").get("times") == list(times))
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    def _add(self, line: bytes) -> None:
        disk.write(self._handle, memoryview(line), os.fstat(self._handle).st_size)


def _encode(kind: str, value: Collection[object]) -> bytes:
    data = json.dumps({kind: value}).encode()
    return b"%08x %s\n" % (crc32(data), data)


def _decode(line: bytes) -> dict[str, list[object]]:
    """Raises ValueError."""
    checksum, _, data = line.partition(b" ")
    if not data.endswith(b"\n") or checksum != b"%08x" % crc32(data[:-1]):
        raise ValueError("damaged")
    value: dict[str, list[object]] = json.loads(data)
    return value


def _take(kept: Kept, line: dict[str, list[object]]) -> None:
    kept.again.update(map(str, line.get("again", ())))
    kept.loose = kept.loose.union(map(str, line.get("loose", ())))
    times = line.get("times")
    kept.times = None if times is None else tuple(int(str(one)) for one in times)


def _looking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
