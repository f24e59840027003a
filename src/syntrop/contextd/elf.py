# SPDX-License-Identifier: Apache-2.0
"""The shared libraries that a program loads, read from its own dynamic section (no loader is run)."""

from __future__ import annotations

import os
import struct

from syntrop.common import paths

_FOLDERS = ("/usr/lib", "/lib", "/usr/lib64", "/lib64", "/usr/local/lib")
_LIBRARIES_MAX = 200
_READ_MAX = 4 << 20
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5


def needed(path: str) -> list[str]:
    """Names of the libraries that a 64-bit ELF file asks for; none for anything else. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _needed(handle)
    except (struct.error, ValueError):
        return []
    finally:
        os.close(handle)


def _needed(handle: int) -> list[str]:
    head = os.pread(handle, 64, 0)
    if head[:5] != b"\x7fELF\x02":
        return []
    order = "<" if head[5] == 1 else ">"
    offset, size, count = struct.unpack_from(order + "Q", head, 32)[0], *struct.unpack_from(order + "HH", head, 54)
    segments = []
    table = os.pread(handle, size * min(count, 64), offset)
    for at in range(0, len(table) - 55, size):
        kind, _, start, address, _, length = struct.unpack_from(order + "IIQQQQ", table, at)
        segments.append((kind, start, address, length))
    dynamic = next(((start, length) for kind, start, _, length in segments if kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return []
    raw = os.pread(handle, min(dynamic[1], _READ_MAX), dynamic[0])
    names: list[int] = []
    strings = 0
    for at in range(0, len(raw) - 15, 16):
        tag, value = struct.unpack_from(order + "qQ", raw, at)
        if tag == _DT_NEEDED:
            names.append(value)
        elif tag == _DT_STRTAB:
            strings = value
        elif tag == 0:
            break
    for kind, start, address, length in segments:
        if kind == _PT_LOAD and address <= strings < address + length:
            strings += start - address
            break
    found = []
    for name in names:
        text = os.pread(handle, 256, strings + name).partition(b"\0")[0]
        found.append(text.decode("ascii", "replace"))
    return found


def interpreter(path: str) -> str | None:
    """The program that a script names in its first line. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        line = os.pread(handle, 256, 0).partition(b"\n")[0]
    finally:
        os.close(handle)
    words = line[2:].split() if line[:2] == b"#!" else []
    if len(words) > 1 and os.path.basename(words[0]) == b"env":
        return "/usr/bin/" + os.fsdecode(words[1])
    return os.fsdecode(words[0]) if words else None


class Libraries:
    """Programs and the libraries that they load, each file read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], list[str]]] = {}
        self._folders: list[str] | None = None

    def of(self, program: str) -> set[str]:
        """Base names of all libraries that a program loads, its own names for them, and its interpreter."""
        found: set[str] = set()
        todo = [program]
        try:
            script = interpreter(paths.host(program))
        except OSError:
            return found
        if script is not None:
            found.add(os.path.basename(script))
            todo = [script]
        while todo and len(found) < _LIBRARIES_MAX:
            for name in self._needed(todo.pop()):
                if name not in found:
                    found.add(name)
                    path = self._find(name)
                    if path is not None:
                        todo.append(path)
        return found

    def _needed(self, path: str) -> list[str]:
        try:
            status = os.stat(paths.host(path))
            stamp = (status.st_ino, status.st_mtime_ns)
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                if len(self._known) > 2000:
                    self._known.clear()
                known = self._known[path] = (stamp, needed(paths.host(path)))
            return known[1]
        except OSError:
            return []

    def _find(self, name: str) -> str | None:
        if self._folders is None:
            machine = os.uname().machine
            self._folders = [f"{folder}/{machine}-linux-gnu" for folder in _FOLDERS[:2]] + list(_FOLDERS)
            self._folders = [one for one in self._folders if os.path.isdir(paths.host(one))]
        for folder in self._folders:
            path = f"{folder}/{name}"
            if os.path.exists(paths.host(path)):
                return path
        return None
