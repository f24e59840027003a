# SPDX-License-Identifier: Apache-2.0
"""Who uses a device's memory: what DRM drivers write about each open file into /proc/PID/fdinfo/N.

The format is the kernel's *DRM client usage stats*: `drm-pdev`, `drm-client-id` and, per region of memory,
`drm-resident-<region>` (what has pages now), its older name `drm-memory-<region>`, and `drm-total-<region>` (what
was asked for). Resident is what counts; a driver that tells the total alone is taken at that.

| driver         | regions that are the device's own            |
| -------------- | -------------------------------------------- |
| amdgpu, radeon | `vram`                                       |
| xe             | `vram0`, `vram1`                             |
| i915           | `local0`                                     |
| others         | `vram…`                                      |

Every other region (`gtt`, `system`, `memory`, `cpu`, `mapped`) is host memory; `stolen…` is set aside for the
display and belongs to neither. One client may be open in several processes (a file that was inherited or passed):
it counts once. Buffers that two clients share count for both, so sums are at most too large.

Files of other users' processes are not readable for a daemon without CAP_SYS_PTRACE. Such processes are counted,
and the answer says that it is partly unknown: what was not seen is not zero.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from time import monotonic

from syntrop.common import paths, peer
from syntrop.inferenced import pcie

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_KTHREAD = 0x00200000  # PF_KTHREAD
_LARGEST = 2**63 - 1
_KEY = re.compile(r"drm-(resident|memory|total)-([a-z0-9-]{1,32})", re.ASCII)
_SIZE = re.compile(r"(\d{1,19})(?:[ \t]+(KiB|MiB|GiB))?", re.ASCII)
_UNITS = {None: 0, "KiB": 10, "MiB": 20, "GiB": 30}
_OWN = re.compile(r"(vram|local)\d*")
_NODE = re.compile(r"(?:.*/)?((?:dri/(?:renderD|card)|accel/accel)\d+)(?: \(deleted\))?")
_ORDER = ("total", "memory", "resident")  # the last of them that is there counts


@dataclass(frozen=True, slots=True)
class Stats:
    """One file's figures. `own` and `host` are bytes; None where the driver tells none."""

    driver: str
    slot: str | None
    client: int | None
    own: int | None
    host: int | None


@dataclass(frozen=True, slots=True)
class File:
    """A device's node (`dri/renderD128`) that is open: in which process, by number and start (0: it has ended), as
    which of its files, and what the driver tells of that, if anything."""

    node: str
    pid: int
    start: int
    name: str
    stats: Stats | None


@dataclass(slots=True)
class Look:
    """What a look at the processes' files found."""

    files: list[File] = field(default_factory=list)
    refused: int = 0
    """Processes that may not be looked into."""
    cut: bool = False
    """Whether time or number ran out before all were seen."""


@dataclass(slots=True)
class Client:
    """An open file of a device, in one or more processes."""

    slot: str
    own: int | None
    host: int | None
    pids: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Usage:
    """Who uses devices' memory, by a look at the processes."""

    clients: dict[tuple[str, int | str], Client] = field(default_factory=dict)
    """By device and client."""
    refused: int = 0
    """Processes that may not be looked into."""
    cut: bool = False
    """Whether time or number ran out before all were seen."""

    def complete(self, slot: str) -> bool:
        """Whether all use of a device was seen, so that what is not here does not exist."""
        if self.refused or self.cut:
            return False
        return all(one.own is not None for one in self.clients.values() if one.slot == slot)

    def by_process(self) -> dict[str, dict[int, int]]:
        """Bytes of the devices' own memory, by device and process. A client of several processes counts for the
        one with the lowest number, which is most often the one that opened it."""
        found: dict[str, dict[int, int]] = {}
        for one in self.clients.values():
            processes = found.setdefault(one.slot, {})
            pid = min(one.pids)
            processes[pid] = processes.get(pid, 0) + (one.own or 0)
        return found

    def of(self, slot: str, pids: Collection[int], *, host: bool = False) -> int:
        """Bytes of a device that clients of these processes have: its own memory, or with `host` the host's."""
        return sum(_bytes(one, host) for one in self.clients.values() if one.slot == slot and _any(one, pids))

    def others(self, slot: str, pids: Collection[int], *, host: bool = False) -> int:
        """The same of clients that none of these processes has."""
        return sum(_bytes(one, host) for one in self.clients.values() if one.slot == slot and not _any(one, pids))


def _bytes(client: Client, host: bool) -> int:
    return (client.host if host else client.own) or 0


def _any(client: Client, pids: Collection[int]) -> bool:
    return any(pid in pids for pid in client.pids)


# --- parser --------------------------------------------------------------------------------------------------


def parse(text: str) -> Stats | None:
    """A file of fdinfo; None where it is no DRM client's. A line that is none of the format is left out."""
    driver, slot, client = "", None, None
    regions: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        value = value.strip()
        if not colon or not key.startswith("drm-"):
            continue
        if key == "drm-driver":
            driver = value[:32]
        elif key == "drm-pdev":
            slot = value if pcie.is_address(value) else None
        elif key == "drm-client-id":
            client = int(value) if value.isascii() and value.isdecimal() and len(value) <= 20 else None
        elif (match := _KEY.fullmatch(key.strip())) and (size := _size(value)) is not None:
            rank = _ORDER.index(match[1])
            if rank >= regions.get(match[2], (0, 0))[0]:
                regions[match[2]] = (rank, size)
    if not driver:
        return None
    own = [size for region, (_, size) in regions.items() if _OWN.fullmatch(region)]
    host = [
        size
        for region, (_, size) in regions.items()
        if not _OWN.fullmatch(region) and not region.startswith("stolen")
    ]
    told = bool(regions)
    return Stats(
        driver, slot, client, min(sum(own), _LARGEST) if told else None, min(sum(host), _LARGEST) if told else None
    )


def _size(value: str) -> int | None:
    match = _SIZE.fullmatch(value)
    if match is None:
        return None
    size = int(match[1]) << _UNITS[match[2]]
    return size if size <= _LARGEST else None


# --- reader --------------------------------------------------------------------------------------------------


def usage(look: Look) -> Usage:
    """Pure: the files of a look, by client."""
    found = Usage(refused=look.refused, cut=look.cut)
    for file in look.files:
        stats = file.stats
        if stats is None:
            continue
        slot = stats.slot or ""
        # Without a number (before Linux 5.19) two files cannot be told from one: each counts.
        key = (slot, stats.client if stats.client is not None else f"{file.pid}/{file.name}")
        client = found.clients.get(key)
        if client is None:
            client = found.clients[key] = Client(slot, stats.own, stats.host)
        client.pids.add(file.pid)
    return found


def look(pids: Iterable[int] | None = None, *, seconds: float = 0.5, files_max: int = 100_000) -> Look:
    """Look at these processes, or at all. Blocking, so for a worker thread where all are meant.

    Only files that are open device nodes are read: the others are told by their links. It ends after `seconds` or
    `files_max` open files, and then says that it did. A process that ends meanwhile has used nothing.
    """
    found = Look()
    until, left = monotonic() + seconds, files_max
    for pid in sorted(_processes() if pids is None else set(pids)):
        folder = paths.proc(str(pid))
        try:
            names = os.listdir(os.path.join(folder, "fd"))
        except PermissionError:
            found.refused += not _is_kernels(folder)
            continue
        except OSError:
            continue  # it has ended
        left -= len(names)
        if left < 0 or monotonic() > until:
            found.cut = True
            break
        start: int | None = None
        for name in names:
            node = _node(folder, name)
            if node is not None:
                start = _start(pid) if start is None else start
                stats = parse(pcie.read(os.path.join(folder, "fdinfo", name), 16384) or "")
                found.files.append(File(node, pid, start, name, stats))
    return found


def _start(pid: int) -> int:
    try:
        return peer.start_time(pid) or 0
    except (OSError, ValueError, IndexError):
        return 0


def _node(folder: str, name: str) -> str | None:
    try:
        match = _NODE.fullmatch(os.readlink(os.path.join(folder, "fd", name)))
    except OSError:
        return None  # closed, or the process has ended
    return match[1] if match is not None else None


def _processes() -> list[int]:
    try:
        return [
            int(name)
            for name in os.listdir(paths.proc())
            if name.isascii() and name.isdecimal() and len(name) < 11
        ]
    except OSError:
        return []


def _is_kernels(folder: str) -> bool:
    """Whether this is a thread of the kernel, which has no files; anybody may ask."""
    words = (pcie.read(os.path.join(folder, "stat"), 4096) or "").rpartition(")")[2].split()
    return len(words) > 6 and words[6].isdecimal() and bool(int(words[6]) & _KTHREAD)
