# SPDX-License-Identifier: Apache-2.0
"""Reading the journal through libsystemd's sd-journal(3): by match and cursor, so by its indexes. Import late.

The library is loaded when a reader is made, and plain calls are all that is asked of ctypes: no code is written at
run time, so `MemoryDenyWriteExecute=` does not mind.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LOCAL_ONLY, _SYSTEM = 1, 4
FIELD_MAX = 16 << 10  # bytes of a field that are read

_library: ctypes.CDLL | None = None


class Entry:
    """One journal entry: the fields that were asked for, when it was logged, and where it is."""

    __slots__ = ("boot", "cursor", "fields", "monotonic_us", "time_us")

    def __init__(self, fields: dict[str, str], time_us: int, monotonic_us: int, boot: str, cursor: str) -> None:
        self.fields = fields
        self.time_us = time_us
        self.monotonic_us = monotonic_us
        self.boot = boot
        self.cursor = cursor

    def get(self, name: str, default: str = "") -> str:
        return self.fields.get(name, default)


class Reader:
    """A reader of the machine's journal, or of the journal files in a folder. For one thread at a time.

    Raises OSError when there is no library or no journal.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._library = _load()
        self._handle = ctypes.c_void_p()
        if folder is None:
            result = self._library.sd_journal_open(ctypes.byref(self._handle), _LOCAL_ONLY | _SYSTEM)
        else:
            result = self._library.sd_journal_open_directory(ctypes.byref(self._handle), os.fsencode(folder), 0)
        _check(result, "open the journal")
        _check(self._library.sd_journal_set_data_threshold(self._handle, FIELD_MAX), "limit the journal's fields")

    def match(self, *alternatives: dict[str, str]) -> None:
        """See only entries that have all fields of one of the alternatives."""
        library, handle = self._library, self._handle
        library.sd_journal_flush_matches(handle)
        for number, fields in enumerate(alternatives):
            if number:
                _check(library.sd_journal_add_disjunction(handle), "match")
            for name, value in fields.items():
                data = f"{name}={value}".encode("utf-8", "surrogateescape")
                _check(library.sd_journal_add_match(handle, data, len(data)), "match")

    def seek_tail(self) -> None:
        _check(self._library.sd_journal_seek_tail(self._handle), "seek")

    def seek_time(self, time_us: int) -> None:
        """Before the first entry that is not older."""
        _check(self._library.sd_journal_seek_realtime_usec(self._handle, ctypes.c_uint64(max(0, time_us))), "seek")

    def seek_after(self, cursor: str) -> bool:
        """Behind the entry of a cursor; False when it is gone, and the position is where it would be."""
        data = cursor.encode()
        _check(self._library.sd_journal_seek_cursor(self._handle, data), "seek")
        if not self.next():
            return True  # it was the last one
        if self._library.sd_journal_test_cursor(self._handle, data) > 0:
            return True
        self.previous()
        return False

    def next(self) -> bool:
        """Go to the next entry; False at the end."""
        return bool(_check(self._library.sd_journal_next(self._handle), "read the journal"))

    def previous(self) -> bool:
        return bool(_check(self._library.sd_journal_previous(self._handle), "read the journal"))

    def entry(self, names: Iterable[str]) -> Entry:
        """The entry that the reader is at."""
        fields = {}
        for name in names:
            value = self.field(name)
            if value is not None:
                fields[name] = value
        time_us, monotonic_us = ctypes.c_uint64(), ctypes.c_uint64()
        boot = (ctypes.c_uint8 * 16)()
        library, handle = self._library, self._handle
        _check(library.sd_journal_get_realtime_usec(handle, ctypes.byref(time_us)), "read an entry's time")
        if library.sd_journal_get_monotonic_usec(handle, ctypes.byref(monotonic_us), boot) < 0:
            monotonic_us.value = 0
        return Entry(fields, time_us.value, monotonic_us.value, bytes(boot).hex(), self.cursor())

    def field(self, name: str) -> str | None:
        """A field of the current entry; the first one where there are several."""
        data, length = ctypes.c_void_p(), ctypes.c_size_t()
        result = self._library.sd_journal_get_data(
            self._handle, name.encode("ascii"), ctypes.byref(data), ctypes.byref(length)
        )
        if result < 0 or not data.value:
            return None
        raw = ctypes.string_at(data.value, min(length.value, FIELD_MAX + len(name) + 1))
        return raw[len(name) + 1 :].decode("utf-8", "replace")

    def cursor(self) -> str:
        text = ctypes.c_char_p()
        _check(self._library.sd_journal_get_cursor(self._handle, ctypes.byref(text)), "read an entry's cursor")
        try:
            return (text.value or b"").decode()
        finally:
            _free(self._library, text)

    def forwards(self, names: Iterable[str], limit: int) -> Iterator[Entry]:
        """The next entries, oldest first."""
        names = tuple(names)
        while limit > 0 and self.next():
            limit -= 1
            yield self.entry(names)

    def backwards(self, names: Iterable[str], limit: int) -> Iterator[Entry]:
        """The entries before, newest first."""
        names = tuple(names)
        while limit > 0 and self.previous():
            limit -= 1
            yield self.entry(names)

    def fileno(self) -> int:
        """A descriptor that is readable when the journal may have grown; then call `refresh()`."""
        return int(_check(self._library.sd_journal_get_fd(self._handle), "follow the journal"))

    def refresh(self) -> None:
        """Notice new files and entries."""
        _check(self._library.sd_journal_process(self._handle), "follow the journal")

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._library.sd_journal_close(handle)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _load() -> ctypes.CDLL:
    global _library
    if _library is None:
        library = ctypes.CDLL("libsystemd.so.0")  # OSError where it is missing
        for name in (
            "close", "flush_matches", "add_disjunction", "add_match", "seek_tail", "seek_realtime_usec",
            "seek_cursor", "test_cursor", "next", "previous", "get_realtime_usec", "get_monotonic_usec",
            "get_data", "get_cursor", "get_fd", "process", "set_data_threshold",
        ):  # fmt: skip
            function = getattr(library, f"sd_journal_{name}")
            function.restype = ctypes.c_int
            function.argtypes = [ctypes.c_void_p, *_ARGUMENTS.get(name, ())]
        library.sd_journal_close.restype = None
        library.sd_journal_flush_matches.restype = None
        _library = library
    return _library


_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "add_match": (ctypes.c_char_p, ctypes.c_size_t),
    "seek_realtime_usec": (ctypes.c_uint64,),
    "seek_cursor": (ctypes.c_char_p,),
    "test_cursor": (ctypes.c_char_p,),
    "get_realtime_usec": (ctypes.c_void_p,),
    "get_monotonic_usec": (ctypes.c_void_p, ctypes.c_void_p),
    "get_data": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p),
    "get_cursor": (ctypes.c_void_p,),
    "set_data_threshold": (ctypes.c_size_t,),
}


def _free(library: ctypes.CDLL, pointer: ctypes.c_char_p) -> None:
    # The C library's, found through the library that allocated.
    free = library.free
    free.restype = None
    free(pointer)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"cannot {what}: {os.strerror(-result)}")
    return result
