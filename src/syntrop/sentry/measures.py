# SPDX-License-Identifier: Apache-2.0
"""Counters and pressure around a unit. Blocks (a file system may not answer): for a worker thread."""

from __future__ import annotations

import os

from syntrop.common import paths, pressure
from syntrop.sentry import evidence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from syntrop.sentry.evidence import Counter, Stall

_EVENTS = ("memory.events", "pids.events", "memory.swap.events")
# The unit's own folders, by the property that names them and where that lies.
_FOLDERS = {
    "StateDirectory": "/var/lib",
    "CacheDirectory": "/var/cache",
    "LogsDirectory": "/var/log",
    "RuntimeDirectory": "/run",
}
_FOLDERS_MAX = 16
_FILE_MAX = 4096


def counters(properties: Mapping[str, Any]) -> tuple[Counter, ...]:
    """Events of the unit's control group where it still stands, and its file systems that are full."""
    found = evidence.counters(events(str(properties.get("ControlGroup") or "")))
    full = [
        evidence.Counter(f"g{number}", name, 0)
        for number, name in enumerate(spaces(folders(properties)), len(found) + 1)
    ]
    return (*found, *full)


def events(group: str) -> dict[str, str]:
    """The texts of the files that count events of a control group; nothing of one that is gone."""
    if not group.startswith("/") or "/.." in group:
        return {}
    texts = {}
    for name in _EVENTS:
        try:
            handle = os.open(paths.cgroup(group.lstrip("/"), name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            texts[name] = os.read(handle, _FILE_MAX).decode("ascii", "replace")
        except OSError:
            pass  # it went meanwhile
        finally:
            os.close(handle)
    return texts


def folders(properties: Mapping[str, Any]) -> list[str]:
    """The folders that a unit writes to, as far as its settings tell."""
    found = [
        f"{base}/{str(name).split(':')[0]}"
        for setting, base in _FOLDERS.items()
        for name in properties.get(setting) or ()
    ]
    place = str(properties.get("WorkingDirectory") or "").lstrip("!")
    found += [place] if place.startswith("/") and place != "/" else []
    for path in properties.get("ReadWritePaths") or ():
        path = str(path).lstrip("-+")
        found += [path] if path.startswith("/") else []
    return list(dict.fromkeys(found))[:_FOLDERS_MAX]


def spaces(folders: list[str]) -> list[str]:
    """`free_bytes PATH` and `free_inodes PATH` of folders on a full file system, each file system once."""
    found = []
    seen = set()
    for folder in folders:
        path = paths.host(folder)
        try:
            device = os.stat(path).st_dev
            told = os.statvfs(path)
        except OSError:
            continue
        if device in seen:
            continue
        seen.add(device)
        # Read-only images are full by nature; we may see anything read-only, so their shape has to tell: they
        # have no blocks to spare for root either.
        if told.f_blocks and not told.f_bavail and (told.f_bfree or _writable(device)):
            found.append(f"free_bytes {folder}")
        if told.f_files and not told.f_favail and (told.f_ffree or _writable(device)):
            found.append(f"free_inodes {folder}")
    return found


def _writable(device: int) -> bool:
    """Whether the file system itself is mounted for writing (proc(5): mountinfo, the super block's options)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(paths.proc("self", "mountinfo"), encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) > 6 and words[2] == number:
                    return "rw" in words[-1].split(",")
    except OSError:
        pass
    return False


def stalls() -> tuple[Stall, ...]:
    """Pressure on the whole machine now."""
    return evidence.stalls(pressure.read())
