# SPDX-License-Identifier: Apache-2.0
"""Watches on folders: fanotify where capabilities allow (it tells who did it), inotify otherwise.

Both deliver the same masks for the same things, and both watch one folder at a time: that costs nothing while
nothing happens, where a watch on a whole file system would wake us at every write of a database. The kernel's
calls are plain ones through ctypes, which is imported when the first watch is set.
"""

from __future__ import annotations

import os
import struct

from syntrop.common import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# linux/inotify.h; linux/fanotify.h has the same numbers.
ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, Q_OVERFLOW, IGNORED, ISDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000
EVENTS = ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
_IN_ONLYDIR, _IN_NONBLOCK, _IN_CLOEXEC = 0x01000000, 0o4000, 0o2000000
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_REPORT_DFID_NAME = 0x1, 0x2, 0xC00
_FAN_MARK_ADD, _FAN_MARK_ONLYDIR, _FAN_EVENT_ON_CHILD = 0x1, 0x8, 0x08000000
_FAN_INFO_DFID_NAME, _FAN_INFO_DFID = 2, 3
_AT_FDCWD = -100
_HANDLE_MAX = 128  # MAX_HANDLE_SZ

_INOTIFY = struct.Struct("iIII")
_FANOTIFY = struct.Struct("IBBHQii")
_INFO = struct.Struct("=BBHQIi")

Key = int | tuple[int, int, bytes]


def decode_inotify(data: bytes) -> Iterator[tuple[int, int, str, int]]:
    """Watch, mask, name, and 0 for the process, of every event in what was read (inotify(7))."""
    at = 0
    while at + _INOTIFY.size <= len(data):
        watch, mask, _, length = _INOTIFY.unpack_from(data, at)
        at += _INOTIFY.size
        name = data[at : at + length].partition(b"\0")[0]
        at += length
        yield watch, mask, os.fsdecode(name), 0


def decode_fanotify(data: bytes) -> Iterator[tuple[Key, int, str, int]]:
    """Folder, mask, name and process of every event in what was read (fanotify(7))."""
    at = 0
    while at + _FANOTIFY.size <= len(data):
        length, _, _, head, mask, handle, process = _FANOTIFY.unpack_from(data, at)
        if length < _FANOTIFY.size:
            return
        if handle >= 0:
            os.close(handle)
        key, name = _info(data[at + head : at + length])
        yield key, mask, name, process
        at += length


def _info(data: bytes) -> tuple[Key, str]:
    at = 0
    while at + _INFO.size <= len(data):
        kind, _, length, filesystem, size, handle_type = _INFO.unpack_from(data, at)
        if kind in (_FAN_INFO_DFID_NAME, _FAN_INFO_DFID):
            start = at + _INFO.size
            name = data[start + size : at + length].partition(b"\0")[0] if kind == _FAN_INFO_DFID_NAME else b""
            return (filesystem, handle_type, data[start : start + size]), os.fsdecode(name)
        at += max(length, 4)
    return 0, ""


class Watcher:
    """Watches folders by path; the paths are the machine's own, found below `paths.host()`.

    Raises OSError when the kernel gives no descriptor.
    """

    def __init__(self, *, fanotify: bool = True) -> None:
        import ctypes

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ctypes = ctypes
        self._folders: dict[Key, str] = {}
        self._names: dict[str, set[str]] = {}  # folders of which only some files are watched
        self._overflow = 0
        self.fanotify = False
        self.fd = -1
        if fanotify:
            self._open_fanotify()
        if self.fd < 0:
            self.fd = self._call("inotify_init1", _IN_NONBLOCK | _IN_CLOEXEC)

    def _open_fanotify(self) -> None:
        """Only with CAP_SYS_ADMIN is it more than inotify; and not every file system can be asked by handle."""
        flags = _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_DFID_NAME
        if not _may_administer():
            return
        try:
            self.fd = self._call("fanotify_init", flags, os.O_RDONLY | os.O_CLOEXEC)
            self.fanotify = True
            self._mark(paths.host("/etc"))
            self._folders.clear()
        except OSError:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd, self.fanotify = -1, False

    def __len__(self) -> int:
        return len(self._folders)

    def add(self, folder: str, names: set[str] | None = None) -> None:
        """Watch a folder, or only some names in it. One that is watched already stays so. Raises OSError."""
        known = self._names.get(folder)
        fresh = self._mark(paths.host(folder)) if self.fanotify else self._watch(paths.host(folder))
        was = self._folders.get(fresh)
        self._folders[fresh] = folder
        if names is None:
            self._names.pop(folder, None)
        elif known is not None:
            known |= names
        elif was != folder:
            self._names[folder] = set(names)

    def _watch(self, path: str) -> int:
        return self._call("inotify_add_watch", self.fd, os.fsencode(path), EVENTS | _IN_ONLYDIR)

    def _mark(self, path: str) -> Key:
        mask = self._ctypes.c_uint64(EVENTS | _FAN_EVENT_ON_CHILD | ISDIR)
        raw = os.fsencode(path)
        key = self._handle(raw)
        self._call("fanotify_mark", self.fd, _FAN_MARK_ADD | _FAN_MARK_ONLYDIR, mask, _AT_FDCWD, raw)
        return key

    def _handle(self, path: bytes) -> Key:
        buffer = self._ctypes.create_string_buffer(struct.pack("Ii", _HANDLE_MAX, 0), 8 + _HANDLE_MAX)
        mount = self._ctypes.c_int()
        self._call("name_to_handle_at", _AT_FDCWD, path, buffer, self._ctypes.byref(mount), 0)
        size, kind = struct.unpack_from("Ii", buffer.raw)
        return os.statvfs(path).f_fsid & 0xFFFFFFFFFFFFFFFF, kind, buffer.raw[8 : 8 + size]

    def _call(self, name: str, *arguments: object) -> int:
        function = getattr(self._libc, name)
        result = int(function(*arguments))
        if result < 0:
            number = self._ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def read(self) -> tuple[dict[str, int], set[str], bool]:
        """What changed: paths with the process (0: unknown), new folders, and whether anything was lost."""
        changed: dict[str, int] = {}
        fresh: set[str] = set()
        lost = False
        decode = decode_fanotify if self.fanotify else decode_inotify
        for _ in range(64):
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            for key, mask, name, process in decode(data):
                if mask & Q_OVERFLOW:
                    lost = True
                    continue
                folder = self._folders.get(key)
                if mask & IGNORED:
                    self._folders.pop(key, None)
                    continue
                if folder is None or not name or name == ".":
                    continue
                names = self._names.get(folder)
                if names is not None and name not in names:
                    continue
                path = f"{folder.rstrip('/')}/{name}"
                if mask & ISDIR and mask & (CREATE | MOVED_TO):
                    fresh.add(path)
                if mask & CREATE and not mask & (ISDIR | CLOSE_WRITE | MOVED_TO) and _is_plain(path):
                    continue  # its content comes next, and tells so when it is closed
                changed[path] = process or changed.get(path, 0)
        return changed, fresh, lost

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _is_plain(path: str) -> bool:
    """A regular file of one name: whoever made it holds it open for writing."""
    import stat

    try:
        status = os.lstat(paths.host(path))
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _may_administer() -> bool:
    """Whether CAP_SYS_ADMIN is in effect."""
    try:
        with open(paths.proc("self", "status"), encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) >> 21 & 1)
    except OSError:
        pass
    return False


def process_name(pid: int) -> str | None:
    """What a process is called, while it lives."""
    try:
        with open(paths.proc(str(pid), "comm"), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
